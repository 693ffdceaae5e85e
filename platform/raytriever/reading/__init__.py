"""Checked readers: every file that may come from somebody else is compared with what it should hold before it is used.

1. Nothing that is read can run code. Arrow and Parquet are opened without building extension types, arrays and tensors
   are plain numbers, YAML has plain values only.
2. A file has the names, types, shapes and nesting that the caller expects, or one line says what differs.
3. What indexes memory, such as the offsets of texts, is validated before a value is read.

Each reader raises `StorageError`, or the kind of `UserError` that the caller names, and lets `OSError` pass. The
readers of JSON and YAML are in `structured`, those of arrays, tensors and columns in `arrays`.
"""
