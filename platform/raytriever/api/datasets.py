"""Data sets of the public API, from files and from memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from raytriever.api import tables_in_memory as tables
from raytriever.api.calls import checked, public, working
from raytriever.core.errors import ConfigError, DataError
from raytriever.core.options import check_options
from raytriever.core.terminal import warn
from raytriever.data.data_settings import SplitConfig
from raytriever.data.data_sources import Files
from raytriever.data.formats.train_dev_test import Shares, shares_of

if TYPE_CHECKING:
    import datasets
    import pandas

    from raytriever.api.models import ModelLike
    from raytriever.data.data_settings import DataConfig

Texts = Mapping[str, "str | Mapping[str, str]"]
Grades = Mapping[str, Mapping[str, Mapping[str, int]]]


class Dataset:
    """Checked data set for retrieval: documents, queries, and judgements of which documents answer which query.

    It is made by `load_dataset`, from a folder of documents by `from_documents`, or from data in memory by `from_dict`,
    `from_pandas` or `from_huggingface`. Data in memory is written to the cache once, under the digest of its content.
    It is then checked in the same way as files: a bad row is left out and listed in `bad_rows`, and too many bad rows
    are an error.

    Attributes:
        name: its name in tables and file names.
        source: the path, URI or name of the data; the commands take it as `--dataset`.
        splits: names of the splits that have judgements, sorted.
        counts: number of documents and of queries, then of the queries, judgements and positives of each split. If
            there are queries that no document answers, `SPLIT_unanswerable` counts them.
        bad_rows: `{"file", "row", "reason", "raw"}` of each row that was left out.

    Examples:
        >>> data = rt.load_dataset(folder)
        >>> data.splits
        ['dev', 'test', 'train']
        >>> data.counts["documents"]
        160
    """

    def __init__(self, source: str, name: str, max_bad_rows: float, opened: Any) -> None:
        self.source, self.name, self.max_bad_rows = source, name, max_bad_rows
        self.splits: list[str] = sorted(opened.judgements)
        self.counts: dict[str, int] = opened.counts()
        self.bad_rows: list[dict[str, Any]] = [dict(entry) for entry in opened.quarantine.entries]

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {self.counts['documents']:,} documents, {self.counts['queries']:,} queries, "
            f"splits {', '.join(self.splits) or 'none'})"
        )

    @classmethod
    @public
    def from_dict(
        cls, documents: Texts, queries: Mapping[str, str], judgements: Grades, *,
        unanswerable: Mapping[str, Iterable[str]] | None = None, name: str = "memory", max_bad_rows: float = 0.01,
    ) -> Dataset:  # fmt: skip
        """Make a data set from dictionaries, in the form that BEIR's loader returns.

        Args:
            documents: `{id: text}` or `{id: {"title": ..., "text": ...}}`.
            queries: `{id: text}`.
            judgements: `{split: {query id: {document id: grade}}}`. A grade is a whole number; above 0 is relevant.
                Training needs the split `train` and evaluates on `test`. Without `dev`, a tenth of `train` is held out.
            unanswerable: `{split: [query id]}` of the queries that no document answers.
            name: letters, digits, `.`, `_` and `-`.
            max_bad_rows: share of rows that may be bad, 0 to 1.

        Raises:
            DataError: an argument does not have this form, or too many rows are bad.
            StorageError: the cache cannot be written.

        Examples:
            >>> documents = {"d1": {"title": "Vienna", "text": "It lies on the Danube."}, "d2": "Graz lies on the Mur."}
            >>> queries = {"q1": "which river flows through vienna"}
            >>> rt.Dataset.from_dict(documents, queries, {"test": {"q1": {"d1": 1}}}, name="rivers")
            Dataset('rivers': 2 documents, 1 queries, splits test)
        """
        return _from_files(
            cls, tables.text_files(documents, queries, judgements, unanswerable or {}), name, max_bad_rows
        )

    @classmethod
    @public
    def from_pandas(
        cls,
        frame: pandas.DataFrame,
        queries: pandas.DataFrame | None = None,
        judgements: pandas.DataFrame | None = None,
        *,
        query: str = "query",
        passage: str = "passage",
        split: str | None = None,
        test_share: float | None = None,
        dev_share: float | None = None,
        name: str = "frame",
        max_bad_rows: float = 0.01,
    ) -> Dataset:
        """Make a data set from one frame of pairs, or from three frames with ids.

        One frame: a row holds a query and a passage that answers it, and may hold hard negatives in the columns
        `negative`, `negative_1`, `negative_2` and so on. The column `split` assigns rows to `train`, `dev` and `test`.
        Without it the queries are divided by the digest of their text. `dev` and `test` get a tenth each, and more if a
        tenth is under 50 queries, but at most 0.3; `train` gets the rest. If no document answers a query, its row has
        an empty passage and `no`, `false` or `0` in the column `answerable`.

        Three frames: documents with the columns `id`, `text` and, if there are titles, `title`; queries with `id` and
        `text`; judgements with `query_id`, `document_id`, `score` (a whole number; above 0 is relevant) and, if there
        are several splits, `split`. Without that column all judgements belong to `test`. A query that no document
        answers has `no` in the column `answerable`; it belongs to the split in its column `split`, else to `test`.

        Args:
            frame: the pairs, or the documents.
            queries: the queries, if `frame` holds documents.
            judgements: the judgements, if `frame` holds documents.
            query: column of queries in a frame of pairs; one named `question` or `anchor` is recognized.
            passage: column of passages in a frame of pairs; one named `answer`, `positive` or `text` is recognized.
            split: column of splits; by default `split`, if there is one.
            test_share: share of the queries, 0 to 1, in a frame of pairs without a column of splits.
            dev_share: the same for dev.
            name: letters, digits, `.`, `_` and `-`.
            max_bad_rows: share of rows that may be bad, 0 to 1.

        Raises:
            ConfigError: a share is out of range, or has no effect.
            DataError: a column is missing, or too many rows are bad (empty texts, ids that are not unique).
            StorageError: the cache cannot be written.

        Examples:
            >>> import pandas as pd
            >>> frame = pd.DataFrame({"question": ["a?", "b?", "c?"], "passage": ["A.", "B.", "C."]})
            >>> rt.Dataset.from_pandas(frame, query="question", name="faq")
            Dataset('faq': 3 documents, 3 queries, splits dev, test, train)
        """
        if (queries is None) != (judgements is None):
            raise ConfigError("queries and judgements belong together", None, "give both, or a table of pairs alone")
        check_options(config := SplitConfig(test_share, dev_share))
        shares = shares_of(config)
        if queries is None:
            files = tables.pair_files(tables.frame_table("pairs", frame), query, passage, split, shares)
        else:
            tables.refuse_shares(shares, "the table of judgements")
            asked, judged = tables.frame_table("queries", queries), tables.frame_table("judgements", judgements)
            files = tables.judged_tables(tables.frame_table("documents", frame), asked, judged, split)
        return _from_files(cls, files, name, max_bad_rows)

    @classmethod
    @public
    def from_huggingface(
        cls, splits: datasets.DatasetDict | datasets.Dataset, *, name: str = "hub", max_bad_rows: float = 0.01
    ) -> Dataset:
        """Make a data set from a `datasets.DatasetDict` or a `datasets.Dataset`.

        Either each split holds rows of a known training format, such as `anchor`, `positive` and `negative` of
        sentence-transformers, or `corpus` and `queries` hold texts and every other split holds judgements with the
        columns `query-id`, `corpus-id` and `score`, as BEIR's data sets on the hub do. A `Dataset` holds pairs of a
        query and a passage; its queries are divided like those of a frame (`from_pandas`).

        Args:
            splits: the splits, or one table of pairs.
            name: letters, digits, `.`, `_` and `-`.
            max_bad_rows: share of rows that may be bad, 0 to 1.

        Raises:
            DataError: `splits` is neither, its columns match no known format, or too many rows are bad.
            StorageError: the cache cannot be written.

        Examples:
            >>> import datasets
            >>> rows = datasets.Dataset.from_dict({"anchor": ["a?", "b?", "c?"], "positive": ["A.", "B.", "C."]})
            >>> rt.Dataset.from_huggingface(datasets.DatasetDict({"train": rows}), name="faq").splits
            ['train']
        """
        return _from_files(cls, tables.hub_tables(splits), name, max_bad_rows)

    @classmethod
    @public
    def from_documents(
        cls,
        folder: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        questions: str | os.PathLike[str] | None = None,
        columns: str = "",
        model: ModelLike = "minilm",
        chunk_tokens: int | None = None,
        overlap_tokens: int | None = None,
        seed: int = 0,
        test_share: float | None = None,
        dev_share: float | None = None,
        test_questions: str | os.PathLike[str] | None = None,
    ) -> Dataset:
        """Divide a folder of Markdown, HTML, text and PDF files into passages.

        The passages fit the encoder. A document and the questions that it answers share a split. Standard error shows
        how much was read and skipped; `output/quarantine.jsonl` lists each skipped file or question with the reason.

        Args:
            folder: path or URI of the documents.
            output: folder in which the data set is written. An earlier import there is replaced: files and questions
                keep their splits.
            questions: CSV, TSV or JSONL file of questions with the columns `question` and `file`, and optionally
                `answer`, `anchor`, `id`, `split` and `answerable`. Write `none` as the file, or `no` as `answerable`,
                if the folder has no answer. Without questions the passages can be searched, but there is nothing to
                train on.
            columns: columns of `questions` that have other names, such as `question=Frage,file=Datei`.
            model: the encoder whose tokenizer and maximum length determine the passages.
            chunk_tokens: largest number of tokens of a passage with its title; by default the encoder's maximum length.
            overlap_tokens: number of tokens that a passage repeats from the end of the previous one; by default an
                eighth of a passage.
            seed: Seed of the splits.
            test_share: share of the questions in the split test, 0 to 1; by default 0.1, or more to have 50 questions,
                but at most 0.3.
            dev_share: share of the questions in the split dev; the default is chosen in the same way.
            test_questions: file of questions with the same columns. They are all test; `questions` are train and dev.

        Raises:
            ConfigError: a number is out of range, or a package that reads such documents is not installed. Or the
                earlier import has another seed, has questions that this one lacks, or shares no file with this one.
            DataError: there is no document, or no question can be matched.
            ModelError: the encoder cannot be found.
            StorageError: `output` is not an import, is damaged, contains other files, or cannot be written.

        Examples:
            >>> from pathlib import Path
            >>> Path("handbook").mkdir()
            >>> _ = Path("handbook/pump.md").write_text("# Pump\\n\\nMoves water.\\n\\n## Repair\\n\\nChange the seal.")
            >>> rt.Dataset.from_documents("handbook", "passages")
            Dataset('passages': 2 documents, 0 queries, splits none)
        """
        from raytriever.api.models import path_of, settings_of
        from raytriever.core.paths import DOCUMENTS
        from raytriever.data.data_settings import ImportConfig
        from raytriever.data.documents.import_folder import import_folder
        from raytriever.data.documents.import_summary import summary_lines

        config = ImportConfig(
            test_share=test_share,
            dev_share=dev_share,
            test_questions=os.fspath(test_questions or ""),
            questions=os.fspath(questions or ""),
            columns=columns,
            chunk_tokens=chunk_tokens,
            overlap_tokens=overlap_tokens,
            seed=seed,
        )
        checked(config)
        DOCUMENTS.check(os.fspath(folder), "folder")
        path = path_of(output)
        with working("from_documents", path):
            settings = settings_of(model)
            summary = import_folder(os.fspath(folder), path, config, settings, warn)
        for line in summary_lines(summary, config, settings.model):
            warn(line)
        return _load(cls, str(path), None, max_bad_rows=0.0)


@public
def load_dataset(
    path: str | os.PathLike[str],
    *,
    query: str | None = None,
    passage: str | None = None,
    split: str | None = None,
    name: str | None = None,
    max_bad_rows: float = 0.01,
) -> Dataset:
    """Check and prepare a data set on disk, in an object store or on the hub.

    A data set that was prepared before is loaded from the cache. Every row is checked; a bad one is left out and listed
    in `bad_rows` of the result.

    Args:
        path: a folder or file in a known format (BEIR, sentence-transformers, Tevatron, DPR, FlagEmbedding, pairs,
            CSV, `save_to_disk`), a URI such as `s3://bucket/data`, `hf://datasets/ORG/NAME`, `ir_datasets:NAME`, a
            prepared data set, or `pydocs`.
        query: column of queries of a CSV or TSV file, if it does not have a well-known name.
        passage: column of passages of such a file.
        split: column of splits of such a file.
        name: its name in tables; by default the name of the folder or file.
        max_bad_rows: share of each file's rows that may be bad, 0 to 1.

    Raises:
        DataError: there is no such data set or column, its format is unknown, a file is broken, or too many rows are
            bad.
        StorageError: the cache cannot be written.

    Examples:
        >>> rt.load_dataset(folder)
        Dataset('letters': 160 documents, 160 queries, splits dev, test, train)
    """
    if query is None and passage is None and split is None:
        return _load(Dataset, os.fspath(path), name, max_bad_rows)
    files = tables.pair_files(tables.csv_table(path), query or "query", passage or "passage", split, Shares())
    of_file = re.sub(r"[^A-Za-z0-9._-]", "-", os.fspath(path).rsplit("/", 1)[-1]).lstrip("._-")
    return _from_files(Dataset, files, name or of_file or "table", max_bad_rows)


def source_of(data: Dataset | str | os.PathLike[str]) -> str:
    """Return the path, URI or name of a data set. Raises `ConfigError` for any other type."""
    if isinstance(data, Dataset):
        return data.source
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    raise ConfigError(f"is {type(data).__name__}", "data", "give the result of load_dataset or a path")


def data_settings(data: Dataset | str | os.PathLike[str]) -> DataConfig:
    """Return the settings that open a data set. Raises the errors of `source_of`."""
    from raytriever.data.data_settings import DataConfig

    if isinstance(data, Dataset):
        return DataConfig(dataset=data.source, max_bad_rows=data.max_bad_rows)
    return DataConfig(dataset=source_of(data))


def _load(kind: type[Dataset], source: str, name: str | None, max_bad_rows: float) -> Dataset:
    from raytriever.data.data_settings import DataConfig
    from raytriever.data.prepare.open_dataset import open_all_splits
    from raytriever.data.prepare.prepare_dataset import in_processes

    checked(DataConfig(dataset=source, max_bad_rows=max_bad_rows))
    with working("load_dataset"):
        opened = open_all_splits(source, max_bad_rows=max_bad_rows, run=in_processes, report=warn)
    return kind(source, name or opened.name, max_bad_rows, opened)


def _from_files(kind: type[Dataset], files: Files, name: str, max_bad_rows: float) -> Dataset:
    if not tables.NAME.fullmatch(name):
        raise DataError(f"{name!r} is not a valid data set name", "name", "use letters, digits, '.', '_' and '-'")
    folder = files.write(name)
    try:
        return _load(kind, str(folder), name, max_bad_rows)
    except DataError as error:
        files.name_tables(error, folder)
        raise
