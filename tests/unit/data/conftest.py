"""A tokenizer without a model, a data set in BEIR layout to be broken, and an object store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from beir import write_beir
from object_store import WRITER, ObjectStore
from pyarrow.fs import S3FileSystem

from raytriever.data.prepare.corpus_tokenization import Tokenization


@pytest.fixture(scope="session")
def words_json() -> str:
    """A tokenizer of the library `tokenizers`, serialized: words and marks, split at white space, to few ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0} | {word: index for index, word in enumerate(["text", "query", "title"], start=1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


@pytest.fixture
def words(words_json: str) -> Tokenization:
    return Tokenization(words_json)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Forty documents, forty queries, each with its own document as the only judgement, split 30 to 10."""
    documents = [{"title": f"title {n}", "text": f"text {n} of many"} for n in range(40)]
    splits = {split: [(n, n) for n in numbers] for split, numbers in (("train", range(30)), ("test", range(30, 40)))}
    return write_beir(tmp_path / "small", documents, [f"query {n}" for n in range(40)], **splits)


@pytest.fixture
def bucket(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """The query that makes an `s3://bucket` URI mean a server on this machine."""
    server.use(monkeypatch)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    return f"?endpoint_override={quote(server.endpoint.removeprefix('http://'))}&scheme=http&region=us-east-1"


@pytest.fixture
def put(server: ObjectStore) -> Callable[[str, bytes], None]:
    """Write an object of the bucket."""
    key, secret = WRITER
    system = S3FileSystem(
        access_key=key, secret_key=secret, endpoint_override=server.endpoint, allow_bucket_creation=True
    )
    system.create_dir("bucket")

    def write(name: str, content: bytes) -> None:
        with system.open_output_stream(f"bucket/{name}", compression=None) as stream:
            stream.write(content)

    return write
