"""Triton kernels for attention of sizes for which general kernels are slow."""
