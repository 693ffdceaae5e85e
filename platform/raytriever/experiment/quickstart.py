"""Size of the quickstart: the corpus and the number of steps that this machine manages in a few minutes.

A fixed number of passages is encoded by the encoder of the run, at its length. The speed chooses one of a few sizes.
The choice is part of the settings of the run, so a call that resumes the run reads it there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from raytriever.activity import activity
from raytriever.config import Config, Curriculum, override, to_dict
from raytriever.data.pydocs.builder import PART_PAIRS, PYDOCS, PYDOCS_PART
from raytriever.encoding.encode import encode_contents
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import flag_of
from raytriever.experiment.directory import check_run_directory, recorded_settings
from raytriever.models.precision import choose_precision
from raytriever.models.retriever import Retriever
from raytriever.tracking.trackers import DEFAULT_TRACKERS, check_trackers

TEXTS, BURSTS, WARM_UP = 64, 2, 16


@dataclass(frozen=True)
class QuickstartSize:
    """Corpus and number of steps of a quickstart, for machines that encode at least `speed` passages per second."""

    speed: float
    dataset: str
    steps: int


# The corpus is encoded twice. A step takes as long as the encoding of 400 passages in fp32 and of 550 in bf16, and the
# rest of the run about a minute.
SIZES = (
    QuickstartSize(600, PYDOCS, 60),
    QuickstartSize(250, PYDOCS_PART, 60),
    QuickstartSize(170, PYDOCS_PART, 40),
    QuickstartSize(0, PYDOCS_PART, 20),
)


def size_quickstart(
    curriculum: Curriculum,
    output: Path,
    fresh: bool,
    log: Callable[[str], None],
    trackers: Sequence[str] = DEFAULT_TRACKERS,
) -> Curriculum:
    """Return the settings of the quickstart with the corpus and the steps that suit the processor.

    A GPU, or a cluster that this process joins, has the whole size.

    Args:
        curriculum: settings of the whole size, without stages.
        output: the run directory. Its size is used if it holds a run.
        fresh: whether an earlier run in the directory is ignored.
    """
    recorded = None if fresh else _recorded(output)
    if recorded is not None:
        return Curriculum(_resized(curriculum.base, recorded))
    if torch.cuda.is_available() or os.environ.get("RAY_ADDRESS"):
        return curriculum
    cpu, base = torch.device("cpu"), curriculum.base
    check_run_directory(output, to_dict(base), fresh)
    check_trackers(trackers)
    speed = measure_speed(load_for_encoding(base.model, choose_precision(base.training.precision, cpu), cpu))
    size = choose_size(speed)
    log(describe(size, speed))
    return Curriculum(_resized(base, size))


@activity("measuring the speed of this processor")
def measure_speed(retriever: Retriever) -> float:
    """Return the passages per second that a retriever encodes, all of its full length: the fastest of a few bursts."""
    length = retriever.description.passage_length
    contents = [np.ones(length, np.int64)] * TEXTS
    encode_contents(retriever, contents[:WARM_UP], "passage")
    seconds = []
    for _ in range(BURSTS):
        began = time.perf_counter()
        encode_contents(retriever, contents, "passage")
        seconds.append(time.perf_counter() - began)
    return TEXTS / min(seconds)


def choose_size(speed: float) -> QuickstartSize:
    """Return the largest size for a speed in passages per second."""
    return next(size for size in SIZES if speed >= size.speed)


def describe(size: QuickstartSize, speed: float) -> str:
    """Return a line on the choice: what, why, and how to have all."""
    whole = SIZES[0]
    why = f"This machine encodes {speed:,.0f} passages/s"
    if size == whole:
        return f"{why}: the quickstart uses all docstrings ({PYDOCS}) and {size.steps} steps."
    steps = f"{flag_of('max_steps')} {size.steps} with {flag_of('dataset')} {size.dataset}"
    return (
        f"{why} (all docstrings need {whole.speed:,.0f}): the quickstart uses {PART_PAIRS:,} docstrings of the "
        f"standard library and the largest packages, and {size.steps} steps ({steps}). For all: "
        f"{flag_of('dataset')} {PYDOCS}"
    )


def _recorded(folder: Path) -> QuickstartSize | None:
    """Return the size of the run in a directory; None if it holds another run, or none."""
    settings = recorded_settings(folder)
    data, training = settings.get("data"), settings.get("training")
    if not isinstance(data, dict) or not isinstance(training, dict):
        return None
    chosen = data.get("dataset"), training.get("max_steps")
    return next((size for size in SIZES if (size.dataset, size.steps) == chosen), None)


def _resized(config: Config, size: QuickstartSize) -> Config:
    return override(config, {"data": {"dataset": size.dataset}, "training": {"max_steps": size.steps}})
