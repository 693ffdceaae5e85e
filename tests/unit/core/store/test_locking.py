"""One writer per path: who is refused and by which line, what ends with a process, and file systems without locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from processes import run_python, running_python, wait_for

from raytriever.core.errors import StorageError
from raytriever.core.interruption import interruptible
from raytriever.core.store import lock as locking
from raytriever.core.store.commit import committed_directory, one_writer
from raytriever.core.store.lock import InUseError, acquire, check_owner, claims, join, lock_file_of, owner_of
from raytriever.core.store.lock_owner import Owner

HOLDER = """
import os, sys, time
from raytriever.core.store.lock import acquire
lock = acquire(sys.argv[1])
child = os.fork() if sys.argv[2] == "fork" else -1
if child == 0:
    time.sleep(60)
print(child, flush=True)
sys.stdin.read()
lock.release()
"""


@contextmanager
def holder(path: Path, how: str = "plain") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds the lock of a path until its input is closed, and its forked child if it has one."""
    with running_python(HOLDER, path, how) as (process, child):
        try:
            yield process, int(child)
        finally:
            if int(child) > 0:
                os.kill(int(child), signal.SIGKILL)


@pytest.fixture(params=["kernel", "file"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system with locks, and one that answers every request for one as Lustre without `flock` does."""
    monkeypatch.setattr(locking, "GRACE_SECONDS", 0.05)
    if request.param == "file":
        without_locks(monkeypatch, errno.ENOSYS)
    return str(request.param)


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(locking, "GRACE_SECONDS", 0.05)


def write_record(path: Path, **changed: object) -> Path:
    """The lock file of another process."""
    owner = Owner("elsewhere", 123, "raytriever train", time.time() - 180, "t" * 16, locking.BY_FILE, 7)
    file = lock_file_of(path)
    file.write_text(json.dumps(asdict(replace(owner, **changed))))  # type: ignore[arg-type]
    return file


def test_a_second_command_is_refused_by_a_line_that_names_the_first(tmp_path: Path) -> None:
    with holder(tmp_path / "mine") as (process, _):
        began = time.monotonic()
        with (
            pytest.raises(InUseError) as caught,
            one_writer(tmp_path / "mine", remedy="wait for it with --wait, or give another --output"),
        ):
            pass
        assert time.monotonic() - began < 2
        host, at = socket.gethostname(), time.strftime("%H:%M:")
        line = f"{tmp_path}/mine: in use by '-c' on host {host}, pid {process.pid}, since {at}"
        assert str(caught.value).startswith(line)
        assert str(caught.value).endswith(" s); wait for it with --wait, or give another --output")
        with one_writer(tmp_path / "other"):
            pass


def test_a_released_lock_leaves_nothing_behind(tmp_path: Path, file_system: str) -> None:
    assert owner_of(tmp_path / "new" / "parents" / "mine") is None
    lock = acquire(tmp_path / "new" / "parents" / "mine")
    owner = owner_of(tmp_path / "new" / "parents" / "mine")
    assert owner is not None
    assert (owner.kind, owner.host, owner.pid) == (file_system, socket.gethostname(), os.getpid())
    assert 0 <= time.time() - owner.since < 60
    assert [file.name for file in (tmp_path / "new" / "parents").iterdir()] == [".mine.lock"]
    lock.release()
    assert list(tmp_path.iterdir()) == []
    with one_writer(tmp_path / "new" / "mine"):
        (tmp_path / "new" / "mine").mkdir()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["mine"]


def test_a_death_releases_the_lock_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    with holder(tmp_path / "mine", "fork") as (process, child):
        assert owner_of(tmp_path / "mine") is not None
        process.kill()
        process.wait()
        os.kill(child, 0)
        wait_for(lambda: owner_of(tmp_path / "mine") is None)
        acquire(tmp_path / "mine").release()
    assert list(tmp_path.iterdir()) == []


def test_every_spelling_of_a_path_and_every_link_to_it_meet_at_one_lock(tmp_path: Path, file_system: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "folder").symlink_to(tmp_path)
    with one_writer(tmp_path / "mine"):
        for name in ("link", "folder/link", "mine/../mine", "folder/./mine/"):
            with pytest.raises(InUseError, match="in use by"):
                acquire(f"{tmp_path}/{name}")


def test_the_lock_outlasts_the_directory_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with one_writer(tmp_path / "mine"):
        (tmp_path / "mine").rmdir()
        with pytest.raises(InUseError):
            acquire(tmp_path / "mine")
        with committed_directory(tmp_path / "mine") as aside:
            (aside / "a.txt").write_text("text")
        with pytest.raises(InUseError):
            acquire(tmp_path / "mine")


def test_a_directory_whose_parent_may_not_be_written_holds_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with one_writer(tmp_path / "mine"):
        assert (tmp_path / "mine" / ".lock").exists()
    assert list((tmp_path / "mine").iterdir()) == []


def test_waiting_begins_with_a_line_and_ends_with_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "LOG_SECONDS", 0.3)
    lines: list[str] = []
    with holder(tmp_path / "mine") as (process, _):

        def end() -> None:
            while len(lines) < 2:
                time.sleep(0.05)
            process.kill()

        ending = threading.Thread(target=end)
        ending.start()
        with one_writer(tmp_path / "mine", wait=True, log=lines.append):
            ending.join()
    assert lines[0].startswith(f"{tmp_path}/mine: waiting for '-c' on host {socket.gethostname()}, pid {process.pid}")


@pytest.mark.usefixtures("handled_interrupts")
def test_waiting_can_be_interrupted(tmp_path: Path) -> None:
    with holder(tmp_path / "mine"), interruptible():
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(KeyboardInterrupt):
            acquire(tmp_path / "mine", wait=True)
    with interruptible():  # what waits after this was not interrupted
        pass


def test_a_lock_file_that_its_owner_removes_meanwhile_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, flock = acquire(tmp_path / "mine"), fcntl.flock

    def released_just_before(descriptor: int, operation: int) -> None:
        if first.owner.token in locking._held:
            first.release()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", released_just_before)
    second = acquire(tmp_path / "mine")
    assert owner_of(tmp_path / "mine") == second.owner
    second.release()


def test_other_errors_of_a_lock_are_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch, errno.EIO)
    with pytest.raises(StorageError, match=f"^{tmp_path}/mine: the disk fails to read or write"):
        acquire(tmp_path / "mine")


@pytest.mark.parametrize("wait", [False, True])
def test_a_lock_by_file_of_a_dead_process_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    without_locks(monkeypatch, errno.ENOLCK)
    gone = run_python("-c", "import os; print(os.getpid())")
    # Of the second one another process has the number since.
    for pid, started in ((int(gone.stdout), 7), (os.getpid(), 1)):
        file = write_record(tmp_path / "mine", host=socket.gethostname(), pid=pid, started=started)
        assert owner_of(tmp_path / "mine") is None
        with pytest.raises(InUseError, match=rf"pid {pid}, since .*; that process has ended: remove {file}$"):
            acquire(tmp_path / "mine", wait=wait)
        file.unlink()
    acquire(tmp_path / "mine").release()


@pytest.mark.parametrize("locks", [True, False])
def test_a_lock_of_another_host_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    if not locks:
        without_locks(monkeypatch, errno.ENOLCK)
    file = write_record(tmp_path / "mine")
    os.utime(file, (0, 0))
    with pytest.raises(InUseError) as caught:
        acquire(tmp_path / "mine", remedy="wait for it with --wait")
    assert "in use by 'raytriever train' on host elsewhere, pid 123, since " in str(caught.value)
    assert str(caught.value).endswith(f" (3 min); wait for it with --wait; if that process has ended, remove {file}")


def test_a_lock_file_without_an_owner_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was killed before it wrote the file."""
    without_locks(monkeypatch, errno.ENOLCK)
    lock_file_of(tmp_path / "mine").touch()
    with pytest.raises(InUseError, match=r"; wait for it; if no command writes to this path, remove .*/\.mine\.lock$"):
        acquire(tmp_path / "mine")


def test_a_worker_whose_driver_died_writes_until_another_command_begins(tmp_path: Path) -> None:
    with holder(tmp_path / "mine") as (driver, _):
        owner = owner_of(tmp_path / "mine")
        assert owner is not None
        of_driver = locking.LockClaim(str(tmp_path / "mine"), str(lock_file_of(tmp_path / "mine")), owner.token)
        try:
            join([of_driver])
            assert claims() == (of_driver,)
            check_owner(tmp_path / "mine" / "step-1")
            driver.kill()
            driver.wait()
            check_owner(tmp_path / "mine" / "step-1")
            with holder(tmp_path / "mine"):
                with pytest.raises(InUseError, match="took it over"):
                    check_owner(tmp_path / "mine" / "step-1")
                check_owner(tmp_path / "mine-too")
            lock_file_of(tmp_path / "mine").unlink()
            with pytest.raises(InUseError, match="has ended"):
                check_owner(tmp_path / "mine")
        finally:
            join([])
