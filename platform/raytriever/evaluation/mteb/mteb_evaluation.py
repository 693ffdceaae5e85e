"""Evaluation of models on tasks of MTEB, task by task, with results in the layout of MTEB's `ResultCache`.

    OUTPUT/results/MODEL/REVISION/TASK.json, model_meta.json, run_settings.jsonl   written by MTEB
    OUTPUT/results/MODEL/REVISION/retrieval/TASK/                                  our results of a retrieval task
    OUTPUT/results/MODEL/REVISION/TASK.error.txt                                   traceback of a task that failed
    OUTPUT/table.md                                                                all tasks in one table

All settings are checked first. A task is finished when MTEB's result exists and, for retrieval, our results of all its
splits. The same command continues after the last finished task, and inside a task after the last encoded shard of its
corpus."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from raytriever.core.errors import ConfigError, DataError, UserError, setting
from raytriever.core.store.commit import remove, write_atomically
from raytriever.core.store.disk import check_writable
from raytriever.core.unknown_names import nearest
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.mteb.mteb_encoder import require_mteb
from raytriever.evaluation.mteb.search_protocol import MtebJob, TaskSearch
from raytriever.evaluation.protocol import Protocol, asks_removed, parse_targets, read_metrics, removed_fraction
from raytriever.evaluation.report_document import points_of
from raytriever.evaluation.requested_models import EvaluatedModel, pin_models
from raytriever.evaluation.result_tables import MetricTables, printed
from raytriever.evaluation.results import Results
from raytriever.evaluation.system_names import system_text
from raytriever.evaluation.systems import Encoders, RetrievalBackend
from raytriever.models.device_and_precision import choose_precision, default_device
from raytriever.models.directory.hub_or_local import has_files
from raytriever.models.retriever import Retriever
from raytriever.tracking.tracker import COMMAND, DatasetRecord, Tracker, closing

SUITE = setting("suite", "mteb")


def build_mteb_job(
    models: Sequence[EvaluatedModel],
    config: EvaluationConfig,
    targets: Sequence[str],
    unanswerable: Sequence[str],
    precision: str | None,
    max_bad_rows: float,
) -> MtebJob:
    """Build the evaluation job that the settings describe, with hub models pinned to commits.

    The precision is fp32 if none is given."""
    require_mteb(SUITE)
    for model in models:
        if model.config is None:
            what = f"{system_text(model.system)} is not an encoder"
            raise ConfigError(what, setting("model"), f"leave it out: {SUITE} evaluates encoders")
        if not has_files(model.config.model):
            what = f"{model.config.model} has no files, which {SUITE} needs"
            raise ConfigError(what, setting("model"), "leave it out")
    metrics = read_metrics(config.metrics)
    if any(name.startswith("accuracy_at_") for name in metrics):
        raise ConfigError("MTEB's data sets have no answers", setting("metrics"), "leave acc@K out")
    return MtebJob(
        tasks=read_tasks(config.tasks, config.benchmark),
        models=pin_models(models),
        protocol=Protocol(metrics),
        targets=parse_targets(targets),
        calibration_split=config.calibration_split,
        confidence=config.confidence,
        removed=removed_fraction(unanswerable),
        foreign=[word for word in unanswerable if not asks_removed(word)],
        precision=precision or MtebJob.precision,
        max_bad_rows=max_bad_rows,
    )


def read_tasks(names: str | None, benchmark: str | None) -> list[Any]:
    """Return MTEB's tasks with the given names, separated by commas, or those of a benchmark."""
    import mteb

    words = [word.strip() for word in (names or "").split(",") if word.strip()]
    if bool(words) == bool(benchmark):
        one, other = setting("tasks"), setting("benchmark")
        what = f"both {one} and {other} are given" if words else f"neither {one} nor {other} is given"
        raise ConfigError(what, SUITE, f"name tasks by {one} NAME,... or one benchmark by {other}")
    if benchmark:
        tasks = list(_look_up(mteb.get_benchmark, benchmark, "benchmark").tasks)
    else:
        tasks = [_look_up(mteb.get_task, word, "task") for word in dict.fromkeys(words)]
    for task in tasks:
        others = sorted(set(task.metadata.modalities) - {"text"})
        if others:
            raise ConfigError(
                f"task {task.metadata.name} needs {' and '.join(others)}", SUITE, "leave it out: only texts are encoded"
            )
    return tasks


