"""Folders of images by the million, such as generated ones: their format, its writer, conversion from .npz."""
