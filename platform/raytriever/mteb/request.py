"""Request of an evaluation on MTEB: its models, its tasks by name or benchmark, and our figures. All is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytriever.errors import ConfigError, setting
from raytriever.evaluation.config import EvaluationConfig
from raytriever.evaluation.pooled_scores import parse_aims
from raytriever.evaluation.protocol import read_metrics
from raytriever.evaluation.request import BM25, EvaluatedModel, pin_models
from raytriever.mteb.encoder import require_mteb
from raytriever.mteb.search import Measures
from raytriever.options import did_you_mean

SUITE = setting("suite", "mteb")


@dataclass(frozen=True, kw_only=True)
class MtebJob:
    """Models and tasks of an evaluation on MTEB.

    The precision is fp32 by default on every device, so that results of different machines compare.
    """

    models: Sequence[EvaluatedModel]
    tasks: Sequence[Any]
    measures: Measures = field(default_factory=Measures)
    precision: str = "fp32"


def build_mteb_job(
    models: Sequence[EvaluatedModel],
    config: EvaluationConfig,
    aims: Sequence[str],
    precision: str | None,
    max_bad_rows: float,
) -> MtebJob:
    """Build the request that settings describe, with hub models pinned to commits.

    The precision is fp32 if none is given.
    """
    require_mteb(SUITE)
    for model in models:
        if model.config is None:
            raise ConfigError(f"{BM25} is no encoder", setting("model"), f"leave it out with {SUITE}")
    metrics = read_metrics(config.metrics)
    if any(name.startswith("accuracy_at_") for name in metrics):
        raise ConfigError("MTEB's data sets hold no answers", setting("metrics"), "leave acc@K out")
    measures = Measures(
        metrics=metrics,
        aims=tuple(parse_aims(aims)),
        calibration_split=config.calibration_split,
        max_bad_rows=max_bad_rows,
    )
    tasks = read_tasks(config.tasks, config.benchmark)
    return MtebJob(models=pin_models(models), tasks=tasks, measures=measures, precision=precision or MtebJob.precision)


def read_tasks(names: str | None, benchmark: str | None) -> list[Any]:
    """Return tasks of MTEB by their names, separated by commas, or those of a benchmark."""
    import mteb

    words = [word.strip() for word in (names or "").split(",") if word.strip()]
    if bool(words) == bool(benchmark):
        one, other = setting("tasks"), setting("benchmark")
        what = f"both {one} and {other} are given" if words else f"neither {one} nor {other} is given"
        raise ConfigError(what, SUITE, f"name tasks by {one} NAME,... or one benchmark by {other}")
    if benchmark:
        tasks = list(_look_up(mteb.get_benchmark, benchmark, "benchmark", _benchmark_names).tasks)
    else:
        tasks = [_look_up(mteb.get_task, word, "task", _task_names) for word in dict.fromkeys(words)]
    for task in tasks:
        others = sorted(set(task.metadata.modalities) - {"text"})
        if others:
            raise ConfigError(
                f"{task.metadata.name} needs {' and '.join(others)}", SUITE, "raytriever encodes texts; leave it out"
            )
    return tasks


def _look_up(find: Callable[[str], Any], name: str, kind: str, names: Callable[[], list[str]]) -> Any:
    try:
        return find(name)
    except KeyError:
        raise ConfigError(
            f"unknown {kind} {name!r}", setting("tasks" if kind == "task" else kind), _suggest(name, names())
        ) from None


def _suggest(name: str, names: list[str]) -> str:
    """Return the nearest name without regard to case; a list of a thousand names would help nobody."""
    folded = {each.casefold(): each for each in names}
    remedy = did_you_mean(name.casefold(), folded)
    if not remedy.startswith("did"):
        return "see https://docs.mteb.org for the names"
    return f"did you mean {folded[remedy.split(chr(39))[1]]!r}?"


def _task_names() -> list[str]:
    import mteb

    tasks = mteb.get_tasks(exclude_superseded=False, exclude_private=False, exclude_beta=False)
    return [task.metadata.name for task in tasks]


def _benchmark_names() -> list[str]:
    import mteb

    return [name for one in mteb.get_benchmarks() for name in (one.name, *(one.aliases or ()))]
