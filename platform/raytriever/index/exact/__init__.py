"""Exact search by dot product, on a CPU or a GPU."""
