"""Fused kernels for shapes that the general ones are slow on."""
