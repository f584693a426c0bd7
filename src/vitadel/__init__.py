"""Vitadel: train, attack, evaluate and explain robust Vision Transformers."""

__version__ = "0.1.0"
