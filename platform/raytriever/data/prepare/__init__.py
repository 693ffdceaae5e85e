"""Preparation of a data set: chunks become tokenized shards once, and a prepared directory is opened and checked."""
