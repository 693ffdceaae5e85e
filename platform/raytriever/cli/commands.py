"""Table of the commands. This module imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

from raytriever.annotation.config import AnnotationConfig, ServiceConfig
from raytriever.cli import actions, quickstart, train, tune
from raytriever.cli.arguments import TRACKERS, Argument, number
from raytriever.cli.command import Command, SettingsGroup
from raytriever.cli.evaluate import check_evaluation, evaluate
from raytriever.cli.operate import cache, doctor, runs
from raytriever.cli.study import check_study, study, study_file
from raytriever.data.config import DataConfig, ImportConfig, SplitConfig
from raytriever.encoding.config import EncodeConfig
from raytriever.errors import ConfigError
from raytriever.evaluation.config import MTEB, EvaluationConfig
from raytriever.export.config import ExportConfig
from raytriever.index.approximate.config import IndexConfig
from raytriever.mining.config import MiningConfig, ScoreConfig
from raytriever.models.config import READING, ModelConfig
from raytriever.options import Need
from raytriever.paths import DATASET, DOCUMENTS, EMBEDDINGS, MODELS, PATH, UNANSWERABLE
from raytriever.report.request import check_comparison
from raytriever.training.config import TrainingConfig

PREPARE, TRAIN, MEASURE, USE, OPERATE = "Prepare data", "Train", "Measure", "Use a model", "Operate"
_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_MODEL = SettingsGroup("model", ModelConfig, "model", *READING)
_DATA = SettingsGroup("data", DataConfig, "data", "dataset", "max_bad_rows")
_DATA_AND_BM25 = SettingsGroup("data", DataConfig, "data", "dataset", "max_bad_rows", "bm25_language")
_PRECISION = SettingsGroup("training", TrainingConfig, "arithmetic", "precision")
_PRECISION_AND_SEED = SettingsGroup("training", TrainingConfig, "arithmetic and random draws", "precision", "seed")
_READING_OF_ALL = [name for name in READING if name not in ("model", "truncate_dim")]
_IMPORT = ("model", "revision", "passage_prompt", "passage_prompt_name", "passage_length")
_PROMPTS = ("query_prompt", "passage_prompt", "query_prompt_name", "passage_prompt_name", "dataset_prompts")
_EMBEDDINGS = Argument(
    "--embeddings",
    "embeddings of the passages by `raytriever encode` with --model (default: encode and cache them)",
    EMBEDDINGS,
)
_TOP = Argument(
    "--top",
    "number of passages to print (default: 5)",
    number("--top", int, 1, math.inf, "give at least 1"),
    metavar="K",
    default=5,
)
_DENSE_METHOD = Need("method", "dense", "cross-query")
_DENSE_CANDIDATES = Need("candidates", "dense")


def _question(flag: str | None) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not text.strip():
            raise ConfigError("the query is empty", flag, 'give a few words, such as "read a file line by line"')
        return text

    return read


def _split(help: str, reads: Callable[[str], str] | None = None) -> Argument:
    return Argument("--split", f"{help} (default: train)", reads, default="train")


def _new_split(text: str) -> str:
    if not _SPLIT.fullmatch(text):
        raise ConfigError(f"{text!r} is not a valid name of a split", "--split", "use letters, digits, '_' and '-'")
    return text


COMMANDS = {
    "import": Command(
        PREPARE,
        "write a folder of documents, and questions about them, as a data set",
        actions.import_documents,
        output="folder to write the data set to, in BEIR layout; an import that is there is replaced",
        arguments=[Argument("folder", "folder of documents, or its URI", DOCUMENTS)],
        settings=[
            SettingsGroup("documents", ImportConfig, "import"),
            SettingsGroup("model", ModelConfig, "model", *_IMPORT),
        ],
    ),
    "prepare": Command(
        PREPARE,
        "check, tokenize and shard a data set, and print a summary of it",
        actions.prepare,
        output="folder to write the prepared data set to",
        arguments=[
            Argument("--format", "the data set's format (default: recognised from its files)"),
            Argument(
                "--columns",
                "columns of a CSV or TSV file, such as `query=Frage,passage=Antwort` (default: recognised by their "
                "names)",
                metavar="NAMES",
                default="",
            ),
        ],
        settings=[
            _DATA,
            SettingsGroup("division", SplitConfig, "splits of one CSV, TSV or JSONL file"),
            SettingsGroup(
                "model", ModelConfig, "model", "model", "revision", *_PROMPTS, "query_length", "passage_length"
            ),
        ],
    ),
    "annotate": Command(
        PREPARE,
        "find positives with a language model and write a data set with them",
        actions.annotate,
        output="folder to write the annotated data set to",
        writes=lambda given: not given.dry_run,
        arguments=[
            _split("split whose queries are annotated; a new name means the queries without a judgement", _new_split),
            Argument("--dry-run", "print the estimated cost and send no request", action="store_true"),
            Argument(
                "--answers",
                "folder that keeps every answer, shared by all annotations (default: answers/ in the cache)",
                PATH,
            ),
            _EMBEDDINGS,
        ],
        settings=[
            SettingsGroup("service", ServiceConfig, "service"),
            SettingsGroup("annotation", AnnotationConfig, "annotation"),
            _DATA_AND_BM25,
            SettingsGroup("model", ModelConfig, "encoder of dense candidates", *READING),
            _PRECISION,
        ],
        needs=dict.fromkeys((*READING, "embeddings", "precision"), (_DENSE_CANDIDATES,))
        | {"bm25_language": [Need("candidates", "bm25")]},
    ),
    "mine": Command(
        PREPARE,
        "find hard negatives, remove the false ones among them, and write a table",
        actions.mine,
        output="folder to write the negatives table to",
        arguments=[
            _split("split whose queries get negatives"),
            Argument(
                "--round",
                "number of this round of mining, which the table records (default: 0)",
                number("--round", int, 0, 2**31 - 1, "give at least 0"),
                metavar="N",
                default=0,
            ),
            _EMBEDDINGS,
        ],
        settings=[SettingsGroup("mining", MiningConfig, "mining"), _DATA_AND_BM25, _MODEL, _PRECISION_AND_SEED],
        needs=dict.fromkeys((*READING, "embeddings"), (_DENSE_METHOD,)) | {"precision": [_DENSE_METHOD, Need("judge")]},
    ),
    "score": Command(
        PREPARE,
        "score pairs with a cross-encoder, as a teacher for training",
        actions.score,
        output="folder to write the scores to",
        arguments=[_split("split whose queries are scored")],
        settings=[SettingsGroup("teacher", ScoreConfig, "teacher"), _DATA, _PRECISION],
    ),
    "quickstart": Command(
        TRAIN, "train on the docstrings of Python, measure, print a table", own=(quickstart.main, quickstart._parser)
    ),
    "train": Command(TRAIN, "train an encoder and measure it before and after", own=(train.main, train._parser)),
    "tune": Command(TRAIN, "search the settings of training and measure the best", own=(tune.main, tune._parser)),
    "study": Command(
        TRAIN,
        "train and measure the arms of a file with several seeds, and test its claims",
        study,
        check=check_study,
        output="folder to write runs, table and figures to",
        arguments=[
            Argument(
                "study", "data sets, arms and claims; docs/how-to/run-a-study.md", study_file, metavar="FILE.yaml"
            ),
            Argument(
                "--seeds",
                "trainings of each row of the table, with seeds 0 to N-1 (default: set by the file)",
                number("--seeds", int, 1, 100, "give 1 to 100"),
                metavar="N",
            ),
            Argument(
                "--trial-gpus",
                "GPUs of a row while it trains, a fraction if several share one (default: 1 if there is a GPU)",
                number("--trial-gpus", float, math.ulp(0.0), 1, "give a number above 0 and up to 1"),
                metavar="N",
            ),
            Argument("--run-name", "name of the study, for trackers (default: study-NAME, by its file)"),
            *TRACKERS,
        ],
    ),
    "evaluate": Command(
        MEASURE,
        "measure models on data sets and compare them",
        evaluate,
        check=check_evaluation,
        output="folder to write the results to (default: results)",
        default_output="results",
        arguments=[
            Argument(
                "--model",
                "`bm25`, `minilm`, directories, runs or hub names; NAME=MODEL sets the name in tables (default: "
                "minilm)",
                MODELS,
                metavar="MODEL",
                nargs="+",
                dest="models",
                default=[ModelConfig().model],
            ),
            Argument(
                "--datasets",
                "data sets, as for --dataset of other commands; a folder of data sets is one row: the mean over them",
                DATASET,
                nargs="+",
            ),
            Argument(
                "--baseline",
                "one or two models that the others are compared with (default: the first model)",
                nargs="+",
            ),
            Argument(
                "--calibrate",
                "choose thresholds on --calibration-split and check them on --split: top-precision=0.9 (of the answers "
                "shown), wrong-answers=0.05 or missed=0.1 (expected share of later queries, at most), answered=0.8 (of "
                "the queries), f1 (of both), precision=0.9 or recall=0.8 (of pairs)",
                metavar="AIM",
                nargs="+",
            ),
            Argument(
                "--unanswerable",
                "make queries without an answer, which thresholds take into account: removed (half of the queries lose "
                "their answers; removed=0.2: a fifth), or data sets of other domains; their shares are measured",
                UNANSWERABLE,
                metavar="KIND",
                nargs="+",
            ),
            Argument("--fresh", "remove an earlier evaluation of --output", action="store_true"),
            *TRACKERS,
        ],
        settings=[
            SettingsGroup("evaluation", EvaluationConfig, "measuring"),
            SettingsGroup("model", ModelConfig, "all models", *_READING_OF_ALL),
            SettingsGroup("data", DataConfig, "data", "max_bad_rows", "bm25_language"),
            SettingsGroup("encoding", EncodeConfig, "encoding", "actors", "actor_gpus", "actor_cpus"),
            _PRECISION,
        ],
        # `evaluate --suite mteb` compares models on tasks.
        needs=dict.fromkeys(("datasets", "baseline", "bm25_language"), (Need("suite", MTEB, negated=True),)),
    ),
    "compare": Command(
        MEASURE,
        "compare finished runs of training and evaluation on one HTML page",
        actions.compare,
        check=lambda given: check_comparison(given.runs, Path(given.page)),
        arguments=[
            Argument(
                "runs",
                "a run directory, a run id of MLflow, or a filter of MLflow's search",
                PATH,
                metavar="RUN",
                nargs="+",
            ),
            Argument(
                "--output",
                "the page to write (default: report.html)",
                PATH,
                metavar="FILE",
                dest="page",
                default="report.html",
            ),
        ],
    ),
    "search": Command(
        USE,
        "find the best passages of a data set for a query",
        actions.search,
        free_text="query",
        arguments=[
            Argument("query", "the question", _question(None)),
            _TOP,
            Argument(
                "--threshold",
                "lowest score of a passage to print (default: all; a line says if the best one is below the threshold "
                "of the model's calibration.json)",
                number("--threshold", float, -math.inf, math.inf, "give a score, such as 0.5"),
                metavar="SCORE",
            ),
        ],
        settings=[SettingsGroup("data", DataConfig, "data", "dataset"), _MODEL, _PRECISION],
    ),
    "encode": Command(
        USE,
        "encode the passages or the queries of a data set",
        actions.encode,
        output="folder to write the embeddings to",
        settings=[_DATA, _MODEL, SettingsGroup("encoding", EncodeConfig, "encoding"), _PRECISION],
    ),
    "index": Command(
        USE,
        "build an approximate index over the passages of a data set, or open, measure and search it",
        actions.index,
        free_text="query",
        output="folder of the index; an existing index is opened, and built again if the passages have changed",
        writes=lambda given: not given.output.exists(),
        arguments=[
            _EMBEDDINGS,
            Argument("--split", "compare the index with exact search on the queries of this split"),
            Argument("--query", "print the best passages for this query", _question("--query"), metavar="TEXT"),
            _TOP,
        ],
        settings=[_DATA, _MODEL, SettingsGroup("approximate", IndexConfig, "index"), _PRECISION_AND_SEED],
        needs={"top": [Need("query")]},
    ),
    "export": Command(
        USE,
        "write a model for other runtimes: weights, graphs and a model card",
        actions.export_model,
        output="a new directory",
        settings=[_MODEL, SettingsGroup("export", ExportConfig, "export")],
    ),
    "runs": Command(
        OPERATE,
        "list run directories, or clean them of checkpoints that are no longer needed",
        runs.run,
        arguments=[
            Argument("action", "list runs, or clean runs of checkpoints", metavar="|".join(runs.ACTIONS)),
            Argument(
                "folders", "run directories, or folders of them (default: RAYTRIEVER_RUNS, or runs/)", PATH, nargs="*"
            ),
            Argument("--finished", "clean: remove the checkpoints of finished runs", action="store_true"),
            Argument("--interrupted", "clean: remove the checkpoints of interrupted runs", action="store_true"),
            Argument("--yes", "clean: remove without asking", action="store_true"),
        ],
    ),
    "cache": Command(
        OPERATE,
        "list cached data sets, models and embeddings, or remove the least recently used ones",
        cache.run,
        arguments=[
            Argument("action", "list the entries, or prune the cache", metavar="|".join(cache.ACTIONS)),
            Argument(
                "--max-size",
                "prune: size to keep, such as 500MB or 10GB; the least recently used entries are removed first",
                cache.read_size,
                metavar="SIZE",
            ),
            Argument(
                "--max-age",
                "prune: time since the last use, such as 12h or 30d; entries that are older are removed",
                cache.read_age,
                metavar="AGE",
            ),
        ],
    ),
    "doctor": Command(OPERATE, "check this machine: devices, servers, disks, locks", doctor.run),
}
