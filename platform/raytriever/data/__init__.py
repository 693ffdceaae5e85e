"""Data sets: formats, preparation, import of documents, hard negatives, and the order of training examples."""
