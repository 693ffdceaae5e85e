"""Curves over all stages of a run."""

from __future__ import annotations

import json
from pathlib import Path

from raytriever.experiment.conclusion import end_to_end, masking_lines
from raytriever.tracking.steps import STEPS, read_curve


def stage(folder: Path, losses: dict[int, float], looks: dict[int, float]) -> Path:
    folder.mkdir()
    lines = [{"step": step, "measured": {"loss": loss}} for step, loss in losses.items()]
    lines += [{"step": step, "measured": {"dev_loss": loss}} for step, loss in looks.items()]
    (folder / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_stage_starts_at_the_last_step_of_the_one_before(tmp_path: Path) -> None:
    first = stage(tmp_path / "1", {1: 0.5, 2: 0.25, 3: 0.125}, {2: 5.0})
    nothing = stage(tmp_path / "2", {}, {})
    last = stage(tmp_path / "3", {1: 1.5, 2: 1.25}, {2: 6.0})
    assert end_to_end([first, nothing, last], "loss") == [(1, 0.5), (2, 0.25), (3, 0.125), (4, 1.5), (5, 1.25)]
    assert end_to_end([first, nothing, last], "dev_loss") == [(2, 5.0), (5, 6.0)]
    assert end_to_end([last], "loss") == read_curve(last, "loss")


def test_the_report_says_how_many_negatives_a_guide_masked(tmp_path: Path) -> None:
    plain, guided = (tmp_path / name for name in ("plain", "guided"))
    stage(plain, {1: 0.5}, {})
    guided.mkdir()
    lines = [{"step": step, "measured": {"guide_masked": share}} for step, share in ((1, 0.01), (2, 0.03))]
    (guided / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert masking_lines([plain]) == []
    assert masking_lines([plain, guided]) == ["The guide masked 2.00% of the negatives of a batch, at most 3.00%"]
