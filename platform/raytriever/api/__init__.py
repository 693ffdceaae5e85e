"""Implementation of the public Python API. `raytriever/__init__.py` names what is public and loads it lazily.

The functions assemble the same settings as the commands and call the same functions, with the same checks, caches and
locks. As with the commands, progress lines appear on standard error."""
