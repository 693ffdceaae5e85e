"""Data files to records: readers of rows, one module per published format, recognition of the format."""
