"""Data sets as columns and judgements; sub-packages for formats, preparation, sampling and `pydocs`."""
