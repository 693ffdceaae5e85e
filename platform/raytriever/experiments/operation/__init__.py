"""Commands for operators: list and clean runs, prune the cache, check the machine."""
