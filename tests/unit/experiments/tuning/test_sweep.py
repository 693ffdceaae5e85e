"""Trial log, table and figures of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import StorageError
from raytriever.core.terminal import markdown_table, text_table
from raytriever.experiments.tuning.ray.sweep import save_response
from raytriever.experiments.tuning.trial_log import Trial, find_best, rank_trials, read_trials, sweep_rows, write_trials

METRIC = "ndcg_at_10"


@pytest.fixture
def trials() -> list[Trial]:
    def settings(loss: str, tau: float) -> dict[str, object]:
        return {"loss.loss": loss, "loss.temperature": tau}

    return [
        Trial(0, settings("mw", 0.01), "finished", {METRIC: 0.5, "dev_loss": 2.0}, 40, 3.0),
        Trial(1, settings("mw", 0.05), "stopped", {"dev_loss": 0.1}, 20, 1.0, "behind at step 20"),
        Trial(2, settings("infonce", 0.01), "finished", {METRIC: 0.7, "dev_loss": 3.0}, 40, 3.0),
        Trial(3, settings("infonce", 0.05), "failed", {}, 0, 0.5, "the loss | is NaN"),
        Trial(4, settings("infonce", 0.1), "finished", {METRIC: 0.7, "dev_loss": 1.0}, 40, 3.0),
    ]


def test_the_best_trial_has_the_highest_metric_or_the_lowest_loss(trials: list[Trial]) -> None:
    best = find_best(trials, METRIC)
    assert best is not None
    assert best.number == 2
    # The trial with the lowest dev loss was stopped, so it does not count.
    lowest = find_best(trials, "dev_loss")
    assert lowest is not None
    assert lowest.number == 4
    assert find_best(trials[1:2], METRIC) is None
    nan = Trial(5, {}, "finished", {METRIC: float("nan")})
    assert find_best([nan], METRIC) is None


def test_trials_are_read_as_written_and_a_damaged_file_is_reported(trials: list[Trial], tmp_path: Path) -> None:
    assert read_trials(tmp_path) == []
    write_trials(tmp_path, trials, METRIC, planned=6)
    assert read_trials(tmp_path) == trials
    (tmp_path / "trials.json").write_text((tmp_path / "trials.json").read_text()[:99])
    with pytest.raises(StorageError, match="is damaged or changed"):
        read_trials(tmp_path)


def test_the_table_lists_the_best_trial_first_and_the_status_of_the_others(trials: list[Trial]) -> None:
    assert [trial.number for trial in rank_trials(trials, METRIC)] == [2, 4, 0, 1, 3]
    rows = sweep_rows(trials, METRIC)
    assert rows[0] == ["trial", "loss", "temperature", "nDCG@10", "dev loss", "steps", "seconds", "status"]
    assert rows[1] == ["002", "infonce", "0.01", "0.7000", "3.0000", "40", "3.0", "finished"]
    assert rows[4][-1] == "stopped: behind at step 20"
    assert rows[5][3:5] == ["-", "-"]
    lines = text_table(rows).splitlines()
    assert len(lines) == 6
    assert lines[0].index("nDCG@10") + len("nDCG@10") == lines[1].index("0.7000") + len("0.7000")
    page = markdown_table(rows).splitlines()
    assert page[1] == "|" + " --- |" * 8
    assert "the loss \\| is NaN" in page[-1]


@pytest.mark.slow
def test_trials_are_drawn(trials: list[Trial], tmp_path: Path) -> None:
    save_response(tmp_path / "response.png", trials, METRIC, "nDCG@10", "loss.temperature", "loss.loss", log=True)
    assert len([*tmp_path.iterdir()]) == 2
    assert "infonce" in (tmp_path / "response.svg").read_text()
    save_response(tmp_path / "none.png", trials[3:4], METRIC, "nDCG@10", "loss.temperature", None, log=True)
    assert not (tmp_path / "none.png").exists()


def test_a_logarithmic_axis_shows_plain_numbers(tmp_path: Path) -> None:
    trials = [Trial(n, {"loss.temperature": 0.003 * 2**n}, "finished", {METRIC: 0.5 + n / 100}) for n in range(9)]
    save_response(tmp_path / "many.png", trials, METRIC, "nDCG@10", "loss.temperature", None, log=True)
    drawn = (tmp_path / "many.svg").read_text()
    assert "mathdefault" not in drawn
    assert all(f">{tick}<" in drawn for tick in ("0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5"))
