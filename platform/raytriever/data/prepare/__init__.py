"""Preparation of a data set: chunks become tokenised shards once, and a prepared directory is opened and checked."""
