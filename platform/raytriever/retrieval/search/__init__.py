"""Search of a data set: exact, or with an approximate index."""
