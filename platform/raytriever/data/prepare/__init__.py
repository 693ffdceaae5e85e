"""Preparation of a data set: its files are converted to tokenized shards once. Prepared data sets are opened here."""
