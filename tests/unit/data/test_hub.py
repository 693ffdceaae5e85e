"""The hub through its own client, against a server on this machine that answers as the hub does."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from raytriever.data.formats.chunks import parse_chunk, read_chunks
from raytriever.data.formats.recognise import recognise
from raytriever.data.sources import Source
from raytriever.errors import DataError

COMMIT = "3fa1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3"
FILES = {
    ".gitattributes": b"",
    "README.md": b"# tiny",
    "corpus.jsonl": b"".join(b'{"_id": "d%d", "title": "", "text": "text %d"}\n' % (n, n) for n in range(500)),
    "queries.jsonl.gz": gzip.compress(b'{"_id": "q0", "text": "first?"}\n{"_id": "q1", "text": "second?"}\n'),
    "qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t1\n",
}


class Hub(BaseHTTPRequestHandler):
    """`/api/datasets/NAME[/revision/REVISION]`, `.../tree/...`, `.../paths-info/...`, `/datasets/NAME/resolve/...`."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        api, raw = "/api/datasets/org/tiny", f"/datasets/org/tiny/resolve/{COMMIT}/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self.answer({"_id": "1", "id": "org/tiny", "sha": COMMIT, "private": False, "tags": [], "downloads": 0})
        elif path.startswith(f"{api}/revision/"):
            self.refuse("RevisionNotFound")
        elif path.startswith(f"{api}/tree/{COMMIT}"):
            self.answer(self.tree(path.removeprefix(f"{api}/tree/{COMMIT}").strip("/")))
        elif path.startswith(raw) and path.removeprefix(raw) in FILES:
            self.send(FILES[path.removeprefix(raw)])
        else:
            self.refuse("RepoNotFound" if path.startswith("/api/datasets/") and "tiny" not in path else "EntryNotFound")

    do_HEAD = do_GET

    def tree(self, folder: str) -> list[dict[str, object]]:
        recursive = "recursive=true" in self.path.lower()
        results: dict[str, dict[str, object]] = {}
        for name, content in FILES.items():
            if folder and not name.startswith(folder + "/"):
                continue
            below = name.removeprefix(folder).strip("/").split("/")
            for depth in range(1, len(below)):
                path = "/".join([*([folder] if folder else []), *below[:depth]])
                results[path] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
            if recursive or len(below) == 1:
                results[name] = {"type": "file", "oid": "1" * 40, "size": len(content), "path": name}
        return list(results.values())

    def send(self, content: bytes) -> None:
        begin, end = 0, len(content)
        if asked := self.headers.get("range"):
            begin, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            end = min(end, last + 1)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[begin:end])

    def answer(self, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    yield address
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_data_set_of_the_hub_is_listed_pinned_and_read(hub: str) -> None:
    source = Source.open("hf://datasets/org/tiny")
    assert source.name == "tiny"
    assert source.where == f"hf://datasets/org/tiny@{COMMIT}"
    assert [(file.path, file.size) for file in source.files] == [
        (name, len(FILES[name])) for name in ("README.md", "corpus.jsonl", "qrels/test.tsv", "queries.jsonl.gz")
    ]
    assert source.files[2].where == f"hf://datasets/org/tiny@{COMMIT}/qrels/test.tsv"
    plan = recognise(source)
    assert (plan.format, plan.splits) == ("beir", ("test",))
    results = [
        parse_chunk(part, chunk).records for i, part in enumerate(plan.parts) for chunk in read_chunks(part, i, 4096)
    ]
    assert len(results) > 3
    assert [row.id for records in results for row in records.documents] == [f"d{n}" for n in range(500)]
    assert [row.text for records in results for row in records.queries] == ["first?", "second?"]
    assert [row.document for records in results for row in records.judgements] == ["d0", "d1"]


def test_a_folder_and_a_file_of_the_hub(hub: str) -> None:
    folder = Source.open("hf://datasets/org/tiny@main/qrels")
    assert [file.path for file in folder.files] == ["test.tsv"]
    file = Source.open("hf://datasets/org/tiny/corpus.jsonl")
    assert [(one.path, one.where) for one in file.files] == [
        ("corpus.jsonl", f"hf://datasets/org/tiny@{COMMIT}/corpus.jsonl")
    ]


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("hf://datasets/org/none", "the hub has no such data set, or you may not read it; check its name"),
        ("hf://datasets/org/tiny@v9", "the data set has no revision 'v9'"),
        ("hf://datasets/org/tiny/none", "no such file or folder"),
        ("hf://org/tiny", "not an address on the hub; write hf://datasets/ORG/NAME"),
    ],
)
def test_a_missing_data_set_of_the_hub_is_one_line(hub: str, name: str, reported: str) -> None:
    with pytest.raises(DataError) as caught:
        Source.open(name)
    assert reported in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"the hub cannot be reached .*give the path of a local copy"):
        Source.open("hf://datasets/org/tiny")
