"""Results in an object store: what other machines see, and who may write.

The store is a real S3 server. A machine is a folder of copies of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from encoding_case import plan_of, write_shards

from raytriever.api.models import path_of
from raytriever.core.errors import ConfigError, DataError, StorageError
from raytriever.core.paths import DATASET, EMBEDDINGS, MODEL, NEGATIVES, PATH, SCORES, runs_folder
from raytriever.core.store import lease, lock_owner, object_stores, remote_folders
from raytriever.core.store import lock as locking
from raytriever.core.store.cache import cache_folder
from raytriever.core.store.commit import (
    committed_directory,
    complete,
    is_committed,
    put_file,
    read_manifest,
    remove,
    write_atomically,
)
from raytriever.core.store.disk import check_writable
from raytriever.core.store.lock import InUseError, acquire, check_owner
from raytriever.core.store.object_stores import address_of
from raytriever.core.store.remote_folders import copy_of
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.requested_models import EvaluatedModel
from raytriever.evaluation.system_names import SYSTEM
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter


def write(path: Path, content: str = "content", name: str = "data.txt") -> None:
    with committed_directory(path, {"kind": "test"}, replace=True) as folder:
        (folder / name).write_text(content)


@pytest.mark.parametrize("uri", ["s3://bucket/a b/c", "gs://bucket", "s3://bucket/x?endpoint_override=h:1&scheme=http"])
def test_an_address_and_its_copy_name_each_other(uri: str) -> None:
    assert address_of(copy_of(uri)) == uri
    assert address_of("/elsewhere/s3/bucket") is None
    assert copy_of("a/path") == "a/path"


@pytest.mark.parametrize(
    "uri", ["s3:///x", "http://host/x", "s3://b/../x", "s3://b/s3://c/x", "ftp://b/x", "s3://?region=b"]
)
def test_an_address_that_is_no_path_in_a_bucket_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a path in a bucket|is in no object store"):
        copy_of(uri)


def test_settings_and_arguments_that_name_paths_take_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "s3://bucket/x"
    for read in (path_of, PATH, MODEL, EMBEDDINGS, NEGATIVES):
        assert address_of(read(uri)) == uri
    assert SCORES(f"{uri}/a,{uri}/b") == f"{copy_of(uri)}/a,{copy_of(uri)}/b"
    assert SYSTEM(f"mine={uri}") == f"mine={copy_of(uri)}"
    assert DATASET(uri) == uri  # rows are read where they are
    monkeypatch.setenv("RAYTRIEVER_RUNS", uri)
    monkeypatch.setenv("RAYTRIEVER_CACHE", uri)
    assert address_of(runs_folder()) == address_of(cache_folder()) == uri


def test_another_machine_reads_what_was_committed(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_folders, "SMALL_BYTES", 10)
    write(path_of(uri), "more than ten bytes")
    machine("two")
    assert not path_of(uri).exists()
    assert list(read_manifest(path_of(uri), verify=None)["files"]) == ["data.txt"]
    assert not (path_of(uri) / "data.txt").exists()  # a large file waits until somebody reads it
    read_manifest(path_of(uri))
    assert (path_of(uri) / "data.txt").read_text() == "more than ten bytes"


@pytest.mark.parametrize("largest", [1 << 20, 1])
def test_a_new_version_replaces_the_old_one_everywhere(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(remote_folders, "SMALL_BYTES", largest)
    for version, name in (("old", "old.txt"), ("newer", "new.txt"), ("newest", "new.txt")):
        machine("one")
        write(path_of(uri), version, name)
        machine("two")
        complete(path_of(uri))
        assert sorted(os.listdir(path_of(uri))) == sorted(["manifest.json", name])
        read_manifest(path_of(uri))
        assert (path_of(uri) / name).read_text() == version


@pytest.mark.parametrize("uploads", [0, 1])
def test_a_directory_whose_upload_was_interrupted_does_not_exist(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch, uploads: int
) -> None:
    write(path_of(uri), "old")
    upload, left = remote_folders._upload, [uploads]

    def until_killed(file: Path, before: tuple[int, int] | None = None) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        upload(file, before)

    with monkeypatch.context() as patched:
        patched.setattr(remote_folders, "_upload", until_killed)
        patched.setattr(remote_folders, "TRANSFERS", 1)
        with pytest.raises(KeyboardInterrupt):
            write(path_of(uri), "new", "more.txt")
    machine("two")
    assert not is_committed(path_of(uri))
    write(path_of(uri), "newer")
    machine("three")
    assert (read_manifest(path_of(uri))["meta"], os.listdir(path_of(uri).parent)) == ({"kind": "test"}, ["mine"])
    assert (path_of(uri) / "data.txt").read_text() == "newer"


def test_files_are_written_and_removed_on_every_machine(machine: Callable[[str], None], uri: str) -> None:
    write_atomically(path_of(uri) / "a.json", "1")
    write(path_of(uri) / "part")
    machine("two")
    complete(path_of(uri))
    assert (path_of(uri) / "a.json").read_text() == "1"
    remove(path_of(uri) / "part")
    remove(path_of(uri) / "a.json")
    machine("one")
    complete(path_of(uri))
    assert not path_of(uri).exists()


def test_machines_write_the_shards_of_one_store_of_embeddings(machine: Callable[[str], None], uri: str) -> None:
    embeddings = np.arange(320, dtype=np.float32).reshape(40, 8)
    plan = plan_of(embeddings, 16)
    machine("two")
    StoreWriter(path_of(uri), plan).begin()
    write_shards(StoreWriter(path_of(uri), plan), embeddings, [2])
    machine("one")
    writer = StoreWriter(path_of(uri), plan)
    writer.begin()
    write_shards(writer, embeddings, [0, 1])
    assert (writer.finish().array() == embeddings).all()
    machine("three")
    complete(path_of(uri))
    assert (EmbeddingStore.open(path_of(uri)).array() == embeddings).all()
    assert sorted(os.listdir(path_of(uri))) == sorted([plan.key[:16], "manifest.json"])


def test_an_object_that_is_a_folder_too_is_refused(machine: Callable[[str], None], uri: str) -> None:
    write(path_of(uri))
    object_stores.write_object(path_of(uri), b"an object")
    machine("two")
    with pytest.raises(StorageError, match="is both an object and a folder in the store"):
        complete(path_of(uri))


@pytest.fixture
def wrong_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock of this machine wrong by some seconds."""
    seconds, nanoseconds = time.time, time.time_ns

    def wrong_by(offset: float) -> None:
        monkeypatch.setattr(time, "time", lambda: seconds() + offset)
        monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + int(offset * 1e9))

    return wrong_by


