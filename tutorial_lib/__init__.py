"""Predict, trace and explain the speed of PyTorch programs."""

__version__ = "0.1.0"
