"""Folders of millions of images, such as generated ones: their format, its writer, conversion from .npz."""