@pytest.mark.parametrize("offset", [600, -600])
def test_a_second_machine_is_refused_until_the_first_has_ended(
    machine: Callable[[str], None],
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    wrong_clock: Callable[[float], None],
    offset: float,
) -> None:
    monkeypatch.setattr(locking, "LEASE_GRACE_SECONDS", 0.5)
    first = acquire(path_of(uri))
    machine("two")
    wrong_clock(offset)
    with pytest.raises(InUseError, match=rf"in use by .* pid {os.getpid()}"):
        acquire(path_of(uri))
    machine("one")
    first.release()
    machine("two")
    acquire(path_of(uri)).release()


@pytest.mark.parametrize(
    ("seconds", "full_fraction"), [(remote_folders.UNUSED_SECONDS, 1.0), (remote_folders.IN_USE_SECONDS, 0.0)]
)
def test_large_files_that_nobody_has_read_for_a_week_leave_the_copies_and_sooner_from_a_full_disk(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch, seconds: float, full_fraction: float
) -> None:
    monkeypatch.setattr(remote_folders, "FULL_FRACTION", full_fraction)  # the disk is full, or never
    names = ["used", "unused", "written"]
    for name in names:
        with committed_directory(path_of(uri) / name) as folder:
            (folder / "large").write_bytes(bytes(remote_folders.SMALL_BYTES + 1))
            (folder / "small").write_text(name)
    long_ago = time.time() - seconds - 60
    for name in names:
        os.utime(path_of(uri) / name, (long_ago, long_ago))
    read_manifest(path_of(uri) / "used")
    lock = acquire(path_of(uri) / "written")
    os.utime(path_of(uri) / "written", (long_ago, long_ago))
    remote_folders.remove_unused(object_stores.copies_folder())
    lock.release()
    left = [name for name in names if (path_of(uri) / name / "large").exists()]
    assert left == ["used", "written"]
    assert (path_of(uri) / "unused" / "small").read_text() == "unused"
    read_manifest(path_of(uri) / "unused", verify=True)
    assert (path_of(uri) / "unused" / "large").exists()


