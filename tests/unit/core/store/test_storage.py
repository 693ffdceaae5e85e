from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import running_python

from raytriever.core.errors import StorageError
from raytriever.core.store import commit as storage
from raytriever.core.store import disk
from raytriever.core.store.commit import (
    MANIFEST,
    committed_directory,
    is_committed,
    one_writer,
    read_manifest,
    write_atomically,
)
from raytriever.data.data_sources import open_raw, open_stream


def commit(path: Path, text: str = "one", replace: bool = False, during: Callable[[], object] = lambda: None) -> None:
    with committed_directory(path, {"by": text}, replace=replace) as aside:
        (aside / "inner").mkdir()
        (aside / "inner" / "a.txt").write_text(text)
        during()


def fail_with(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_commit_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    with committed_directory(tmp_path / "deep" / "run", meta := {}) as aside:
        assert not (tmp_path / "deep" / "run").exists()
        (aside / "a.txt").write_text("text")
        meta["found"] = 7
    manifest = read_manifest(tmp_path / "deep" / "run")
    assert manifest["meta"] == {"found": 7}
    digest = "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"
    assert manifest["files"] == {"a.txt": {"size": 4, "sha256": digest}}
    assert entries(tmp_path / "deep") == ["run"]


def test_a_failed_replacement_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path / "run")
    rename = os.rename

    def refuse_the_new(source: Path, target: Path) -> None:
        if target == tmp_path / "run" and (Path(source) / "b.txt").exists():
            raise OSError(errno.ENOSPC, "full")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_the_new)
    with (
        pytest.raises(StorageError, match=r"run: no space left on the disk; free some space"),
        committed_directory(tmp_path / "run", replace=True) as aside,
    ):
        (aside / "b.txt").write_text("new")
    assert read_manifest(tmp_path / "run")["meta"] == {"by": "one"}
    assert entries(tmp_path) == ["run"]


@pytest.mark.parametrize("replace", [False, True])
def test_a_writer_that_was_killed_between_two_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    class Killed(BaseException): ...

    commit(tmp_path / "run")
    rename = os.rename

    def die_before_the_second(source: Path, target: Path) -> None:
        if target == tmp_path / "run":
            raise Killed
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die_before_the_second)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # a killed process removes nothing
        with pytest.raises(Killed):
            commit(tmp_path / "run", "two", replace=True)
    assert not (tmp_path / "run").exists()
    assert len(entries(tmp_path)) == 2
    for leftover in tmp_path.iterdir():
        os.utime(leftover, (0, 0))  # minutes ago
    with pytest.raises(StorageError if not replace else KeyboardInterrupt):
        commit(tmp_path / "run", "three", replace=replace, during=fail_with(KeyboardInterrupt()))
    assert read_manifest(tmp_path / "run")["meta"] == {"by": "two"}


def test_a_folder_that_is_made_survives_a_crash_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(disk, "fsync", synced.append)
    disk.make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_links_in_a_circle_above_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(StorageError, match=f"^{tmp_path}/circle: symbolic links form a loop"):
        commit(tmp_path / "circle" / "run", "one")


def test_of_two_writers_at_once_the_first_wins(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="already exists"):
        commit(tmp_path / "run", "second", during=lambda: commit(tmp_path / "run", "first"))
    assert read_manifest(tmp_path / "run")["meta"] == {"by": "first"}
    assert entries(tmp_path) == ["run"]
    with pytest.raises(StorageError, match="already exists"):
        commit(tmp_path / "run", "third")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), "is missing, though"),
        (lambda file: file.write_text("on"), "is incomplete: 2 bytes instead of 3"),
        (lambda file: file.write_text("two"), "has changed: its SHA-256"),
    ],
)
def test_damage_is_reported_by_file(tmp_path: Path, damage, message: str) -> None:
    commit(tmp_path / "run")
    damage(tmp_path / "run" / "inner" / "a.txt")
    with pytest.raises(StorageError, match=rf"inner/a\.txt: {message}"):
        read_manifest(tmp_path / "run")


def test_every_file_is_compared_with_its_own_digest(tmp_path: Path) -> None:
    with committed_directory(tmp_path / "run", {}) as aside:
        for name in "abcdefgh":
            (aside / name).write_text(name)
    read_manifest(tmp_path / "run")
    (tmp_path / "run" / "g").write_text("G")
    with pytest.raises(StorageError, match="run/g: has changed"):
        read_manifest(tmp_path / "run")


