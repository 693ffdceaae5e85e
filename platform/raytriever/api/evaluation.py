"""Public API to evaluate models and to compare runs."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import nan
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeAlias

from raytriever.api.calls import checked, public, working
from raytriever.api.datasets import Dataset, source_of
from raytriever.api.models import Model, ModelLike, Run, path_of, precision_of
from raytriever.api.tables_in_memory import require_package
from raytriever.core.errors import ConfigError
from raytriever.core.setting_declarations import check_changed
from raytriever.core.terminal import warn
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.system_names import SYSTEM, SystemTree, parse_system, replace_nodes, system_text
from raytriever.retrieval.encoding.encoding_settings import EncodeConfig
from raytriever.retrieval.external_encoders.endpoint_settings import EncoderConfig
from raytriever.tracking.tracker_names import read_trackers

if TYPE_CHECKING:
    import pandas

    from raytriever.evaluation.requested_models import EvaluatedModel, EvaluationJob
    from raytriever.evaluation.results import Results
    from raytriever.retrieval.external_encoders.encode_function import FunctionEncoder

EncodeFunction: TypeAlias = Callable[[list[str], str], Any]


def metrics_of(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics of an evaluation by model and data set. A value that does not exist becomes NaN."""
    return {
        model: {name: {key: nan if v is None else v for key, v in row.items()} for name, row in sets.items()}
        for model, sets in results.models.items()
    }


