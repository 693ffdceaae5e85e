"""Commands of an operator: list and clean runs, prune the cache, check the machine."""
