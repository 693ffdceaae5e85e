"""Sections of `benchmarks/gpu.py`."""
