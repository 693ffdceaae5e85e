"""Checked readers: every file that may come from somebody else is compared with its expected contents before use.

1. No contents can run code. Arrow and Parquet are opened without building extension types, arrays and tensors are plain
   numbers, and YAML has plain values only.
2. A file has the names, types, shapes and nesting that the caller expects, or one line reports the difference.
3. Values that index memory, such as the offsets of texts, are validated before a value is read.

A reader raises a `Mismatch` that says what it found and expected. `checked` turns it into a `StorageError`, or into the
kind of `UserError` that the caller names. `OSError` passes. The readers of JSON and YAML are in `json_and_yaml`, those
of arrays, tensors and columns in `arrays`.
"""
