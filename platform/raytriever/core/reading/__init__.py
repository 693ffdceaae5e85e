"""Checked readers. Each file that somebody else may have written is compared with its expected contents before use.

1. No contents can run code. Extension types of Arrow and Parquet are never built. Arrays and tensors hold plain
   numbers or texts, and YAML holds plain values.
2. If names, types, shapes or nesting differ from what the caller expects, an error of one line reports the difference.
3. Values that index memory, such as the offsets of texts, are validated before anything is read through them.

A reader raises a `Mismatch` that says what it read and what it expected. `checked` converts it to a `StorageError`, or
to the kind of `UserError` that the caller names. It does not change an `OSError`. The readers of JSON and YAML are in
`json_and_yaml`; the readers of arrays, tensors and columns are in `arrays`."""
