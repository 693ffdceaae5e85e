"""A tokenizer without a model, a data set in BEIR layout to be broken, and an object store."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from beir import write_beir
from servers import serving

from raytriever.data.prepare.tokenisation import Tokenisation


@pytest.fixture(scope="session")
def words_json() -> str:
    """A tokenizer of the library `tokenizers`, serialised: words and marks, split at white space, to few ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0} | {word: index for index, word in enumerate(["text", "query", "title"], start=1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


@pytest.fixture
def words(words_json: str) -> Tokenisation:
    return Tokenisation(words_json)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Forty documents, forty queries, each with its own document as the only judgement, split 30 to 10."""
    documents = [{"title": f"title {n}", "text": f"text {n} of many"} for n in range(40)]
    splits = {split: [(n, n) for n in numbers] for split, numbers in (("train", range(30)), ("test", range(30, 40)))}
    return write_beir(tmp_path / "small", documents, [f"query {n}" for n in range(40)], **splits)


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as reading takes: a listing by prefix, and objects by range."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        asked = parse_qs(split.query)
        _, bucket, *rest = unquote(split.path).split("/", 2)
        key = rest[0] if rest else ""
        if bucket != "bucket":
            self.send(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif "list-type" in asked:
            prefix = asked.get("prefix", [""])[0]
            rows = [name for name in sorted(self.objects) if name.startswith(prefix)]
            entries = "".join(
                f"<Contents><Key>{name}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
                f"<Size>{len(self.objects[name])}</Size></Contents>"
                for name in rows
            )
            listing = f"<Name>bucket</Name><KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>{entries}"
            self.send(200, f"<ListBucketResult>{listing}</ListBucketResult>".encode())
        elif key in self.objects:
            content, partly = self.objects[key], self.headers.get("Range")
            if partly:
                first, last = (int(number) for number in partly.removeprefix("bytes=").split("-"))
                content = content[first : last + 1]
            self.send(206 if partly else 200, content)
        else:
            self.send(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET

    def send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def objects() -> dict[str, bytes]:
    """What `bucket` holds: contents by key; empty until a test fills it."""
    Bucket.objects.clear()
    return Bucket.objects


@pytest.fixture
def bucket(objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The query that makes an `s3://bucket` URI mean a server on this machine, with `objects` in it."""
    for name, value in (("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_EC2_METADATA_DISABLED", "1")):
        monkeypatch.setenv(name, value)
    with serving(Bucket) as address:
        yield f"?endpoint_override={quote(address)}&scheme=http&region=here"
