"""Sources of data: folders, object stores, the hub by its own client, and prepared data sets of other nodes."""

from __future__ import annotations

import gzip
import json
import pickle
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from prepared import prepare
from servers import serving

from raytriever.core.errors import DataError, StorageError
from raytriever.data.data_sources import Source, open_stream
from raytriever.data.formats.file_blocks import parse_block, read_blocks
from raytriever.data.formats.known_formats import recognize
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import Request

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
    with pytest.raises(OSError, match="symbolic links"):
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
    with pytest.raises(DataError, match=r"dataset pydoc: .*did you mean 'pydocs'\?"):
        Source.open("pydoc")
    with pytest.raises(DataError, match="give 'pydocs', or the path or URI of a data set"):
        Source.open("/nowhere/at/all")
    with pytest.raises(DataError, match="has no files"):
        Source.open(tmp_path / "tiny")
    with pytest.raises(DataError, match="cannot be reached"):
        Source.open("gopher://host/set")


@pytest.fixture(autouse=True)
def filled(put: Callable[[str, bytes], None]) -> None:
    for name, content in BUCKET.items():
        put(name, content)


def read(source: Source, size: int, splits: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """Ids of documents, texts of queries and judged documents of a source in BEIR layout."""
    plan = recognize(source)
    assert (plan.format, {part.split for part in plan.parts} - {None}) == ("beir", set(splits))
    blocks = [(part, block) for i, part in enumerate(plan.parts) for block in read_blocks(part, i, size)]
    records = [parse_block(part, block).records for part, block in blocks]
    return (
        [row.id for record in records for row in record.documents],
        [row.text for record in records for row in record.queries],
        [row.document for record in records for row in record.judgements],
    )


def test_an_object_store_is_read_by_its_uri(bucket: str) -> None:
    source = Source.open("s3://bucket/sets/tiny" + bucket)
    assert (source.name, source.where) == ("tiny", "s3://bucket/sets/tiny" + bucket)
    assert [(file.path, file.size) for file in source.files] == [
        (name.removeprefix("sets/tiny/"), len(BUCKET[name])) for name in sorted(BUCKET)
    ]
    assert source.files[0].where == "s3://bucket/sets/tiny/corpus.jsonl" + bucket
    assert source.files[0].modified_ns > 0
    assert open_stream(source.files[-1].where).read() == b"x"
    assert read(source, 1 << 20, ("test",)) == (["d 1", "d2"], ["one?"], ["d 1"])


def test_what_an_object_store_has_not_is_one_line(bucket: str) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        Source.open("s3://bucket/none" + bucket)
    with pytest.raises(DataError) as caught:
        open_stream("s3://bucket/none.jsonl" + bucket)
    assert str(caught.value).startswith("s3://bucket/none.jsonl")
    assert "\n" not in str(caught.value)


COMMIT = "3fa1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3"
FILES = {
    ".gitattributes": b"",
    "README.md": b"# tiny",
    "corpus.jsonl": b"".join(b'{"_id": "d%d", "title": "", "text": "text %d"}\n' % (n, n) for n in range(500)),
    "queries.jsonl.gz": gzip.compress(b'{"_id": "q0", "text": "first?"}\n{"_id": "q1", "text": "second?"}\n'),
    "qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t1\n",
}
TREE = [
    {"type": "directory", "oid": "0" * 40, "size": 0, "path": "qrels"},
    *({"type": "file", "oid": "1" * 40, "size": len(content), "path": name} for name, content in FILES.items()),
]


class Hub(BaseHTTPRequestHandler):
    """`/api/datasets/NAME[/revision/REVISION]`, `.../tree/...`, `/datasets/NAME/resolve/...`."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        api, raw = "/api/datasets/org/tiny", f"/datasets/org/tiny/resolve/{COMMIT}/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            about = {"_id": "1", "id": "org/tiny", "sha": COMMIT, "private": False, "tags": [], "downloads": 0}
            self.send(200, json.dumps(about).encode())
        elif path.startswith(f"{api}/revision/"):
            self.send(404, code="RevisionNotFound")
        elif path.startswith(f"{api}/tree/{COMMIT}"):
            self.send(200, json.dumps(self.tree(path.removeprefix(f"{api}/tree/{COMMIT}").strip("/"))).encode())
        elif path.startswith(raw) and path.removeprefix(raw) in FILES:
            self.send(200, FILES[path.removeprefix(raw)])
        else:
            is_other = path.startswith("/api/datasets/") and "tiny" not in path
            self.send(404, code="RepoNotFound" if is_other else "EntryNotFound")

    do_HEAD = do_GET

    def tree(self, folder: str) -> list[dict[str, object]]:
        below = [entry for entry in TREE if str(entry["path"]).startswith(f"{folder}/" if folder else "")]
        if "recursive=true" in self.path.lower():
            return below
        return [entry for entry in below if "/" not in str(entry["path"])[len(folder) :].strip("/")]

    def send(self, status: int, content: bytes = b"", code: str = "") -> None:
        if asked := self.headers.get("range"):
            begin, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            status, content = 206, content[begin : last + 1]
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with serving(Hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", f"http://{address}")
        yield


@pytest.mark.usefixtures("hub")
def test_a_data_set_of_the_hub_is_listed_pinned_and_read() -> None:
    source = Source.open("hf://datasets/org/tiny")
    assert source.name == "tiny"
    assert source.where == f"hf://datasets/org/tiny@{COMMIT}"
    assert [(file.path, file.size) for file in source.files] == [
        (name, len(FILES[name])) for name in ("README.md", "corpus.jsonl", "qrels/test.tsv", "queries.jsonl.gz")
    ]
    assert source.files[2].where == f"hf://datasets/org/tiny@{COMMIT}/qrels/test.tsv"
    documents, queries, judged = read(source, 4096, ("test",))
    assert documents == [f"d{n}" for n in range(500)]
    assert queries == ["first?", "second?"]
    assert judged == ["d0", "d1"]
    folder = Source.open("hf://datasets/org/tiny@main/qrels")
    assert [file.path for file in folder.files] == ["test.tsv"]
    [file] = Source.open("hf://datasets/org/tiny/corpus.jsonl").files
    assert (file.path, file.where) == ("corpus.jsonl", f"hf://datasets/org/tiny@{COMMIT}/corpus.jsonl")


@pytest.mark.usefixtures("hub")
def test_a_missing_data_set_of_the_hub_is_one_line() -> None:
    for name, reported in (
        ("hf://datasets/org/none", "the hub refused the request (404 "),
        ("hf://datasets/org/tiny@v9", "; check the name, the revision and HF_TOKEN"),
        ("hf://datasets/org/tiny/none", "no such file or folder"),
        ("hf://org/tiny", "not an address on the hub; write hf://datasets/ORG/NAME"),
    ):
        with pytest.raises(DataError) as caught:
            Source.open(name)
        assert reported in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"the hub cannot be reached .*give the path of a local copy"):
        Source.open("hf://datasets/org/tiny")


@pytest.fixture
def uri(
    small: Path, words: Tokenization, put: Callable, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A prepared data set in an object store, and a node that has nothing."""
    own = prepare(Request(str(small), words), output=tmp_path / "own")
    for file in own.rglob("*"):
        if file.is_file():
            put(f"sets/own/{file.relative_to(own).as_posix()}", file.read_bytes())
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "node"))
    monkeypatch.setattr(
        "raytriever.core.store.object_stores.newest", lambda: time.time_ns() + 10**10
    )  # the objects are old
    return "s3://bucket/sets/own" + bucket


