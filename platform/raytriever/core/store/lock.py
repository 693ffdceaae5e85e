"""One writer per path: an exclusive lock that ends with its process. Other commands can read who owns it.

The lock of `runs/mine` is the file `runs/.mine.lock`, outside `runs/mine`, which `--fresh` and commits remove or
rename. If `runs/mine` is a mount point, or `runs` read-only, it is `runs/mine/.lock`. The owner removes it at the end.

1. The process whose `flock` succeeds has the lock. The kernel releases it when the process ends. On NFS, Linux asks
   the server for a lock instead; this requires that the file is open for writing.
2. If the file system has no locks, the process that creates the file has the lock until the file is removed. If
   that process was killed, the error of the next command names the file, and the user removes it.
3. To write a folder of an object store (through its local copy), the process also needs a lease (`lease`).
4. The file holds a token. `check_owner` compares it before every commit. So a process that lost its lock, or a Ray
   worker whose driver was killed, does not overwrite its successor's work."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from raytriever.core.errors import ASIDE, StorageError, disk_errors
from raytriever.core.interruption import check_interrupted
from raytriever.core.store import lease, object_stores, remote_folders
from raytriever.core.store.disk import make_folder
from raytriever.core.store.lock_owner import (
    BY_FILE,
    BY_KERNEL,
    UNKNOWN,
    Owner,
    has_ended_here,
    parsed_owner,
    read_owner,
    record_of,
    this_process,
)

LOCK = ".lock"
LOG_SECONDS, POLL_SECONDS = 10.0, 0.1
LEASE_GRACE_SECONDS = 5.0  # if two processes ask for a lease at once, one gets it within this time
GRACE_SECONDS = 0.5  # wait this long, because `owner_of` in another process holds the lock for an instant
_BUSY = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class InUseError(StorageError):
    """Another command is writing to the path."""


@dataclass(frozen=True)
class LockClaim:
    """Right to write under a directory while `file` contains the token and, with `has_lease`, the lease exists."""

    directory: str
    file: str
    token: str
    has_lease: bool = False

    def covers(self, real: str) -> bool:
        """Return whether a path without symbolic links is the directory, or inside it."""
        return real == self.directory or real.startswith(self.directory.rstrip(os.sep) + os.sep)


_held: dict[str, Lock] = {}
_claims: list[LockClaim] = []


class Lock:
    """Lock that this process holds until `release`; made by `acquire`."""

    def __init__(
        self, directory: Path, file: Path, descriptor: int | None, owner: Owner, parents: Sequence[Path]
    ) -> None:
        self.owner, self._file, self._descriptor, self._parents = owner, file, descriptor, parents
        self.claim = LockClaim(str(directory), str(file), owner.token)
        self._lease: lease.Lease | None = None
        _held[owner.token] = self

    def release(self) -> None:
        """Remove the lock file, and the empty parents that were made for it."""
        try:
            if self._lease is not None:
                self._lease.release()
        finally:
            self._release_file()

    def push_changes(self) -> None:
        """Upload the files of a path in an object store that have changed; raises `StorageError`."""
        if self._lease is not None:
            self._lease.push_changes()

    def ask_for_lease(self) -> Owner | None:
        """Get the lease of a path in an object store. If another process has it, release this lock and return it."""
        path = Path(self.claim.directory)
        if not _needs_lease(path):
            return None
        record = record_of(self.owner)
        try:
            other = lease.ask(self._file, self.owner.token, record, lambda read: has_ended_here(parsed_owner(read)))
            if other is None:
                self._lease = lease.Lease(path, self._file, self.owner.token, record)
                self.claim = replace(self.claim, has_lease=True)
                return None
        except BaseException:
            self._release_file()
            raise
        self._release_file()
        return parsed_owner(other)

    def _release_file(self) -> None:
        _held.pop(self.owner.token, None)
        with suppress(OSError):
            if read_owner(self._file).token == self.owner.token:
                self._file.unlink()
        self.close()
        _remove_empty(self._parents)

    def close(self) -> None:
        """Close the file. In the owner this releases the lock. In a forked child the owner still has the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_file_of(path: Path | str) -> Path:
    """Return the lock file of a path. All spellings of a path, and links to it, have the same lock file."""
    real = Path(os.path.realpath(path))
    if real.is_dir() and (os.path.ismount(real) or not os.access(real.parent, os.W_OK)):
        return real / LOCK
    return real.with_name(f"{'' if real.name.startswith('.') else '.'}{real.name}{LOCK}")


def owner_of(path: Path | str) -> Owner | None:
    """Return the process that is writing a path now, or None. Change nothing."""
    file = lock_file_of(path)
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        owner = read_owner(file)
        return owner if error.errno in _BUSY or not has_ended_here(owner) else None
    else:
        owner = read_owner(file)
        return owner if owner.kind == BY_FILE and not has_ended_here(owner) else None
    finally:
        os.close(descriptor)


def acquire(
    path: Path | str, *, wait: bool = False, log: Callable[[str], None] | None = None, remedy: str | None = None
) -> Lock:
    """Acquire the lock of a path. The path need not exist; its parents are made. Raise `InUseError` if another process
    holds the lock and `wait` is false. Raise `StorageError` if the lock file cannot be made. This error names the
    path, because users do not know lock files.

    Args:
        wait: whether to wait for another owner instead of raising an error. Ctrl-C ends the wait.
        log: function that gets a line when the wait begins, and then every ten seconds.
        remedy: remedy of the `InUseError`; by default, that the user should wait.
    """
    if len(object_stores.inside(path) or ()) == 2:
        raise StorageError("is a whole bucket", str(path), "give the address of a path in it")
    with disk_errors(path), object_stores.named(path, lock_file_of(path)):
        try:
            return _acquire(path, wait, log, remedy)
        except FileNotFoundError as error:  # in a virtual file system, such as /proc
            raise StorageError("no folder can be made there", str(path), "give a path you may write to") from error
        except OSError as error:
            error.filename = None
            raise


