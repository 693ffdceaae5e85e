"""Checked readers of Markdown, HTML, plain text, PDF, Word and PowerPoint: bytes become sections under headings.

No reader opens another file, follows a link or runs what a document contains. Whatever a parser raises for a hostile
file becomes a `DataError` with what is wrong and what to do. The parsers are the extra `documents`.
"""
