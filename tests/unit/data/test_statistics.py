from __future__ import annotations

from pathlib import Path

from raytriever.data.prepare.pipeline import Request, prepare
from raytriever.data.prepare.prepared import read_prepared
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.data.statistics import describe
from raytriever.store.commit import read_manifest


def test_figures_match_the_data_set(small: Path, words: Tokenisation, tmp_path: Path) -> None:
    with (small / "qrels" / "test.tsv").open("a") as stream:
        stream.write("q38\td0\t2\nq39\td0\t0\nq0\td1\t0\n")
    with (small / "corpus.jsonl").open("a") as stream:
        stream.write('{"_id": "long", "text": "' + "text " * 94 + '"}\n')
    path = prepare(Request(str(small), words), output=tmp_path / "own")
    sides = read_manifest(path)["meta"]["sides"]
    lines = describe(read_prepared(path), sides, {"documents": 8, "queries": 3}, around=2)
    assert lines["documents"] == "41"
    assert lines["train: queries"] == "30"
    assert lines["train: positives a query"] == "1.00 (1 to 1)"
    assert lines["test: queries"] == "11"
    assert lines["test: judgements a query"] == "1.18 (1 to 2)"
    assert lines["test: positives a query"] == "1.10 (1 to 2)"
    assert lines["test: queries without a positive"] == "1"
    # "title n text n of many" is six tokens, and two around.
    assert lines["documents: tokens, 50 % / 90 % / 99 % / most"] == "8 / 8 / 61 / 96"
    assert lines["documents: cut at 8 tokens"] == "2.4%"
    assert lines["queries: cut at 3 tokens"] == "100.0%"
    assert lines["bad rows left out"] == "0"