def test_a_full_disk_is_not_a_store_that_does_not_answer(
    machine: Callable[[str], None], uri: str, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_stores.write_object(path_of(uri) / "file", bytes(100_000))
    monkeypatch.setenv(object_stores.COPIES, str(full_disk))
    with pytest.raises(StorageError) as caught:
        remote_folders.pull(path_of(uri))
    assert str(caught.value) == (
        f"{full_disk}: the copies of s3://bucket cannot be written or read (No space left on device); "
        "free some space there, or set RAYTRIEVER_COPIES to another folder"
    )


@pytest.mark.parametrize("offset", [600, -600])
def test_a_file_that_changes_twice_in_a_second_is_read_again(
    machine: Callable[[str], None], uri: str, wrong_clock: Callable[[float], None], offset: float
) -> None:
    wrong_clock(offset)
    times = set[int]()
    while len(times) != 1:  # until both are of one second, by the clock of the store
        times = set()
        for text in ("a", "b"):
            machine("one")
            object_stores.write_object(path_of(uri) / "file", text.encode())
            times.add(object_stores.list_objects(path_of(uri))["file"])
            machine("two")
            remote_folders.pull(path_of(uri))
            assert (path_of(uri) / "file").read_text() == text


def test_an_address_of_data_that_is_not_there_is_refused_before_anything_is_loaded(
    machine: Callable[[str], None], uri: str
) -> None:
    write_atomically(path_of(uri) / "data" / "corpus.jsonl", "{}\n")
    DATASET.check(f"{uri}/data", "dataset")
    with pytest.raises(DataError, match=rf"dataset {uri}/dat: no data set of this name"):
        DATASET.check(f"{uri}/dat", "dataset")


def test_a_check_of_a_path_copies_nothing(machine: Callable[[str], None], uri: str) -> None:
    write_atomically(path_of(uri) / "table" / "a.txt", "a row")
    machine("two")
    NEGATIVES.check(copy_of(f"{uri}/table"), "negatives_table")
    assert not (path_of(uri) / "table").exists()
    NEGATIVES.check(copy_of(f"{uri}/table"), "negatives_table", fetch=True)
    assert (path_of(uri) / "table" / "a.txt").read_text() == "a row"


def test_prepared_data_with_large_shards_is_read_on_another_machine(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch, tiny_dataset: Path
) -> None:
    monkeypatch.setattr(remote_folders, "SMALL_BYTES", 10)
    monkeypatch.setenv("RAYTRIEVER_CACHE", f"{uri}/cache")
    texts = []
    for name in ("one", "two"):
        machine(name)
        dataset = open_dataset(tiny_dataset, ["train"])
        texts.append([*dataset.documents.texts[:], *dataset.queries.texts[:]])
        [prepared] = (address_of(path.parent) for path in cache_folder().rglob("manifest.json"))
    assert texts[0] == texts[1]
    machine("three")
    again = open_dataset(copy_of(str(prepared)), ["train"])
    assert [*again.documents.texts[:], *again.queries.texts[:]] == texts[0]


def test_errors_and_models_of_an_evaluation_have_the_address(machine: Callable[[str], None], uri: str) -> None:
    with pytest.raises(DataError, match=rf"embeddings {uri}: no such embeddings"):
        EMBEDDINGS.check(copy_of(uri), "embeddings")
    error = StorageError("already exists", copy_of(uri), f"remove {copy_of(uri)}")
    assert (error.where, error.remedy) == (uri, f"remove {uri}")
    assert EvaluatedModel("name", ModelConfig(copy_of(uri))).location == uri


def test_a_bucket_without_a_path_is_no_output(machine: Callable[[str], None]) -> None:
    with pytest.raises(StorageError, match=r"^s3://bucket: is a whole bucket; give the address of a path in it$"):
        acquire(copy_of("s3://bucket"))


@pytest.mark.slow
def test_google_cloud_without_credentials_is_refused() -> None:
    """By itself PyArrow would try for 15 minutes, and no signal would end it."""
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"^gs://raytriever-test/x.*: the store refuses \(.*access token"):
        check_writable(copy_of("gs://raytriever-test/x"))
    with pytest.raises(StorageError, match=r"^gs://raytriever-test/x.*: the store refuses \(.*access token"):
        open_dataset("gs://raytriever-test/x", ["test"])
    assert time.monotonic() - began < 60


