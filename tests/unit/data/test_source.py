from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from urllib.parse import quote

import pytest

from raytriever.data.formats.chunks import parse_chunk, read_chunks
from raytriever.data.formats.recognise import recognise
from raytriever.data.sources import Source, open_raw, open_stream
from raytriever.errors import DataError, StorageError

BUCKET = {
    "sets/tiny/corpus.jsonl": b'{"_id": "d 1", "text": "one"}\n{"_id": "d2", "text": "two"}\n',
    "sets/tiny/queries.jsonl.gz": gzip.compress(b'{"_id": "q1", "text": "one?"}\n'),
    "sets/tiny/qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq1\td 1\t1\n",
    "sets/tiny/with space/a+b.txt": b"x",
}


def test_a_folder_is_listed_by_path(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a.jsonl", ".hidden", "_SUCCESS", "b/.cache/x"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_text("12345")
    source = Source.open(tmp_path / "set")
    assert (source.name, source.where) == ("set", str(tmp_path / "set"))
    assert [(file.path, file.where, file.size) for file in source.files] == [
        ("a.jsonl", str(tmp_path / "set" / "a.jsonl"), 5),
        ("b/2.jsonl", str(tmp_path / "set" / "b" / "2.jsonl"), 5),
    ]
    assert source.files[0].modified_ns == (tmp_path / "set" / "a.jsonl").stat().st_mtime_ns
    assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301
    assert Source.open(f"file://{tmp_path}/set") == source


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    for name in ("set/a", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.jsonl").write_text("12345")
    for name in ("set/linked", "set/twice"):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    files = [file.path for file in Source.open(tmp_path / "set").files]
    assert files == ["a/1.jsonl", "linked/1.jsonl", "twice/1.jsonl"]
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "set")
    with pytest.raises(StorageError, match="symbolic links lead in a circle"):
        Source.open(tmp_path / "set")


def test_what_is_listed_means_the_same_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.jsonl").write_text("x")
    monkeypatch.chdir(tmp_path)
    (file,) = Source.open("set/a.jsonl").files
    monkeypatch.chdir("/")
    with open_stream(file.where) as stream:
        assert stream.read() == b"x"
    assert file.path == "a.jsonl"


def test_names_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "me@home ?x=1%20"
    folder.mkdir()
    (folder / "a?b.jsonl.gz").write_bytes(gzip.compress(b"x"))
    source = Source.open(folder)
    assert source.name == "me@home ?x=1%20"
    with open_stream(source.files[0].where) as stream:
        assert stream.read() == b"x"
    assert Source.open("file://" + quote(str(folder))) == source


def test_a_wrong_path_says_what_would_be_right(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    with pytest.raises(DataError, match=r"no data set of this name.*did you mean '.*/tiny'\?"):
        Source.open(tmp_path / "tinny")
    with pytest.raises(DataError, match=r"--dataset pydoc: .*did you mean 'pydocs'\?"):
        Source.open("pydoc")
    with pytest.raises(DataError, match="give 'pydocs', or the path or URI of a data set"):
        Source.open("/nowhere/at/all")
    with pytest.raises(DataError, match="no file in it"):
        Source.open(tmp_path / "tiny")
    with pytest.raises(DataError, match="cannot be reached"):
        Source.open("gopher://host/set")


def test_streams_unpack_and_can_be_closed(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    with open_stream(str(tmp_path / "a.gz")) as stream:
        assert list(stream) == [b"one\n", b"two\n"]
    with open_raw(str(tmp_path / "a.gz")) as raw:
        assert gzip.decompress(raw.read()) == b"one\ntwo\n"


@pytest.fixture(autouse=True)
def filled(objects: dict[str, bytes]) -> None:
    objects.update(BUCKET)


def test_an_object_store_is_read_by_its_uri(bucket: str) -> None:
    source = Source.open("s3://bucket/sets/tiny" + bucket)
    assert (source.name, source.where) == ("tiny", "s3://bucket/sets/tiny" + bucket)
    assert [(file.path, file.size) for file in source.files] == [
        (name.removeprefix("sets/tiny/"), len(BUCKET[name])) for name in sorted(BUCKET)
    ]
    assert source.files[0].where == "s3://bucket/sets/tiny/corpus.jsonl" + bucket
    assert source.files[0].modified_ns > 0
    assert open_stream(source.files[-1].where).read() == b"x"
    plan = recognise(source)
    assert plan.format == "beir"
    results = [parse_chunk(part, chunk).records for i, part in enumerate(plan.parts) for chunk in read_chunks(part, i)]
    assert [row.id for records in results for row in records.documents] == ["d 1", "d2"]
    assert [row.text for records in results for row in records.queries] == ["one?"]
    assert [row.document for records in results for row in records.judgements] == ["d 1"]


def test_what_an_object_store_has_not_is_one_line(bucket: str) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        Source.open("s3://bucket/none" + bucket)
    with pytest.raises(DataError) as caught:
        open_stream("s3://bucket/none.jsonl" + bucket)
    assert str(caught.value).startswith("s3://bucket/none.jsonl")
    assert "\n" not in str(caught.value)
