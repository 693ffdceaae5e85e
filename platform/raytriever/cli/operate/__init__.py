"""Commands that operate runs and machines: launch, submit, runs, cache, doctor."""
