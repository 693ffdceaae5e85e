"""Store: the only code that commits, locks and resumes files and directories, and that limits the size of the cache.

`commit` makes files and directories appear whole. `lock` lets one process at a time write a path. `unfinished_pieces`
keeps the finished parts of an unfinished result. `cache` limits the size of data that can be computed again. `capacity`
checks that a disk has enough free space. A result in an object store also has a local copy. `commit` and `lock` keep
both equal, by means of `remote_folders` and `lease`."""