def _look_up(find: Callable[[str], Any], name: str, kind: str) -> Any:
    import mteb

    try:
        return find(name)
    except KeyError:
        if kind == "task":
            tasks = mteb.get_tasks(exclude_superseded=False, exclude_private=False, exclude_beta=False)
            names = [task.metadata.name for task in tasks]
        else:
            names = [
                name for benchmark in mteb.get_benchmarks() for name in (benchmark.name, *(benchmark.aliases or ()))
            ]
        # Suggest only the most similar name, ignoring case: a list of a thousand names would help nobody.
        folded = {name.casefold(): name for name in names}
        close = nearest(name.casefold(), folded)
        remedy = "see https://docs.mteb.org for the names" if close is None else f"did you mean {folded[close]!r}?"
        raise ConfigError(f"unknown {kind} {name!r}", setting("tasks" if kind == "task" else kind), remedy) from None


TABLE, TRACEBACK = "table.md", ".error.txt"


def raise_missing(results: Results) -> None:
    """Raise a `DataError` that names the tasks without a result, if there are any."""
    if results.missing:
        remedy = "run the same command again to try them once more"
        raise DataError(f"there is no result of {', '.join(results.missing)}", None, remedy)


def run_mteb(
    job: MtebJob,
    output: Path,
    fresh: bool,
    tracker: Callable[[], Tracker],
    log: Callable[[str], None],
    backend: RetrievalBackend | None = None,
    on_result: Callable[[str, str, Mapping[str, float]], None] | None = None,
) -> Results:
    """Evaluate all models on all tasks, or continue an interrupted evaluation.

    If the data of a task cannot be loaded, or MTEB's code of a task fails, the other tasks still run.

    `fresh` removes earlier results of the models in the output. `on_result` gets the metrics of each task.

    Returns:
        MTEB's `main_score` by model and task, and the means of our metrics over the splits of the task. `missing` names
        the tasks that could not be evaluated.
    """
    from mteb import ResultCache

    if output.is_dir() and any(output.iterdir()) and not (output / "results").is_dir():
        what, where = "is not empty and holds no results of MTEB", setting("output", output)
        raise ConfigError(what, where, "give another directory")
    check_writable(output)
    device, cache = default_device(), ResultCache(cache_path=output)
    encoders = Encoders(job.models, choose_precision(job.precision, device), device, log, backend=backend)
    runs = [_ModelRun(job, model, encoders, cache, log) for model in job.models]
    for run in runs:
        run.check_revision(fresh)
    results, tracked = Results(models={model.name: {} for model in job.models}), tracker()
    with closing(tracked):
        tracked.describe(*_description(job, encoders), {COMMAND: "mteb"})
        for run in runs:
            for task in job.tasks:
                name = task.metadata.name
                try:
                    metrics = run.evaluate(task)
                except DataError as error:
                    results.missing += [name] * (name not in results.missing)
                    log(f"MISSING: {error}")
                else:
                    results.models[run.model.name][name] = dict(metrics)
                    if on_result is not None:
                        on_result(run.model.name, name, metrics)
        tracked.log(points_of(results))
        write_atomically(output / TABLE, printed(MetricTables(results.models, [], []).in_print({})))
        tracked.log_file(output / TABLE)
    return results


def _description(job: MtebJob, encoders: Encoders) -> tuple[dict[str, Any], DatasetRecord]:
    models = {model.name: encoders.systems[model.name] for model in job.models}
    tasks = {task.metadata.name: str(task.metadata.revision) for task in job.tasks}
    digest = hashlib.sha256(repr(sorted(tasks.items())).encode()).hexdigest()
    settings = {"models": models, "tasks": list(tasks), "precision": job.precision, **job.settings}
    return settings, DatasetRecord("mteb", "mteb", digest, {"tasks": len(tasks)})


