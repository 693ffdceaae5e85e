"""Preparation of data sets: files are converted to tokenized shards, one time. Prepared data sets are opened here."""