def test_without_verifying_only_names_and_sizes_count(tmp_path: Path) -> None:
    commit(tmp_path / "run")
    (tmp_path / "run" / "inner" / "a.txt").write_text("two")
    assert read_manifest(tmp_path / "run", verify=False)["meta"] == {"by": "one"}


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"format": 1, "files": {}}', '{"format": 1, "files": {"a": 3}, "meta": {}}']
)
def test_what_has_no_valid_manifest_does_not_exist(tmp_path: Path, content: str) -> None:
    with pytest.raises(StorageError, match=r"cannot read manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(StorageError, match=r"manifest\.json: is damaged or changed: .*; make the directory again"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("number", ["0", "2", "true", '"1"', "null"])
def test_a_directory_of_another_format_is_refused_in_one_line(tmp_path: Path, number: str) -> None:
    (tmp_path / MANIFEST).write_text(f'{{"format": {number}, "files": {{}}, "meta": {{}}}}')
    with pytest.raises(StorageError, match=r"; this version reads format 1; make the directory again$") as error:
        read_manifest(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / MANIFEST}: ")
    assert not is_committed(tmp_path)


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/etc/hostname"])
def test_a_manifest_names_only_files_within(tmp_path: Path, name: str) -> None:
    commit(tmp_path / "run")
    (tmp_path / "outside").write_text("x")
    manifest = json.loads((tmp_path / "run" / MANIFEST).read_text())
    manifest["files"][name] = {"size": 1, "sha256": "0" * 64}
    (tmp_path / "run" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StorageError, match="outside of its directory; make the directory again"):
        read_manifest(tmp_path / "run")


def test_a_folder_that_nothing_can_be_made_in() -> None:
    message = "/proc/nowhere/out: no folder can be made there; give a path you may write"
    with pytest.raises(StorageError, match=message), one_writer(Path("/proc/nowhere/out")):
        pass


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="pipe: is a pipe, a socket or a device"):
        write_atomically(tmp_path / "pipe", "text")
    assert entries(tmp_path) == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        commit(tmp_path / "run", during=fail_with(OSError(errno.ENOSPC, "No space left on device")))
    assert str(caught.value) == (f"{tmp_path}/run: no space left on the disk; free some space or write to another disk")
    assert entries(tmp_path) == []


def test_other_system_errors_are_not_disguised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), committed_directory(tmp_path / "run") as aside:
        (aside / "missing.txt").read_text()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a.txt", "grüß")
    write_atomically(tmp_path / "a.txt", b"two")
    write_atomically(tmp_path / "b.txt", (f"{number} grüße\n" for number in range(2)))
    assert (tmp_path / "b.txt").read_text(encoding="utf-8") == "0 grüße\n1 grüße\n"
    (tmp_path / "b.txt").unlink()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(StorageError, match=r"a\.txt: no space left"):
        write_atomically(tmp_path / "a.txt", "three")
    assert (tmp_path / "a.txt").read_text() == "two"
    assert entries(tmp_path) == ["a.txt"]


def test_what_a_killed_writer_left_is_swept_and_a_living_one_is_not(tmp_path: Path) -> None:
    writer = (
        "import os, sys; from raytriever.core.store.commit import committed_directory\n"
        "with committed_directory(sys.argv[1]) as aside:\n"
        "    (aside / 'big').write_text('x'); print(aside, flush=True); sys.stdin.read(); os._exit(9)"
    )

    @contextmanager
    def writing() -> Iterator[Path]:
        with running_python(writer, tmp_path / "run") as (_, aside):
            os.utime(aside, (time.time() - 3600,) * 2)
            yield Path(aside)

    with writing() as left:
        pass
    assert left.exists()
    with writing() as folder:
        assert not left.exists()  # by the second writer
        commit(tmp_path / "run")
        assert folder.exists()
    commit(tmp_path / "run", "two", replace=True)
    assert entries(tmp_path) == ["run"]


def test_files_are_durable_before_the_manifest_and_the_manifest_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    def note(name: str, path_type: Callable[..., str]) -> None:
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given: (log.append(f"{name} {path_type(*given)}"), real(*given))[1])

    note("fsync", lambda descriptor: Path(f"/proc/self/fd/{descriptor}").readlink().name)
    note("rename", lambda source, target: Path(target).name)
    with committed_directory(tmp_path / "run") as aside:
        (aside / "inner").mkdir()
        (aside / "inner" / "a.txt").write_text("one")
        write_atomically(aside / "b.txt", "two")
    manifest = next(index for index, entry in enumerate(log) if MANIFEST in entry)
    assert {"fsync a.txt", "fsync inner", "fsync b.txt"} <= set(log[:manifest])
    assert [entry for entry in log if "b.txt" in entry] == ["fsync b.txt"]  # once
    assert not [entry for entry in log if ".lock" in entry]
    assert log[-2:] == ["rename run", f"fsync {tmp_path.name}"]
    assert manifest < len(log) - 2


def test_a_parent_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "corpus").touch()
    for use in (open_stream, open_raw, lambda path: write_atomically(Path(path), "text")):
        with pytest.raises(StorageError, match="a part of the path is a file; give a path whose parents are direct"):
            use(str(tmp_path / "corpus" / "queries.jsonl"))
