"""Shards of data sets, written by Ray Data in a real session."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from beir import write_beir
from prepared import prepare

from raytriever.cluster.ingest import run_in_ray_tasks
from raytriever.core.errors import DataError
from raytriever.core.store.commit import read_manifest
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import Request, in_this_process

ROWS = 6_000


@pytest.fixture
def folder(tmp_path: Path, own_cache: Path) -> Path:
    """Documents of half a kilobyte, so that there are several chunks."""
    texts, queries = [f"{n} " + "word " * 100 for n in range(ROWS)], [str(n) for n in range(9)]
    folder = write_beir(tmp_path / "numbers", texts, queries, train=[(n, ROWS - 1 - n) for n in range(9)])
    corpus = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    corpus.unlink()
    return folder


@pytest.fixture(scope="module")
def words() -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "word": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


@pytest.mark.slow
def test_ray_writes_what_one_process_writes(session: None, folder: Path, words: str, tmp_path: Path) -> None:
    request = Request(str(folder), Tokenization(words))
    places = [prepare(request, run, tmp_path / run.__name__) for run in (in_this_process, run_in_ray_tasks)]
    alone, ray = ({name: file["sha256"] for name, file in read_manifest(path)["files"].items()} for path in places)
    assert alone == ray
    assert sum(name.endswith(".arrow") for name in ray) > 3


@pytest.mark.slow
def test_rows_that_kill_three_tasks_are_named(session: None, folder: Path, words: str) -> None:
    from deadly import SKULL, Deadly

    with gzip.open(folder / "corpus.jsonl.gz", "at") as stream:
        stream.write(json.dumps({"_id": "skull", "text": SKULL}) + "\n" + json.dumps({"_id": "z", "text": "z"}) + "\n")
    with pytest.raises(DataError, match=rf"corpus\.jsonl\.gz, rows [\d,]+ to {ROWS + 2:,}: 3 processes died while"):
        open_dataset(folder, ["train"], tokenization=Deadly(words), run=run_in_ray_tasks)


@pytest.mark.slow
def test_a_broken_file_is_a_user_error_and_leaves_no_file(session: None, folder: Path, tmp_path: Path) -> None:
    file = folder / "corpus.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz: the gzip file is broken after row \d+") as caught:
        prepare(Request(str(folder)), run_in_ray_tasks)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cache/datasets/*"))
