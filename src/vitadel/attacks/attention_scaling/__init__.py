"""Adaptive Attention Scaling (Jain & Dutta 2024)."""
