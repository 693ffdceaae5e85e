"""Data sets as columns and judgements; sub-packages for formats, preparation and sampling; `pydocs`."""