@dataclass
class _ModelRun:
    job: MtebJob
    model: EvaluatedModel
    encoders: Encoders
    cache: Any
    log: Callable[[str], None]

    def check_revision(self, fresh: bool) -> None:
        """Raise `ConfigError` for results of another revision of the model. With `fresh`, remove its results first."""
        meta = self._searcher(self.job.tasks[0]).mteb_model_meta
        revision = self.cache.get_task_result_path("TASK", meta.model_copy(update={"experiment_kwargs": None})).parent
        if fresh:
            remove(revision.parent)
        others = sorted(path.name for path in revision.parent.glob("*") if path.is_dir() and path.name != revision.name)
        if others:
            what = f"holds results of revision {others[0]} of {meta.name}, which now has revision {revision.name}"
            remedy = f"give another {setting('output')}, or {setting('fresh', True)} to remove them"
            raise ConfigError(what, setting("output", self.cache.cache_path), remedy)

    def evaluate(self, task: Any) -> dict[str, float]:
        """Return the stored result of a task. If there is none, evaluate the task and store the result.

        If the data cannot be loaded or read, or MTEB's code fails, raise `DataError` and write the traceback to a file.
        """
        from mteb.abstasks import AbsTaskRetrieval
        from mteb.abstasks.aggregated_task import AbsTaskAggregate

        searcher = self._searcher(task)
        is_retrieval = isinstance(task, AbsTaskRetrieval)
        name = task.metadata.name
        stored = self._stored(task, searcher)
        our_results = searcher.our_results() if is_retrieval else {}
        if stored is not None and our_results is not None:
            self.log(f"{name}: {self.model.name} was evaluated before, see {searcher.folder}")
            return _metrics(stored, our_results)
        if isinstance(task, AbsTaskAggregate):
            for part in task.tasks:
                self.evaluate(part)
        else:
            self._load(task, is_retrieval)
        self.log(f"{name}: {task.metadata.type}, {self.model.name}")
        report = searcher.folder / f"{name}{TRACEBACK}"
        try:
            result = self._run(searcher, task, again=is_retrieval)
            remove(report)
        except UserError:
            raise
        except Exception as error:  # the code of a task may raise anything
            report.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(report, traceback.format_exc())
            raise DataError(
                f"the task failed in {self.model.name} ({_first_line(error)})", name, f"see the traceback in {report}"
            ) from error
        finally:
            if not isinstance(task, AbsTaskAggregate):
                task.unload_data()
        return _metrics(result, (searcher.our_results() if is_retrieval else {}) or {})

    def _run(self, searcher: TaskSearch, task: Any, again: bool) -> Any:
        import mteb

        results = mteb.evaluate(
            searcher,
            task,
            cache=self.cache,
            overwrite_strategy="always" if again else "only-missing",
            encode_kwargs={"batch_size": 32, "show_progress_bar": False},
            show_progress_bar=False,
            co2_tracker=False,
        )
        return results.task_results[0]

    def _searcher(self, task: Any) -> TaskSearch:
        assert self.model.config is not None
        return TaskSearch(
            config=self.model.config,
            retriever=cast(Retriever, self.encoders[self.model.config]),  # `build_mteb_job` refuses other systems
            label=self.model.name,
            task=task,
            job=self.job,
            cache=self.cache,
            backend=self.encoders.backend,
            log=self.log,
        )

    def _stored(self, task: Any, searcher: TaskSearch) -> Any:
        """Return MTEB's result of a task if it is complete. Remove a damaged result of a killed command."""
        path = self.cache.get_task_result_path(task.metadata.name, searcher.mteb_model_meta)
        try:
            result = self.cache.load_task_result(task.metadata.name, searcher.mteb_model_meta)
        except ValueError:  # from the JSON parser or from a field
            self.log(f"{path}: is damaged; the task is evaluated again")
            remove(path)
            return None
        return None if result is None or result.get_missing_evaluations(task) else result

    def _load(self, task: Any, is_retrieval: bool) -> None:
        """Load the data of a task, and the calibration split if thresholds are requested and the split exists."""
        splits, chosen_on = list(task.eval_splits), self.job.calibration_split
        if is_retrieval and self.job.targets and chosen_on not in splits:
            try:
                task.filter_eval_splits([*splits, chosen_on]).load_data()
            except Exception as error:  # the libraries have no common error for a split that does not exist
                name, reason = task.metadata.name, _first_line(error)
                self.log(f"{name}: the calibration split {chosen_on!r} cannot be loaded ({reason}); it is left out")
                if task.data_loaded:
                    task.unload_data()
            finally:
                task.filter_eval_splits(splits)
        try:
            task.load_data()
        except Exception as error:  # from the network, the hub, a loading script or a file
            what = f"the data set {task.metadata.dataset['path']} cannot be loaded ({_first_line(error)})"
            raise DataError(what, task.metadata.name, "go online, or leave the task out") from error


def _metrics(result: Any, our_results: Mapping[str, Results]) -> dict[str, float]:
    rows = [
        metrics for content in our_results.values() for sets in content.models.values() for metrics in sets.values()
    ]
    values = {
        name: [value for row in rows if (value := row.get(name)) is not None]
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    means = {name: float(np.mean(value)) for name, value in values.items() if value}
    return {"main_score": float(result.get_score()), **means}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