def test_what_is_written_during_an_upload_is_uploaded_by_the_next(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = acquire(path_of(uri))
    path_of(uri).mkdir()
    (path_of(uri) / "log").write_text("1\n")
    copy_in = remote_folders._copy_in

    def write_meanwhile(file: Path, *words: object) -> None:
        copy_in(file, *words)  # type: ignore[arg-type]
        (path_of(uri) / "log").write_text("1\n2\n")
        (path_of(uri) / "new").write_text("new")

    monkeypatch.setattr(remote_folders, "_copy_in", write_meanwhile)
    lock.push_changes()
    monkeypatch.setattr(remote_folders, "_copy_in", copy_in)
    lock.release()
    machine("two")
    complete(path_of(uri))
    assert {file.name: file.read_text() for file in path_of(uri).iterdir()} == {"log": "1\n2\n", "new": "new"}


def test_a_large_file_of_an_unfinished_directory_is_uploaded_once(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease uploads what has changed at any time: while the file is written, while it is uploaded, and later."""
    path, uploads, is_pushing, copy_in = path_of(uri), list[str](), list[bool](), remote_folders._copy_in

    def counted(file: Path, *words: object) -> None:
        uploads.append(str(words[1]).rpartition("/")[2])
        copy_in(file, *words)  # type: ignore[arg-type]
        push_meanwhile()

    def save(file: Path) -> None:
        file.write_bytes(bytes(2 << 20))
        push_meanwhile()

    def push_meanwhile() -> None:
        if not is_pushing:
            is_pushing.append(True)
            lock.push_changes()
            is_pushing.clear()

    monkeypatch.setattr(remote_folders, "_copy_in", counted)
    lock = acquire(path)
    (path / "work").mkdir(parents=True)
    put_file(path / "data.npy", path / "work", save)
    push_meanwhile()
    assert uploads == ["data.npy"]
    (path / "data.npy").write_bytes(bytes(3 << 20))
    is_pushing.append(True)
    lock.release()
    assert uploads == ["data.npy", "data.npy"]
    machine("two")
    complete(path)
    assert (path / "data.npy").stat().st_size == 3 << 20


def test_logs_of_a_writer_are_uploaded(machine: Callable[[str], None], uri: str) -> None:
    lock = acquire(path_of(uri))
    path_of(uri).mkdir()
    log, gone = path_of(uri) / "steps.jsonl", path_of(uri) / "gone.txt"
    log.write_text("1\n")
    gone.write_text("soon")
    lock.push_changes()
    log.write_text("1\n2\n")
    gone.unlink()
    lock.push_changes()
    machine("two")
    complete(path_of(uri))
    assert (os.listdir(path_of(uri)), (path_of(uri) / "steps.jsonl").read_text()) == (["steps.jsonl"], "1\n2\n")
    machine("one")
    log.write_text("1\n2\n3\n")
    remote_folders.pull(path_of(uri).parent)  # as a listing of runs does, while the run is written
    assert log.read_text() == "1\n2\n3\n"
    lock.release()
    machine("two")
    again = acquire(path_of(uri))
    assert (path_of(uri) / "steps.jsonl").read_text() == "1\n2\n3\n"
    again.release()


@pytest.mark.parametrize("age", [0.0, 100.0])
def test_the_lease_of_a_silent_machine_ends_by_the_clock_of_the_store(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch, age: float
) -> None:
    monkeypatch.setattr(locking, "LEASE_GRACE_SECONDS", 0.5)
    file = locking.lock_file_of(path_of(uri))
    object_stores.write_object(
        file / "other", lock_owner.record_of(lock_owner.Owner("far", 1, "raytriever train", 0.0, "other"))
    )
    listed = object_stores.list_objects
    monkeypatch.setattr(
        object_stores,
        "list_objects",
        lambda path: {name: at - int(age * 1e9) * (name == "other") for name, at in listed(path).items()},
    )
    if age < lease.STALE_SECONDS:
        with pytest.raises(InUseError, match="in use by 'raytriever train' on host far"):
            acquire(path_of(uri))
        return
    acquire(path_of(uri)).release()


def test_at_most_one_of_many_gets_a_lease(machine: Callable[[str], None], uri: str) -> None:
    file = locking.lock_file_of(path_of(uri))
    for _ in range(4):
        with ThreadPoolExecutor(4) as threads:
            asked = threads.map(lambda token: lease.ask(file, token, b"{}", lambda record: False), map(str, range(4)))
        assert sum(other is None for other in asked) <= 1
        for name in object_stores.list_objects(file):
            object_stores.delete_object(file / name)


def test_a_command_that_has_lost_its_lease_commits_nothing(machine: Callable[[str], None], uri: str) -> None:
    lock = acquire(path_of(uri))
    for name in object_stores.list_objects(locking.lock_file_of(path_of(uri))):
        object_stores.delete_object(locking.lock_file_of(path_of(uri)) / name)
    with pytest.raises(InUseError, match="the lease of this command has ended"):
        write(path_of(uri) / "part")
    with pytest.raises(InUseError):
        check_owner(path_of(uri))
    lock.release()
