"""Preparation: texts and tokens at the same positions, once, also after broken files and killed processes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deadly import SKULL, STONE, Deadly
from prepared import prepare

from raytriever.core.errors import DataError, StorageError
from raytriever.core.store import commit
from raytriever.core.store.commit import read_manifest
from raytriever.data.data_settings import DataConfig
from raytriever.data.prepare import corpus_tokenization
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import lent_dev_line, open_all_splits, open_dataset
from raytriever.data.prepare.prepare_dataset import Request, Runner, in_processes, in_this_process
from raytriever.data.prepare.text_shards import ShardSummary, ShardWriter
from raytriever.training.training_data import TrainingData


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, own_cache: Path) -> Path:
    return tmp_path / "cache"


def add(file: Path, **row: object) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")


def files_of(path: Path) -> dict[str, str]:
    return {name: entry["sha256"] for name, entry in read_manifest(path)["files"].items()}


def recorder() -> tuple[list[str], Callable[[str], None]]:
    lines: list[str] = []
    return lines, lines.append


def test_texts_and_tokens_stand_at_the_same_positions(small: Path, words: Tokenization) -> None:
    dataset = open_dataset(small, ["train", "test"], tokenization=replace(words, query_prompt="title "))
    assert dataset.tokens is not None
    assert dataset.passages()[7] == "title 7 text 7 of many"
    assert dataset.tokens.documents.take(np.array([7]))[0].tolist() == [3, 0, 1, 0, 0, 0]
    assert dataset.tokens.queries.take(np.array([7]))[0].tolist() == [3, 2, 0]
    assert len(dataset.tokens.documents) == len(dataset.documents) == 40


@pytest.mark.parametrize("is_last_first", [False, True])
def test_the_first_of_several_bad_files_is_reported(tmp_path: Path, is_last_first: bool) -> None:
    for split in ("dev", "test", "train"):
        (tmp_path / f"{split}.jsonl").write_text('{"anchor": "a question", "positive": ""}\n')

    def run(writer: ShardWriter, total: int) -> Iterator[ShardSummary]:
        reports = list(in_this_process(writer, total))
        yield from reversed(reports) if is_last_first else reports

    with pytest.raises(DataError, match=r"dev\.jsonl row 1: empty \"positive\""):
        prepare(Request(str(tmp_path)), run=run)


def test_a_small_data_set_is_committed_and_hashed_once(
    small: Path, words: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def count(module: object, function: str, what: str) -> None:
        call = getattr(module, function)

        def counted(*arguments: Any, **options: Any) -> Any:
            counts[what] += 1
            return call(*arguments, **options)

        monkeypatch.setattr(module, function, counted)

    count(os, "fsync", "syncs")
    count(hashlib, "file_digest", "hashes")
    count(commit, "read_json", "manifests")
    count(commit, "_put", "commits")
    where = str(small)
    for _ in ("driver", "worker"):
        data = TrainingData.open([where], DataConfig(where), words, 8, 0, also=["test"])
        data.train(None).order.batch(0)
        where = str(data.datasets[0].location)
    assert (
        lent_dev_line(data.datasets[0]) == "small: has no dev split, so 3 of the training queries are held out as dev"
    )
    files = len(files_of(Path(where)))
    assert (counts["commits"], counts["hashes"], counts["manifests"]) == (1, 2 * files, 3)  # `files_of` is one more
    assert counts["syncs"] <= 8


def test_a_second_call_does_nothing_and_says_so(small: Path, words: Tokenization) -> None:
    lines, say = recorder()
    first = prepare(Request(str(small), words), log=say)

    def never(*arguments: object) -> Runner:
        raise AssertionError("nothing had to be prepared")

    assert prepare(Request(str(small), words), run=never, log=say) == first
    assert [line.split(" (")[0] for line in lines[1:]] == ["small: prepared before"]
    assert lines[0].startswith("small: preparing ")
    assert lines[0].endswith(" of beir data")


def test_changed_content_or_settings_are_prepared_again(small: Path, words: Tokenization) -> None:
    places = [prepare(Request(str(small), words)), prepare(Request(str(small), replace(words, query_prompt="q: ")))]
    places.append(prepare(Request(str(small))))
    add(small / "corpus.jsonl", _id="d40", text="one more")
    places.append(prepare(Request(str(small), words)))
    assert len(set(places)) == 4
    assert [len(open_all_splits(path).documents) for path in places] == [40, 40, 40, 41]


def test_processes_write_what_one_process_writes(small: Path, words: Tokenization, tmp_path: Path) -> None:
    request = Request(str(small), words)
    alone = prepare(request, in_this_process, tmp_path / "alone")
    several = prepare(request, in_processes, tmp_path / "several")
    assert files_of(alone) == files_of(several)
    assert len(files_of(alone)) > 6


def test_an_id_repeated_counts_once_and_moves_no_position(small: Path, words: Tokenization) -> None:
    add(small / "corpus.jsonl", _id="d3", title="title 3", text="text 3 of many")
    add(small / "corpus.jsonl", _id="d4", title="title 4", text="another text")
    add(small / "corpus.jsonl", _id="d40", title="title 3", text="text 3 of many")
    with (small / "qrels" / "test.tsv").open("a") as stream:
        stream.write("q39\td40\t1\n")
    path = prepare(Request(str(small), words, max_bad_rows=0.05))
    dataset = open_all_splits(path)
    assert list(dataset.documents.ids) == [f"d{n}" for n in range(41)]
    assert dataset.documents.texts[4] == "text 4 of many"
    assert dataset.positives("test").of(9).tolist() == [39, 40]
    assert dataset.tokens is not None
    assert dataset.tokens.documents.take(np.array([40]))[0].tolist() == [3, 0, 1, 0, 0, 0]
    [entry] = dataset.quarantine.entries
    assert (entry["row"], entry["reason"]) == (42, "id 'd4' was used before with a different text")
    sides = read_manifest(path)["meta"]["sides"]
    assert (sides["documents"]["repeated"], sides["documents"]["same_text"]) == (1, 1)


def test_line_separators_and_huge_texts_are_texts(small: Path, words: Tokenization) -> None:
    odd = "one\u2028two\u2029three\u0085four\x0bfive\x1csix"
    add(small / "corpus.jsonl", _id="odd", title="", text=odd)
    add(small / "corpus.jsonl", _id="huge", title="", text="text " * 2_000_000)
    add(small / "corpus.jsonl", _id="last", title="", text="text")
    dataset = open_dataset(small, ["test"], tokenization=words)
    assert dataset.documents.texts[40] == odd
    assert len(dataset.documents.texts[41]) == 10_000_000
    assert dataset.documents.ids[42] == "last"
    assert dataset.tokens is not None
    lengths = dataset.tokens.documents.lengths()
    assert lengths[41] == 200_000  # of the first million characters
    assert lengths[42] == 1


def test_rows_that_cannot_be_tokenized_are_quarantined_alone(small: Path, words_json: str) -> None:
    add(small / "corpus.jsonl", _id="stone", text=f"text {STONE}")
    add(small / "corpus.jsonl", _id="last", text="text")
    dataset = open_dataset(small, ["test"], tokenization=Deadly(words_json), max_bad_rows=0.1, run=in_processes)
    assert [(entry["row"], entry["reason"]) for entry in dataset.quarantine.entries] == [
        (41, "cannot be tokenized (BaseException: a panic, which is no Exception)")
    ]
    assert list(dataset.documents.ids)[-2:] == ["d39", "last"]
    assert dataset.tokens is not None
    assert dataset.tokens.documents.lengths()[-2:].tolist() == [6, 1]


def test_rows_that_kill_three_processes_are_named(small: Path, words_json: str) -> None:
    add(small / "corpus.jsonl", _id="skull", text=f"text {SKULL}")
    with pytest.raises(DataError, match=r"corpus.jsonl, rows 1 to 41: 3 processes died while they wrote these rows"):
        open_dataset(small, ["test"], tokenization=Deadly(words_json), run=in_processes)


def test_texts_are_tokenized_in_slices(words: Tokenization, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["text " * 3, "text", "", "text " * 20, "text text", "", "text " * 19]
    whole = words.encode(texts, "text ")
    monkeypatch.setattr(corpus_tokenization, "MAX_CHARACTERS", 100)
    assert list(map(len, corpus_tokenization._slices(texts))) == [3, 1, 2, 1]
    assert list(corpus_tokenization._slices([])) == [[]]
    assert words.encode(texts, "text ") == whole


def test_a_file_that_begins_with_nothing_but_bad_rows_is_not_read_on(small: Path) -> None:
    rows = [json.dumps({"_id": f"d{n}", "body": "x" * 2000}) for n in range(2000)]
    (small / "corpus.jsonl").write_text("\n".join(rows) + "\n")
    read: list[int] = []

    def counting(writer: object, total: int) -> object:
        for report in in_this_process(writer, total):
            read.append(report.rows)
            yield report

    with pytest.raises(DataError, match='no field "text"'):
        prepare(Request(str(small)), counting)
    assert sum(read) < 1000


def flip(path: Path, pattern: str) -> Path:
    file = next(path.glob(pattern))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("pattern", ["documents/*.arrow", "documents/*.tokens.npy", "queries/*.offsets.npy"])
def test_a_shard_whose_digest_is_off(
    small: Path, words: Tokenization, tmp_path: Path, pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = Request(str(small), words)
    # In the cache it is made again with a warning; at a path of the user it is an error.
    good = files_of(path := prepare(request))
    flip(path, pattern)
    assert files_of(prepare(request)) == good
    assert "its SHA-256 is not the manifest's; making it again" in capsys.readouterr().err
    own = prepare(request, output=tmp_path / "own")
    file = flip(own, pattern)
    with pytest.raises(StorageError, match=f"{file}.*SHA-256"):
        open_dataset(own, ["test"], tokenization=words)


def test_a_prepared_directory_is_itself_a_data_set(small: Path, words: Tokenization, tmp_path: Path) -> None:
    own = prepare(Request(str(small), words), output=tmp_path / "own")
    assert open_dataset(own, ["test"], tokenization=words).digest == open_dataset(small, ["test"]).digest
    other = replace(words, passage_prompt="passage: ")
    with pytest.raises(DataError, match="another tokenizer or prompt; prepare it with the same model"):
        open_dataset(own, ["test"], tokenization=other)
    bare = prepare(Request(str(small)), output=tmp_path / "bare")
    with pytest.raises(DataError, match="no tokenizer"):
        open_dataset(bare, ["test"], tokenization=words)


def test_another_data_set_is_not_overwritten(small: Path, tmp_path: Path) -> None:
    own = prepare(Request(str(small)), output=tmp_path / "own")
    other = small.rename(tmp_path / "other")
    with pytest.raises(StorageError, match=r"is a prepared data set of .*small; give another output"):
        prepare(Request(str(other)), output=own)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(StorageError, match="already exists"):
        prepare(Request(str(other)), output=tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").exists()


def test_the_digest_is_that_of_the_texts(small: Path) -> None:
    dataset = open_dataset(small, ["test"])
    computed = replace(dataset.documents, stored_digest=None).digest
    assert computed == dataset.documents.digest
    assert replace(dataset.queries, stored_digest=None).digest == dataset.queries.digest


def test_of_several_at_once_one_prepares_and_the_others_use_it(small: Path, words: Tokenization) -> None:
    request = Request(str(small), words)
    makes: list[int] = []

    def slowly(writer: object, total: int) -> object:
        makes.append(total)
        time.sleep(0.2)
        yield from in_this_process(writer, total)

    with ThreadPoolExecutor(3) as pool:
        places = {future.result() for future in [pool.submit(prepare, request, slowly) for _ in range(3)]}
    assert len(places) == len(makes) == 1
    assert len(open_all_splits(places.pop()).documents) == 40


def test_whatever_changes_tokens_changes_the_digest(words: Tokenization) -> None:
    others = [
        replace(words, query_prompt="a"),
        replace(words, passage_prompt="a"),
        replace(words, query_prompt="a", passage_prompt="a"),
        replace(words, tokenizer=words.tokenizer.replace("query", "queries")),
    ]
    assert len({item.digest for item in [words, *others]}) == 5
    assert "vocab" not in repr(words)


def test_large_vocabularies_take_four_bytes() -> None:
    from tokenizers import Tokenizer, models

    many = Tokenizer(models.WordLevel({f"w{n}": n for n in range(70_000)}, unk_token="w0"))
    assert Tokenization(many.to_str()).dtype == np.uint32
