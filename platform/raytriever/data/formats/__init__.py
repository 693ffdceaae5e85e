"""Conversion of data files to records: readers of rows, a module for each kind of format, and recognition."""
