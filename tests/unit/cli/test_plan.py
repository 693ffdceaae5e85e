"""`raytriever plan`: its text, its errors, and the table of docs/explanation/scale.md."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.arguments import build_config
from raytriever.cli.main import run
from raytriever.cli.operate.plan import _parser
from raytriever.planning.config import PlanConfig, count
from raytriever.planning.report import cost, size, summary
from raytriever.planning.stages import stages
from raytriever.planning.workload import ModelSize, Workload, rates

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "scale.md"
BLOCK = re.compile(r"```\n\$ raytriever plan (.*?)\n(.*?)```", re.DOTALL)


def test_the_text_names_every_setting_and_coefficient(
    tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--documents", "1e6", "--model", str(tiny_encoder), "--gpus", "8", "--price-per-gpu-hour", "2.5"]
    assert run("plan", words) == 0
    out = capsys.readouterr().out
    assert out.startswith("1,000,000 documents, 502,939 training queries")
    assert "money" in out.splitlines()[1]
    for name in (*rates(), "--gpu-tflops", "--price-per-gpu-hour 2.5", "AVX", "Heaps"):
        assert name in out
    assert "--price-per-tb-month" not in out
    assert not list(work.iterdir())


def test_prices_add_up() -> None:
    model = ModelSize(10**8, 768, 2e8, 1e4, 512, 4, 1e10)
    config = PlanConfig(
        gpus=4, price_per_gpu_hour=3.0, price_per_node_hour=2.0, price_per_tb_month=20.0, price_per_million_requests=5.0
    )
    for stage in stages(Workload(config, model, rates())):
        time = 3.0 * stage.gpus * stage.hours if stage.gpus else 2.0 * stage.nodes * stage.hours
        expected = time + 20.0 * stage.disk / 1e12 + 5.0 * stage.requests / 1e6
        assert cost(stage, config) == pytest.approx(expected)
        assert cost(stage, PlanConfig()) == 0


@pytest.mark.parametrize(("text", "number"), [("1e9", 10**9), ("8_841_823", 8_841_823), (7, 7), ("2.5e3", 2500)])
def test_counts(text: object, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--documents 1.5", "--documents: '1.5' is invalid; give a whole number, such as 8800000 or 1e9"),
        ("--documents 1e999999999", "--documents: '1e999999999' is invalid; give a whole number"),
        ("--model xlm-r-larg", "--model: unknown model 'xlm-r-larg'; did you mean 'xlm-r-large'?"),
        ("--gpus 9 --nodes 1", "--nodes: 9 GPUs exceed the 8 of all nodes; give more nodes, or leave it out"),
        ("--words-per-document inf", "--words-per-document: inf is out of range; give a finite number"),
    ],
)
def test_wrong_settings_are_one_line(error_line: Callable[..., str], words: str, line: str) -> None:
    assert error_line("plan", *words.split()).startswith(line)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(512, "0.00 MB"), (2e6, "2.00 MB"), (1.234e12, "1.23 TB"), (9.996e13, "100 TB")],
)
def test_sizes(amount: float, text: str) -> None:
    assert size(amount) == text


@pytest.mark.slow
def test_the_table_of_the_page_is_what_the_command_prints() -> None:
    [(command, text)] = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    config = build_config(_parser().parse(shlex.split(command)), PlanConfig)
    expected = "\n".join(summary(Workload(config, ModelSize.of(config), rates())))
    assert text.rstrip("\n") == expected, f"run raytriever plan {command}, and copy its table"
