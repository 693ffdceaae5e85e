"""Search a data set: exactly, or by an approximate index."""
