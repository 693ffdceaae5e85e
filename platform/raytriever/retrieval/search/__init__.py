"""Search of a data set: exact, or by an approximate index."""
