"""Systems that are made of others or of files: run files, vectors, fusions and rerankings."""
