"""Size of the quickstart: what the speed of the processor decides, and that a resumed run keeps the choice."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from raytriever.cli.quickstart import WORDS
from raytriever.cli.train import _is_quickstart, _parser
from raytriever.config import Config, Curriculum, dump_config
from raytriever.data.config import DataConfig
from raytriever.data.pydocs.builder import PYDOCS, PYDOCS_PART
from raytriever.errors import ConfigError
from raytriever.experiment import quickstart
from raytriever.experiment.quickstart import SIZES, choose_size, measure_speed, size_quickstart
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.recipes import RECIPES


@pytest.fixture
def whole(tiny_encoder: Path) -> Curriculum:
    """Return the settings of the quickstart with a small encoder."""
    return Curriculum(replace(RECIPES["pydocs"](), model=ModelConfig(model=str(tiny_encoder), passage_length=48)))


def at_speed(speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(quickstart, "measure_speed", lambda retriever: speed)


def chosen(curriculum: Curriculum) -> tuple[str, int | None]:
    return curriculum.base.data.dataset, curriculum.base.training.max_steps


@pytest.mark.parametrize(
    ("speed", "dataset", "steps"),
    [(900, PYDOCS, 60), (599, PYDOCS_PART, 60), (249, PYDOCS_PART, 40), (127, PYDOCS_PART, 20)],
)
def test_the_speed_decides_the_corpus_and_the_steps_and_a_line_names_both(
    speed: float, dataset: str, steps: int, whole: Curriculum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_speed(speed, monkeypatch)
    lines: list[str] = []
    sized = size_quickstart(whole, tmp_path / "run", False, lines.append)
    assert chosen(sized) == (dataset, steps)
    assert len(lines) == 1
    assert f"{speed:,} passages/s" in lines[0]
    assert f"{steps} steps" in lines[0]
    assert ("--dataset pydocs-part" in lines[0]) == (dataset == PYDOCS_PART)
    assert lines[0].endswith("For all: --dataset pydocs") == (dataset == PYDOCS_PART)


def test_a_run_keeps_the_size_that_it_began_with(
    whole: Curriculum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_speed(180, monkeypatch)
    first = size_quickstart(whole, tmp_path, False, print)
    (tmp_path / "config.yaml").write_text(dump_config(first))
    at_speed(1000, monkeypatch)
    assert chosen(size_quickstart(whole, tmp_path, False, pytest.fail)) == (PYDOCS_PART, 40)
    assert chosen(size_quickstart(whole, tmp_path, True, print)) == (PYDOCS, 60)


def test_a_run_of_an_earlier_version_keeps_the_whole_size(
    whole: Curriculum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(whole))
    at_speed(10, monkeypatch)
    assert size_quickstart(whole, tmp_path, False, pytest.fail) == whole


def test_a_run_of_other_data_is_refused_before_the_measurement(
    whole: Curriculum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(Config(data=DataConfig(dataset="elsewhere"))))
    monkeypatch.setattr(quickstart, "measure_speed", lambda retriever: pytest.fail("measured"))
    with pytest.raises(ConfigError, match="holds a run with other settings"):
        size_quickstart(whole, tmp_path, False, print)


def test_a_cluster_has_the_whole_size(whole: Curriculum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_speed(10, monkeypatch)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert size_quickstart(whole, tmp_path / "run", False, pytest.fail) == whole


def test_the_sizes_are_ordered_and_the_last_has_no_lower_limit() -> None:
    speeds = [size.speed for size in SIZES]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] == 0
    recipe = RECIPES["pydocs"]()
    assert (SIZES[0].dataset, SIZES[0].steps) == (recipe.data.dataset, recipe.training.max_steps)
    assert [choose_size(size.speed) for size in SIZES] == list(SIZES)


def test_the_measured_speed_is_that_of_full_passages(whole: Curriculum, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = load_retriever(whole.base.model)
    lengths: set[int] = set()
    encode = quickstart.encode_contents

    def watched(of, contents, side):  # type: ignore[no-untyped-def]
        lengths.update(len(ids) for ids in of.assemble(contents, side))
        return encode(of, contents, side)

    monkeypatch.setattr(quickstart, "encode_contents", watched)
    assert measure_speed(retriever) > 0
    assert lengths == {48}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", True),
        ("--loss infonce --run-name a --temperature 0.1 --fresh", True),
        (" ".join(WORDS), True),
        ("--dataset pydocs", False),
        ("--max-steps 9", False),
        ("--refresh-every 30 --negatives-per-query 1", False),
        ("--recipe minilm", False),
        ("--config cluster.yaml", False),
    ],
)
def test_flags_of_the_user_win(words: str, expected: bool) -> None:
    assert _is_quickstart(_parser().parse(words.split())) is expected


@pytest.mark.slow
def test_a_processor_without_its_bf16_instructions_computes_in_fp32() -> None:
    code = (
        "import torch; from raytriever.models.precision import choose_precision; "
        "print(choose_precision(None, torch.device('cpu')))"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "fp32"
