"""Data files become records: readers of rows, one module per published format, recognition of the format."""
