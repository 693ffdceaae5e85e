"""Store: files and directories are committed, locked, resumed and bounded here, and by no other code.

`commit` makes files and directories appear whole. `lock` lets one process write a path. `unfinished_parts` keeps the
finished parts of an unfinished result. `cache` limits the size of what can be computed again. `capacity` checks that a
disk has room. A result in an object store has a copy on this machine, for which `commit` and `lock` call
`remote_folders` and `lease`.
"""
