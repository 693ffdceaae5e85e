"""Checked readers of Markdown, HTML, plain text, PDF, Word and PowerPoint. They return sections under headings.

No reader opens another file, follows a link or runs what a document contains. Each error that a parser
raises for a hostile file becomes a `DataError`. The parsers are installed by the extra `documents`."""
