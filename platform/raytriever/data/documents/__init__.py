"""Import of a folder of documents: passages by headings and tokens, splits by document, questions and answers."""
