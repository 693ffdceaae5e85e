"""Store: everything on disk is committed, locked, continued and bounded here; other code calls these functions alone.

`commit` makes files and directories appear whole, `lock` lets one process write a path, `parts` keeps the finished
parts of an unfinished result, `cache` bounds what may be made again, and `capacity` checks that a disk has room.
A result in an object store is a copy on this machine: `commit` and `lock` call `remote` and `lease` for it.
"""