class Report:
    """Results of an evaluation, made by `evaluate`. `print(report)` shows its tables.

    Attributes:
        metrics: `{model: {data set: {metric: value}}}` with values from 0 to 1. Names of metrics are `ndcg_at_10`,
            `mrr_at_10`, `recall_at_100`, `auc` and so on.
        path: directory of the files of the evaluation; None if neither `output` nor `save` has named a directory.

    Examples:
        >>> report = rt.evaluate(["bm25", encoder], data, split="test")
        >>> round(report.metrics["bm25"]["letters"]["recall_at_100"], 3)
        1.0
        >>> report.to_pandas().shape
        (2, 6)
    """

    def __init__(self, results: Results, folder: Path, temporary: Path | None) -> None:
        self._results, self._folder = results, folder
        self.path: Path | None = None if temporary else folder
        if temporary:
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
        self.metrics = metrics_of(results)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with a row for each model and data set: `model`, `dataset`, and a column for each metric.

        Raises:
            ConfigError: pandas is not installed.
        """
        require_package("pandas", "to_pandas")
        import pandas

        rows = [
            {"model": model, "dataset": dataset, **values}
            for model, sets in self.metrics.items()
            for dataset, values in sets.items()
        ]
        return pandas.DataFrame(rows)

    def pairs(self) -> list[dict[str, Any]]:
        """Return a row for each data set, metric and pair of models, tested by a paired t-test over queries.

        A row holds `dataset` (None: the mean over the data sets), `metric`, `model` (the better one), `against` (the
        other), `difference`, its 95 % interval (`low`, `high`), `p`, `p_holm` (`p` corrected for all pairs and data
        sets of the metric), `effect` (Cohen's d_z) and the number of `queries`."""
        return [asdict(row) for row in self._results.pairs]

    @public
    def save(self, output: str | os.PathLike[str]) -> Path:
        """Write the files of the evaluation to a directory: report, tables, TREC runs, scores, `results.json`.

        Args:
            output: the directory, which must not exist. If writing fails, nothing is left of it.

        Returns:
            The directory.

        Raises:
            StorageError: `output` exists or cannot be written.
        """
        from raytriever.core.store.commit import MANIFEST, committed_directory

        folder = path_of(output)
        with working("save", folder), committed_directory(folder, {"kind": "evaluation"}) as aside:
            shutil.copytree(self._folder, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        self.path = folder
        return folder

    def __str__(self) -> str:
        from raytriever.evaluation.report_document import format_results

        return format_results(self._results).strip()

    def __repr__(self) -> str:
        return f"Report({', '.join(self.metrics)})"


@public
def evaluate(
    models: Sequence[ModelLike | EncodeFunction] | Mapping[str, ModelLike | EncodeFunction],
    data: Dataset | str | os.PathLike[str] | Sequence[Dataset | str | os.PathLike[str]],
    *,
    split: str = "test",
    metrics: str | Sequence[str] = EvaluationConfig.metrics,
    baselines: Sequence[str] = (),
    calibrate: Sequence[str] = (),
    calibration_split: str = "dev",
    confidence: str = "entropy",
    unanswerable: Sequence[str | os.PathLike[str] | Dataset] = (),
    relevance_level: int = 1,
    drop_own_id: bool = True,
    dtype: Sequence[str] = (),
    truncate_dim: Sequence[int] = (),
    rescore_multiplier: int | None = None,
    precision: str | None = None,
    output: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    tracker: str = "mlflow",
) -> Report:
    """Evaluate models side by side on the judged queries of a split, with exact search over all passages.

    Args:
        models: a list, or a dictionary whose keys are the names in tables. A fusion such as `"bm25+NAME"` may contain
            such a NAME. A model is `"bm25"`, a name or path, a `Model`, a `Run`, a `SentenceTransformer`, a function,
            or a system: `"bm25+minilm"`, `"minilm>CROSS-ENCODER@100"`, `"run:FILE"` or `"vectors:FOLDER"`. A function
            `encode(texts, side)` gets the side `query` or `passage` and returns embeddings `[texts, dim]`. A score is
            the dot product of two embeddings.
        data: one data set, or a list of data sets.
        split: the judged split.
        metrics: the metrics to compute, such as `"ndcg@10,recall@100,auc"` or a list of such names.
        baselines: names of one or two models that the others are compared with; by default the first.
        calibrate: targets for which thresholds are chosen. For queries: `"top-precision=0.9"` (of the answers shown),
            `"wrong-answers=0.05"` or `"missed=0.1"` (largest expected fraction of new queries), `"answered=0.8"` (of
            the queries), or `"f1"`. For passages: `"kept=0.95"` (of the relevant passages, on average). For pairs:
            `"precision=0.9"` or `"recall=0.8"`. `calibration.json` is written to each model directory; `Index.search`
            reads it.
        calibration_split: the split on which thresholds are chosen. If it is `split` itself, they are chosen and tested
            on the same queries.
        confidence: the measure that decides whether a query is answered: `score`, `entropy` (by default) or `combined`.
        unanswerable: sources of more queries without an answer, besides those of the data sets. `"removed"` removes the
            answers of half of the queries, `"removed=0.2"` of a fifth. A data set on other topics adds its queries.
        relevance_level: lowest grade of a relevant passage.
        drop_own_id: whether a passage that has the id of a query is left out of the query's results, as in BEIR.
        dtype: types of quantized embeddings to evaluate as well, such as `["int8", "binary"]`. Texts are encoded once.
        truncate_dim: dimensions of truncated embeddings to evaluate as well, such as `[64, 128]`.
        rescore_multiplier: with quantized embeddings, the number of candidates to rescore for each result; by default
            2.
        precision: precision of encoding, `fp32`, `bf16` or `int8`; by default the precision passed to `load_model`, or
            the faster of `fp32` and `bf16`.
        output: directory of the results, which `tracker` logs. Without `output` the files are temporary: they are
            deleted with the report; `Report.save` keeps a copy.
        fresh: whether to replace an earlier evaluation in `output`.
        tracker: where an evaluation with `output` is logged; see `train`.

    Raises:
        ConfigError: a model, metric or setting is unknown, or two models have the same name.
        DataError: a data set lacks the split, or no query of it has a relevant passage.
        ModelError: a model cannot be loaded.
        StorageError: a file cannot be written, or another process writes `output`.

    Examples:
        >>> report = rt.evaluate({"lexical": "bm25", "dense": encoder}, data, metrics=["ndcg@10"])
        >>> list(report.metrics)
        ['lexical', 'dense']
    """
    words = metrics if isinstance(metrics, str) else ",".join(metrics)
    config = EvaluationConfig(
        split=split,
        metrics=words,
        relevance_level=relevance_level,
        drop_own_id=drop_own_id,
        calibration_split=calibration_split,
        confidence=confidence,
        dtype=",".join(dtype) or ("fp32" if truncate_dim else None),
        truncate_dim=",".join(map(str, truncate_dim)) or None,
        rescore_multiplier=rescore_multiplier,
    )
    encoding = EncodeConfig()
    check_changed(checked(config), only=["rescore_multiplier"])
    sets = [data] if isinstance(data, Dataset | str | os.PathLike) else list(data)
    if isinstance(models, str | os.PathLike | Model | Run) or not models:
        raise ConfigError("is not a list with at least one model", "models", "give a list such as ['bm25', 'minilm']")
    functions: list[FunctionEncoder] = []  # keep these objects: a function's name is registered while they exist
    evaluated = _evaluated(models, functions)
    arithmetic = precision_of(precision, models.values() if isinstance(models, Mapping) else models)

    from raytriever.evaluation.protocol import asks_removed
    from raytriever.evaluation.requested_models import build_evaluation_job

    trackers = read_trackers(tracker)
    made = [
        questions if isinstance(questions, str) and asks_removed(questions) else source_of(questions)
        for questions in unanswerable
    ]
    rate = max((dataset.max_bad_rows for dataset in sets if isinstance(dataset, Dataset)), default=0.01)
    job = build_evaluation_job(
        evaluated, [source_of(dataset) for dataset in sets], config, baselines, calibrate, made, arithmetic, rate, warn
    )
    if output is not None:
        folder = path_of(output)
        return Report(_evaluate(job, encoding, folder, fresh, trackers), folder, None)
    temporary = Path(mkdtemp(prefix="raytriever-"))
    try:
        folder = temporary / "results"
        return Report(_evaluate(job, encoding, folder, fresh, ()), folder, temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _evaluate(
    job: EvaluationJob, encoding: EncodeConfig, folder: Path, fresh: bool, trackers: Sequence[str]
) -> Results:
    with working("evaluate", folder):
        from raytriever.cluster.evaluate_on_cluster import evaluate_in_session
        from raytriever.evaluation.run_evaluation import run_evaluation
        from raytriever.experiments.report.evaluation_page import write_evaluation_report

        run = partial(run_evaluation, job, write_page=write_evaluation_report)
        return evaluate_in_session(run, encoding, folder, fresh, trackers, warn)


@public
def compare(
    runs: Sequence[Run | Report | str | os.PathLike[str]], output: str | os.PathLike[str] = "report.html"
) -> Path:
    """Write one HTML page that compares finished runs of training and evaluation.

    Args:
        runs: elements are a `Run`, a `Report`, a directory, an MLflow run id (32 hexadecimal digits), or an MLflow
            filter such as `"params.loss.loss = 'mw'"`. The page compares every run with the first one.
        output: the HTML file to write.

    Returns:
        The file.

    Raises:
        ConfigError: an element of `runs` is not a finished run.
        StorageError: a run is damaged, or the file cannot be written.

    Examples:
        >>> lexical = rt.evaluate(["bm25"], data)
        >>> folder = rt.evaluate([encoder], data).save("results/dense")
        >>> rt.compare([lexical, folder], "page.html")
        PosixPath('page.html')
    """
    if isinstance(runs, str | os.PathLike | Run | Report) or not runs:
        raise ConfigError("is not a list with at least one run", "runs", "give a list such as ['runs/a', 'runs/b']")
    words = [str(run._folder if isinstance(run, Report) else run.path if isinstance(run, Run) else run) for run in runs]
    page = path_of(output)

    from raytriever.experiments.report.comparison_page import compare_runs

    with working("compare"):
        compare_runs(words, page)
    return page


def _evaluated(
    models: Sequence[ModelLike | EncodeFunction] | Mapping[str, ModelLike | EncodeFunction],
    functions: list[FunctionEncoder],
) -> list[EvaluatedModel]:
    from raytriever.evaluation.requested_models import name_models
    from raytriever.retrieval.external_encoders.encode_function import function_encoder

    labeled = list(models.items()) if isinstance(models, Mapping) else [(None, model) for model in models]
    own: dict[str, SystemTree] = {}  # systems that a fusion can contain, by name
    rows: list[tuple[str | None, SystemTree | str]] = []
    for label, model in labeled:
        system: SystemTree | str
        if isinstance(model, str | os.PathLike):
            system = os.fspath(model)
        elif isinstance(model, Run | Model):
            system = (model.model if isinstance(model, Run) else model).config
        else:
            label = label or str(getattr(model, "__name__", type(model).__name__))
            functions.append(function_encoder(model, label))
            system = EncoderConfig(model=functions[-1].name)
        if label and not isinstance(system, str):
            own[label] = system
        rows.append((label, system))

    def system_of(word: str) -> SystemTree:
        tree = replace_nodes(parse_system(word), lambda node: own.get(system_text(node), node))
        SYSTEM.check(system_text(tree), "model")
        return tree

    return name_models([(label, system_of(system) if isinstance(system, str) else system) for label, system in rows])