def test_a_prepared_data_set_is_copied_once(uri: str, small: Path, words: Tokenization, tmp_path: Path) -> None:
    dataset = open_dataset(uri, ["train"], tokenization=words)
    assert dataset.digest == open_dataset(small, ["train"]).digest
    assert dataset.location == uri
    assert dataset.tokens is not None
    assert dataset.passage_text(3) == "title 3 text 3 of many"
    copies = {file: file.stat().st_ino for file in (tmp_path / "node" / "remote").rglob("*") if file.is_file()}
    assert open_dataset(uri, ["train"], tokenization=words).digest == dataset.digest
    assert copies == {file: file.stat().st_ino for file in copies}
    next(iter(copies)).unlink()
    assert open_dataset(uri, ["train"]).digest == dataset.digest


def test_a_manifest_that_leads_elsewhere_is_refused(uri: str, put: Callable, tmp_path: Path) -> None:
    manifest = json.loads((tmp_path / "own" / "manifest.json").read_text())
    files = manifest["files"]
    before = {file for file in tmp_path.rglob("*") if "node" not in file.parts}
    for name in ("../../own.sh", "/etc/own", "documents/../../x"):
        changed = {**manifest, "files": {**files, name: files["documents.hashes.npy"]}}
        put("sets/own/manifest.json", json.dumps(changed).encode())
        with pytest.raises(StorageError, match="outside of it"):
            open_dataset(uri, ["train"])
    assert {file for file in tmp_path.rglob("*") if "node" not in file.parts} == before


def test_a_file_that_is_not_the_manifests_is_refused(uri: str, put: Callable, tmp_path: Path) -> None:
    file = next((tmp_path / "own" / "documents").rglob("*.arrow"))
    whole = file.read_bytes()
    for content in (whole + b"more", whole[:-1], whole[:-1] + b"!"):
        put(f"sets/own/{file.relative_to(tmp_path / 'own').as_posix()}", content)
        with pytest.raises(
            StorageError, match=r"s3://bucket.*/sets/own/documents/.*: (is incomplete|(is damaged or|has) changed): "
        ):
            open_dataset(uri, ["train"])
