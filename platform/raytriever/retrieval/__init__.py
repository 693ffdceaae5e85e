"""Retrieval: encode the texts of a data set, search their embeddings, and mine hard negatives."""
