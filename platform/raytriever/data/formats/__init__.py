"""Conversion of data files to records: readers of rows, one module per published format, and their recognition."""