def _acquire(path: Path | str, wait: bool, log: Callable[[str], None] | None, remedy: str | None) -> Lock:
    began = time.monotonic()
    grace = LEASE_GRACE_SECONDS if _needs_lease(path) else GRACE_SECONDS
    next_line = began + grace
    while True:
        lock = _try(path)
        if isinstance(lock, Lock):
            other = lock.ask_for_lease()
            if other is None:
                return lock
            lock = other
            time.sleep(random.uniform(0.1, 1.0))  # so that two processes do not again ask at the same time
        now = time.monotonic()
        if now > began + grace and (not wait or (lock.kind == BY_FILE and has_ended_here(lock))):
            raise InUseError(f"in use by {lock}", str(path), _remedy(lock, path, remedy))
        if wait and log is not None and now >= next_line:
            log(f"{path}: waiting for {lock}")
            next_line = now + LOG_SECONDS
        check_interrupted()
        time.sleep(POLL_SECONDS)


@contextmanager
def released_at_end() -> Iterator[None]:
    """At the end of a block, release every lock that was acquired in it."""
    before = set(_held)
    try:
        yield
    finally:
        for lock in [lock for token, lock in _held.items() if token not in before]:
            lock.release()


def claims() -> tuple[LockClaim, ...]:
    """Return the claims of this process, so that they can be sent to its workers."""
    return (*_claims, *(lock.claim for lock in _held.values()))


def push_changes(path: Path | str) -> None:
    """Upload the changed files of a folder that this process has locked, if the folder is in an object store. Raise
    `StorageError` if that fails."""
    real = os.path.realpath(path)
    for lock in list(_held.values()):
        if lock.claim.has_lease and lock.claim.covers(real):
            lock.push_changes()


def join(of_driver: Sequence[LockClaim]) -> None:
    """Adopt the driver's locks in this process, so that `check_owner` verifies them here."""
    _claims[:] = [claim for claim in of_driver if claim.token not in _held]
    for claim in _claims:
        remote_folders.pull(claim.directory, owned=owner_of(claim.directory) is not None)


def check_owner(path: Path | str) -> None:
    """Raise `InUseError` if this process, or its driver, has lost a lock that covers the path."""
    if not _held and not _claims:
        return
    real = os.path.realpath(path)
    for claim in claims():
        if not claim.covers(real):
            continue
        file = Path(claim.file)
        if claim.has_lease and not lease.is_held(file / claim.token):
            raise InUseError("the lease of this command has ended", str(path), "give the command again: it continues")
        if file.exists():
            owner = read_owner(file)
            if owner.token not in (claim.token, ""):
                raise InUseError(f"now in use by {owner}, which took it over", str(path), "end this process")
        elif claim.token not in _held and not object_stores.address_of(file):
            raise InUseError("the command that this process worked for has ended", str(path), "give the command again")


def _try(path: Path | str) -> Lock | Owner:
    directory, file = Path(os.path.realpath(path)), lock_file_of(path)
    parents = make_folder(file.parent)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor, is_new = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o644), True
        if file.parent.stat().st_mode & stat.S_ISGID and os.access(file.parent, os.W_OK):
            os.fchmod(descriptor, 0o664)  # in a shared folder, every user may take over the lock of a killed process
    except FileExistsError:
        try:
            descriptor, is_new = os.open(file, flags), False
        except FileNotFoundError:
            return UNKNOWN  # the owner has just removed the file
    keep = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return read_owner(file)
            if error.errno not in _NO_LOCKS:
                raise
            if not is_new:
                return read_owner(file)
            owner = this_process(BY_FILE)
        else:
            if not _is_at(descriptor, file):
                return UNKNOWN
            owner = read_owner(file)
            if owner.kind == BY_FILE and not is_new:
                return owner
            owner = this_process(BY_KERNEL)
        os.pwrite(descriptor, record_of(owner), 0)
        if ASIDE not in file.name:  # no command asks for the owner of a hidden directory, so it need not be durable
            os.fsync(descriptor)
        keep = True
        return Lock(directory, file, descriptor, owner, parents)
    except OSError:  # such as a full disk: leave no file behind
        if is_new:
            file.unlink(missing_ok=True)
            _remove_empty(parents)
        raise
    finally:
        if not keep:
            os.close(descriptor)


def _needs_lease(path: Path | str) -> bool:
    real = os.path.realpath(path)
    if object_stores.address_of(real) is None or ASIDE in real:
        return False
    return not any(claim.has_lease and claim.covers(real) for claim in claims())


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _remedy(owner: Owner, path: Path | str, remedy: str | None) -> str:
    file = lock_file_of(path)
    if owner.kind == BY_FILE and has_ended_here(owner):
        return f"that process has ended: remove {file}"
    words = "wait for it" if remedy is None else remedy
    if owner.kind == BY_FILE:
        words += f"; if that process has ended, remove {file}"
    elif owner == UNKNOWN:
        words += f"; if no command writes to this path, remove {file}"
    elif owner.host != socket.gethostname():
        words += f"; if host {owner.host} is gone, remove {file}"
    return words


def _after_fork() -> None:
    """Leave the locks to the parent. The forked child keeps only the claims, so that `check_owner` lets it write."""
    _claims.extend(lock.claim for lock in _held.values())
    for lock in _held.values():
        lock.close()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
