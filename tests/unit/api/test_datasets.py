"""Data in memory: the same data set as from files, the same quarantine, and errors that name the tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from processes import run_python

import raytriever as rt
from raytriever.data.prepare.open_dataset import open_all_splits

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]


def pairs() -> pd.DataFrame:
    return pd.DataFrame({"query": [f"what is {w}" for w in WORDS], "passage": [f"{w} is a letter" for w in WORDS]})


def frames() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    documents = pd.DataFrame({"id": ["d1", "d2"], "title": ["One", None], "text": ["first", "second"]})
    queries = pd.DataFrame({"id": [1, 2], "text": ["a?", "b?"]})
    judgements = pd.DataFrame({"query_id": [1, 2], "document_id": ["d1", "d2"], "score": [1.0, 2.0]})
    return documents, queries, judgements


def sources(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / "sources").glob("*/*") if path.is_dir())


def test_a_dictionary_is_the_data_set_that_the_files_are(tiny_dataset: Path) -> None:
    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tiny_dataset / name).read_text().splitlines()]

    judgements: dict[str, dict[str, dict[str, int]]] = {}
    for file in (tiny_dataset / "qrels").glob("*.tsv"):
        for line in file.read_text().splitlines()[1:]:
            query, document, grade = line.split("\t")
            judgements.setdefault(file.stem, {}).setdefault(query, {})[document] = int(grade)
    documents = {row["_id"]: {"title": row["title"], "text": row["text"]} for row in rows("corpus.jsonl")}
    queries = {row["_id"]: row["text"] for row in rows("queries.jsonl")}
    dataset = rt.Dataset.from_dict(documents, queries, judgements, name="letters")
    opened = open_all_splits(dataset.source)
    assert opened.digest == open_all_splits(tiny_dataset).digest
    assert (dataset.name, opened.name) == ("letters", "letters")
    assert dataset.counts == rt.load_dataset(tiny_dataset).counts


def test_the_same_content_is_written_once(api_cache: Path) -> None:
    first = rt.Dataset.from_pandas(pairs(), name="once")
    before = {path: path.stat().st_mtime_ns for path in sources(api_cache)}
    again = rt.Dataset.from_pandas(pairs(), name="once")
    assert again.source == first.source
    assert {path: path.stat().st_mtime_ns for path in sources(api_cache)} == before
    (Path(first.source) / "train.jsonl").write_text("damaged")
    assert rt.Dataset.from_pandas(pairs(), name="once").counts == first.counts


def test_queries_are_divided_by_their_text_alone() -> None:
    frame = pairs()
    dataset = rt.Dataset.from_pandas(frame)
    assert dataset.splits == ["dev", "test", "train"]
    assert [dataset.counts[f"{split}_queries"] for split in dataset.splits] == [3, 3, 6]
    other = rt.Dataset.from_pandas(frame, test_fraction=0.5, dev_fraction=0.25)
    assert [other.counts[f"{split}_queries"] for split in other.splits] == [3, 6, 3]
    shuffled = open_all_splits(rt.Dataset.from_pandas(frame.sample(frac=1, random_state=1), name="shuffled").source)
    opened = open_all_splits(dataset.source)
    for split in dataset.splits:
        assert {opened.queries.texts[int(q)] for q in opened.judgements[split].queries} == {
            shuffled.queries.texts[int(q)] for q in shuffled.judgements[split].queries
        }
    # A query with two passages is in one split.
    twice = pd.concat([frame, frame.assign(passage="another " + frame["passage"])])
    opened = open_all_splits(rt.Dataset.from_pandas(twice).source)
    parts = [set(rows.queries.tolist()) for rows in opened.judgements.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 12


def test_a_column_assigns_splits_and_columns_hold_negatives() -> None:
    frame = pairs().rename(columns={"query": "question", "passage": "answer"})
    frame["part"] = ["train"] * 8 + ["validation"] * 2 + ["test"] * 2
    frame["negative"] = frame["answer"].shift(1)
    dataset = rt.Dataset.from_pandas(frame, query="question", passage="answer", split="part")
    assert [dataset.counts[f"{split}_queries"] for split in ("train", "dev", "test")] == [8, 2, 2]
    opened = open_all_splits(dataset.source)
    assert opened.negatives is not None
    assert len(opened.negatives.queries) == 11


def test_the_columns_of_a_csv_file_may_be_named(tmp_path: Path) -> None:
    frame = pairs()
    frame.loc[0, "passage"] = 'with "quotes", commas\nand a line end'
    columns = {"query": "Frage, kurz", "passage": "Antwort=lang"}
    frame.rename(columns=columns).to_csv(tmp_path / "my faq.csv", index=False)
    dataset = rt.load_dataset(tmp_path / "my faq.csv", **columns)
    assert dataset.name == "my-faq.csv"
    in_memory = rt.Dataset.from_pandas(frame, name="faq")
    assert open_all_splits(dataset.source).digest == open_all_splits(in_memory.source).digest
    frame.rename(columns=columns).assign(Teil="test").to_csv(tmp_path / "faq.csv", index=False)
    assert rt.load_dataset(tmp_path / "faq.csv", **columns, split="Teil").splits == ["test"]
    for path, column, message in (
        ("faq.csv", "Frge", "the columns 'Frge', 'passage' are missing; the table has 'Frage, kurz', 'Antwort=lang'"),
        ("gone.csv", "Frage", "dataset gone.csv: no such file"),
        ("train.jsonl", "Frage", "train.jsonl: is not a CSV or TSV file, so it has no columns to name"),
    ):
        with pytest.raises(rt.DataError) as error:
            rt.load_dataset(tmp_path / path if path == "faq.csv" else path, query=column)
        assert message in str(error.value)


def test_a_dataset_of_pairs_is_divided_like_a_frame_and_well_known_columns_are_recognized(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = pairs().rename(columns={"query": "question", "passage": "answer"})
    dataset = rt.Dataset.from_huggingface(datasets.Dataset.from_pandas(rows), name="faq")
    assert "splits: columns 'question' (queries) and 'answer' (passages) are used" in capsys.readouterr().err
    assert dataset.counts == rt.Dataset.from_pandas(pairs(), name="faq").counts


def test_a_dataset_dict_of_pairs_and_one_with_a_corpus() -> None:
    rows = datasets.Dataset.from_pandas(pairs().rename(columns={"query": "anchor", "passage": "positive"}))
    dataset = rt.Dataset.from_huggingface(datasets.DatasetDict({"train": rows, "validation": rows.select([0, 1])}))
    assert dataset.splits == ["dev", "train"]
    corpus = datasets.Dataset.from_dict({"_id": ["d1"], "title": ["t"], "text": ["x"]})
    queries = datasets.Dataset.from_dict({"_id": ["q1"], "text": ["a?"]})
    test = datasets.Dataset.from_dict({"query-id": ["q1"], "corpus-id": ["d1"], "score": [1.0]})
    parts = datasets.DatasetDict({"corpus": corpus, "queries": queries, "test": test})
    assert rt.Dataset.from_huggingface(parts).counts["test_positives"] == 1


def test_few_bad_rows_are_left_out_and_listed() -> None:
    frame = pd.DataFrame({"query": [f"q {n}" for n in range(300)], "passage": [f"p {n}" for n in range(300)]})
    frame.loc[7, "passage"] = "  "
    frame.loc[9, "query"] = None
    dataset = rt.Dataset.from_pandas(frame, name="few")
    assert dataset.counts["bad_rows"] == 2
    assert {row["reason"] for row in dataset.bad_rows} == {'empty "positive"', '"anchor" is NoneType, not a string'}


def three(**changes: Any) -> rt.Dataset:
    documents, queries, judgements = frames()
    parts = {"documents": documents, "queries": queries, "judgements": judgements} | changes
    return rt.Dataset.from_pandas(parts["documents"], parts["queries"], parts["judgements"], name="bad", max_bad_rows=0)


SPLIT_TWICE = pd.DataFrame({"id": ["d1", "d1"], "text": ["first", "another"]})
ERRORS: list[tuple[Any, str]] = [
    (
        lambda: rt.Dataset.from_pandas(pairs().rename(columns={"passage": "pasage"})),
        "pairs: the column 'passage' is missing; the table has 'query', 'pasage'; did you mean 'pasage'?",
    ),
    (
        lambda: rt.Dataset.from_pandas(pairs().assign(split="train"), dev_fraction=0.2),
        "dev_fraction 0.2: has no effect: the column 'split' decides the splits; leave it out",
    ),
    (
        lambda: rt.Dataset.from_pandas(*frames(), test_fraction=0.2),
        "test_fraction 0.2: has no effect: the table of judgements decides the splits",
    ),
    (lambda: rt.Dataset.from_pandas(pairs().head(2)), "pairs: has 2 different queries, too few to divide"),
    (lambda: rt.Dataset.from_pandas([1, 2]), "pairs: has the type list; give a pandas DataFrame"),  # type: ignore[arg-type]
    (
        lambda: rt.Dataset.from_pandas(pairs().assign(passage="")),
        'pairs of split dev row 1: empty "passage"; 3 of 3 rows are bad (100.00%), more than the 1 % allowed by '
        "max_bad_rows",
    ),
    (lambda: rt.Dataset.from_pandas(pairs().assign(split="../x")), "split: '../x' is not a valid split name"),
    (lambda: rt.Dataset.from_pandas(pairs(), name="../x"), "name: '../x' is not a valid data set name"),
    (lambda: rt.Dataset.from_pandas(pairs(), queries=pairs()), "queries or judgements are missing"),
    (lambda: three(documents=SPLIT_TWICE), "documents row 2: id 'd1' "),
    (
        lambda: three(judgements=frames()[2].assign(document_id=["d1", "d9"])),
        "judgements of split test row 2: unknown document id 'd9'",
    ),
    (lambda: three(judgements=frames()[2].assign(score=["x", "y"])), "row 1: score 'x' is not an integer"),
    (lambda: three(documents=frames()[0].assign(text=[b"x", object()])), "row 1: holds a value of type bytes"),
    (lambda: rt.Dataset.from_dict([], {}, {}), "documents: has the type list; give a dictionary {id:"),  # type: ignore[arg-type]
    (
        lambda: rt.Dataset.from_dict({"d": "x"}, {"q": "y"}, {"q": {"d": 1}}),  # type: ignore[dict-item]
        "judgements: split 'q' has no dictionary of dictionaries; give {split: {query id: {document id: grade}}}",
    ),
    (lambda: rt.Dataset.from_dict({}, {}, {"test": {}}), "has no rows"),
    (
        lambda: rt.Dataset.from_huggingface([1]),  # type: ignore[arg-type]
        "splits: has the type list; give a Dataset or a DatasetDict",
    ),
    (
        lambda: rt.Dataset.from_huggingface(
            datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": ["x"], "b": ["y"]})})
        ),
        "the data: is in no known format; it contains train (the fields a, b)",
    ),
]


def test_bad_data_is_one_line(workplace: Path, api_cache: Path) -> None:
    for call, expected in ERRORS:
        with pytest.raises(rt.UserError) as caught:
            call()
        line = str(caught.value)
        assert expected in line
        assert "\n" not in line
        assert "--" not in line
        assert not any(workplace.iterdir())
        # What the cache holds is whole: no directory without a manifest.
        assert all((folder / "manifest.json").is_file() for folder in sources(api_cache))


def test_a_csv_that_is_no_utf8(workplace: Path) -> None:
    (workplace / "faq.csv").write_bytes(b"query,passage\n\xff\xfe,x\n")
    with pytest.raises(rt.DataError, match="is not a CSV file in UTF-8"):
        rt.load_dataset("faq.csv")


@pytest.mark.parametrize("package", ["pandas", "datasets"])
def test_an_optional_package_that_is_missing(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    make: Any = rt.Dataset.from_pandas if package == "pandas" else rt.Dataset.from_huggingface
    with pytest.raises(rt.ConfigError, match=f"needs the package `{package}`; install it: pip install {package}"):
        make(None)


def test_a_script_without_a_guard_prepares_data_once(workplace: Path, tiny_dataset: Path) -> None:
    # Its processes must not run the script again.
    script = workplace / "script.py"
    script.write_text(f"import raytriever as rt\nprint(rt.load_dataset({str(tiny_dataset)!r}))\n")
    done = run_python(script, variables={"RAYTRIEVER_CACHE": str(workplace / "cache")}, timeout=120)
    assert done.stdout == "Dataset('letters': 160 documents, 160 queries, splits dev, test, train)\n"


def test_numbers_of_numpy_are_ids_and_grades() -> None:
    documents = {np.int64(1): "x"}
    dataset = rt.Dataset.from_dict(documents, {"q": "y"}, {"test": {"q": {np.int64(1): np.int64(1)}}})  # type: ignore[dict-item]
    assert dataset.counts["test_positives"] == 1


@pytest.mark.parametrize("form", ["arrow", "numpy", "pandas", "torch"])
def test_tables_of_datasets_in_any_format_are_read_alike(form: str) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"anchor": ["a?", "b?", "c?"], "positive": ["A.", "B.", "C."]})
    plain = rt.Dataset.from_huggingface(datasets.DatasetDict({"train": rows}), name="plain").counts
    assert rt.Dataset.from_huggingface(datasets.DatasetDict({"train": rows.with_format(form)})).counts == plain
    assert rt.Dataset.from_huggingface(rows.with_format(form)).counts["documents"] == 3


def test_a_table_is_read_as_its_file_is(workplace: Path) -> None:
    """Scores, negatives and splits, under names of any case."""
    lines = ["Question,Answer,Label,Split"]
    lines += [f"q{n}?,A{n}.,{n % 2},{'train' if n < 4 else 'test'}" for n in range(6)]
    (workplace / "judged.csv").write_text("\n".join(lines) + "\n")
    lines = ["query,passage,Negative 1", "a?,A.,X.", "b?,B.,", "c?,C.,Z."]
    (workplace / "hard.csv").write_text("\n".join(lines) + "\n")
    for file in ("judged.csv", "hard.csv"):
        read = rt.load_dataset(file)
        frame = pd.read_csv(file)
        for made in (rt.load_dataset(file, query=frame.columns[0]), rt.Dataset.from_pandas(frame)):
            assert (made.counts, made.splits) == (read.counts, read.splits)
    assert read.counts["documents"] == 5
    assert rt.load_dataset("judged.csv").counts["train_positives"] == 2


def unanswerable(dataset: rt.Dataset) -> dict[str, list[str]]:
    opened = open_all_splits(dataset.source)
    return {split: [opened.queries.texts[row] for row in rows] for split, rows in opened.unanswerable.items()}


@pytest.mark.slow
def test_questions_without_an_answer_in_memory(tmp_path: Path) -> None:
    passages, questions = {"d1": "first"}, {"q1": "a?", "u1": "who?"}
    judged = {"test": {"q1": {"d1": 1}}}
    dataset = rt.Dataset.from_dict(passages, questions, judged, unanswerable={"test": ["u1"]})
    assert (unanswerable(dataset), dataset.counts["test_unanswerable"]) == ({"test": ["who?"]}, 1)
    alone = rt.Dataset.from_dict(passages, questions, {**judged, "dev": {}}, unanswerable={"dev": ["u1"]})
    assert (alone.splits, alone.counts["dev_queries"], alone.counts["dev_unanswerable"]) == (["dev", "test"], 0, 1)
    frame = pairs()
    frame["answerable"] = [True] * 10 + [False] * 2
    frame.loc[10:, "passage"] = None
    from_frame = rt.Dataset.from_pandas(frame)
    frame.assign(answerable=["yes"] * 10 + ["no"] * 2).to_csv(tmp_path / "faq.csv", index=False)
    assert unanswerable(from_frame) == unanswerable(rt.load_dataset(tmp_path / "faq.csv"))
    assert sorted(text for texts in unanswerable(from_frame).values() for text in texts) == [
        "what is lambda",
        "what is mu",
    ]
    documents, queries, judgements = frames()
    queries = pd.concat([queries, pd.DataFrame({"id": [3], "text": ["who?"], "answerable": [0.0]})])
    assert unanswerable(rt.Dataset.from_pandas(documents, queries, judgements, name="three")) == {"test": ["who?"]}


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"test": "u1"}, "unanswerable: is not a dictionary of lists of ids; give {split: [query id]}"),
        ({"test": ["q1"]}, "conflicting: the query has no answer, but it has a relevant document in split 'test'"),
        ({"test": ["gone"]}, "unknown query id 'gone'"),
        ({"a/b": ["u1"]}, "'a/b' is not a valid split name"),
    ],
)
def test_lists_of_questions_without_an_answer_are_checked(lists: Any, message: str) -> None:
    with pytest.raises(rt.DataError) as error:
        rt.Dataset.from_dict(
            {"d1": "first"}, {"q1": "a?", "u1": "who?"}, {"test": {"q1": {"d1": 1}}}, unanswerable=lists
        )
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_frame_of_queries_has_yes_or_no() -> None:
    documents, queries, judgements = frames()
    with pytest.raises(rt.DataError, match=r"queries, id 1: \"answerable\" is 'perhaps', neither yes nor no"):
        rt.Dataset.from_pandas(documents, queries.assign(answerable="perhaps"), judgements)


def test_either_the_title_or_the_text_of_a_passage_may_be_empty() -> None:
    documents = {"title": {"title": "Vienna", "text": ""}, "text": {"title": "", "text": "Graz"}, "plain": "Linz"}
    dataset = rt.Dataset.from_dict(documents, {"q": "where"}, {"test": {"q": {"title": 1}}}, max_bad_rows=0)  # type: ignore[arg-type]
    opened = open_all_splits(dataset.source)
    assert list(opened.passages()) == ["Vienna", "Graz", "Linz"]
    frame, queries, judgements = frames()
    frame["text"] = [None, "second"]
    from_frames = open_all_splits(rt.Dataset.from_pandas(frame, queries, judgements, name="f", max_bad_rows=0).source)
    assert list(from_frames.passages()) == ["One", "second"]
    with pytest.raises(rt.DataError, match='documents row 1: empty "text"'):
        rt.Dataset.from_dict({"d": {"title": " ", "text": ""}}, {"q": "where"}, {"test": {"q": {"d": 1}}})
    with pytest.raises(rt.DataError, match='documents row 1: no field "text"'):
        rt.Dataset.from_dict({"d": {"title": "Vienna"}}, {"q": "where"}, {"test": {"q": {"d": 1}}})


def test_lists_and_votes_in_a_frame(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pairs().assign(score=[*range(6), *range(6)])
    frame["passage"] = [["one", "two"], "['three' 'four']", *frame["passage"][2:]]
    dataset = rt.Dataset.from_pandas(frame, name="lists")
    assert "pairs; 'score' is not read, since it may count votes" in capsys.readouterr().err
    assert {"one", "two", "three", "four"} < set(open_all_splits(dataset.source).documents.texts)
    assert sum(dataset.counts[f"{split}_positives"] for split in dataset.splits) == 14
    frame.loc[2, "passage"] = "['a', b]['c']"
    with pytest.raises(rt.DataError, match=r"pairs row 3: .* looks like a list but cannot be read as one"):
        rt.Dataset.from_pandas(frame, name="lists")
