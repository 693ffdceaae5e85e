"""Store: the only code that commits, locks and resumes files and directories, and that limits the size of the cache.

`commit` makes files and directories appear whole. `lock` lets one process at a time write a path. `unfinished_pieces`
keeps the finished parts of an unfinished result. `cache` limits the size of data that can be computed again. `capacity`
checks that a disk has room. A result in an object store has a copy on this machine. `commit` and `lock` synchronize the
two with `remote_folders` and `lease`."""
