"""Search spaces, their grids and their errors; trial log, table and figures of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import ConfigError, StorageError, UserError
from raytriever.core.terminal import markdown_table, text_table
from raytriever.experiments.tuning.ray.sweep import save_response
from raytriever.experiments.tuning.space import NAMED, SearchSpace, parse_search_space, parse_space
from raytriever.experiments.tuning.trial_log import Trial, find_best, rank_trials, read_trials, sweep_rows, write_trials
from raytriever.training.run_config import Config

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


FILE = """
loss:
  loss: [infonce, mw, lsepair]
  distribution_weight: [0, 0.01]
  temperature: {low: 1e-2, high: 0.1, scale: log, grid: 2}
"""


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> str:
        file = tmp_path / "space.yaml"
        file.write_text(text)
        return str(file)

    return write


def test_a_grid_holds_every_combination_once_the_last_dimension_fastest(written) -> None:
    points = parse_search_space(written(FILE)).grid()
    assert len(points) == 12
    assert len({tuple(point.values()) for point in points}) == 12
    assert points[0] == {"loss.loss": "infonce", "loss.distribution_weight": 0.0, "loss.temperature": 0.01}
    assert points[1] == {"loss.loss": "infonce", "loss.distribution_weight": 0.0, "loss.temperature": 0.1}
    assert points[-1] == {"loss.loss": "lsepair", "loss.distribution_weight": 0.01, "loss.temperature": 0.1}


def test_a_log_range_is_uniform_in_the_logarithm_and_keeps_its_ends() -> None:
    [one] = parse_space(
        {"training": {"learning_rate": {"low": 1e-5, "high": 1e-3, "scale": "log", "grid": 3}}}, "f"
    ).dimensions
    assert one.values == pytest.approx((1e-5, 1e-4, 1e-3))
    assert (one.values[0], one.values[-1]) == (1e-5, 1e-3)
    [whole] = parse_space({"training": {"warmup_steps": {"low": 0, "high": 10, "grid": 3}}}, "f").dimensions
    assert whole.values == (0, 5, 10)
    assert all(isinstance(value, int) for value in whole.values)


def test_the_named_dimensions_are_existing_settings() -> None:
    space = parse_search_space(",".join(NAMED))
    assert len(space.dimensions) == len(NAMED)
    assert all(hasattr(getattr(Config(), item.section), item.name) for item in space.dimensions)
    assert len(parse_search_space("loss,lambda,temperature").grid()) == 12


def test_a_space_is_read_as_written() -> None:
    space = parse_search_space("loss,lambda,temperature,warmup")
    assert parse_space(space.to_dict(), "again") == space


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("loss: {temperatur: [0.1]}", "", "unknown setting 'temperatur'; did you mean 'temperature'?"),
        ("lossy: {loss: [mw]}", "", "unknown section 'lossy'; did you mean 'loss'?"),
        ("loss: {loss: []}", ": loss.loss", "is an empty list"),
        ("loss: {loss: [mw, mv]}", ": loss.loss", "unknown value 'mv'"),
        ("loss: {temperature: [0.1, warm]}", ": loss.temperature", "temperature is 'warm'; give a number"),
        ("loss: {temperature: [0.1, -1]}", ": loss.temperature", "-1.0 is out of range"),
        ("loss: {temperature: [0.1, 1e-1]}", ": loss.temperature", "0.1 is listed twice"),
        ("loss: {temperature: 0.1}", ": loss.temperature", "holds 0.1; give a list of values"),
        ("loss: {temperature: {low: 0.5, high: 0.1}}", ": loss.temperature", "low 0.5 is not below high 0.1"),
        ("loss: {temperature: {low: 0.5}}", ": loss.temperature", "has no 'high'"),
        ("loss: {temperature: {low: 0.1, high: 0.5, step: 2}}", ": loss.temperature", "unknown key 'step'"),
        ("loss: {temperature: {low: 0.1, high: 0.5, scale: lg}}", ": loss.temperature", "unknown scale 'lg'"),
        ("loss: {temperature: {low: 0.1, high: 0.5, grid: [1]}}", ": loss.temperature.grid", "1 is out of range"),
        ("loss: {temperature: {low: 0.1, high: 0.5, grid: one}}", ": loss.temperature.grid", "holds 'one'"),
        ("loss: {temperature: {low: warm, high: 0.5}}", ": loss.temperature.low", "give a number"),
        (
            "loss: {distribution_weight: {low: 0, high: 1, scale: log}}",
            ": loss.distribution_weight",
            "low 0 is not above 0",
        ),
        ("loss: {loss: {low: 1, high: 2}}", ": loss.loss", "cannot have a range"),
        ("training: {batch_size: [16, 16.5]}", ": training.batch_size", "batch_size is 16.5; give a whole number"),
        ("training: {num_workers: [1, 2]}", ": training.num_workers", "cannot be searched"),
        ("data: {dataset: [a, b]}", ": data.dataset", "cannot be searched"),
        ("loss: [mw]", "", "section 'loss' holds ['mw']"),
        ("loss: {}", "", "section 'loss' holds {}"),
        ("{}", "", "holds nothing to search"),
    ],
)
def test_an_error_names_the_file_and_the_key(written, text: str, key: str, said: str) -> None:
    file = written(text)
    with pytest.raises(ConfigError) as logged:
        parse_search_space(file)
    line = str(logged.value)
    assert line.startswith(f"{file}{key}: "), line
    assert said in line
    assert "\n" not in line


def test_a_file_that_cannot_be_opened_is_reported_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "circle.yaml").symlink_to("circle.yaml")
    for name, line in (
        (f"{'n' * 300}.yaml", "the name is too long; give a shorter name"),
        ("circle.yaml", "symbolic links form a loop; remove one of the links or give another path"),
        ("gone.yaml", "cannot be read (No such file or directory); give a YAML file"),
    ):
        with pytest.raises(UserError) as logged:
            parse_search_space(str(tmp_path / name))
        assert str(logged.value) == f"{tmp_path / name}: {line}"


@pytest.mark.parametrize(("given", "said"), [("los", "did you mean 'loss'"), ("loss,loss", "is listed twice")])
def test_a_wrong_name_is_reported(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_search_space(given)


def test_a_grid_needs_values_for_every_range() -> None:
    space: SearchSpace = parse_space({"loss": {"temperature": {"low": 0.1, "high": 0.5}}}, "f")
    with pytest.raises(ConfigError, match=r"loss\.temperature has a range and no values for a grid"):
        space.grid()
