"""Real process groups: all workers take a new table of hard negatives at one step, however late one of them is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from process_group import run_group

from raytriever.training.negative_refresh import read_ledger

SCRIPT = Path(__file__).with_name("refresh_worker.py")
STEPS, EVERY, LATE = 14, 3, 8  # of refresh_worker
Values = dict[str, torch.Tensor]


@pytest.fixture
def run(tmp_path: Path, tiny_encoder: Path, tiny_dataset: Path) -> Callable[[str], list[Values]]:
    """Return the logged values of each of two workers, in a folder of the strategy's name."""

    def group(strategy: str) -> list[Values]:
        folder = tmp_path / strategy
        folder.mkdir()
        return run_group(SCRIPT, 2, tiny_encoder, tiny_dataset, strategy, folder)

    return group


def weights(logged: Values) -> Values:
    return {name: value for name, value in logged.items() if name.startswith("weights/")}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_both_workers_take_a_table_at_the_recorded_step(
    run: Callable[[str], list[Values]], tmp_path: Path, strategy: str
) -> None:
    one, other = run(strategy)
    first = read_ledger(tmp_path / strategy / "negatives").rounds[0]
    assert first.step == EVERY
    # The other worker's loader had drawn batch `LATE` when it had read the table; two more may have been drawn since.
    assert first.used_from > LATE
    assert one["versions"].tolist() == [int(step + 1 >= first.used_from) for step in range(STEPS)]
    assert torch.equal(one["versions"], other["versions"])
    # Only the first worker speaks to the pool.
    assert len(weights(one)) > 30
    assert not weights(other)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_sharded_is_mined_with_whole(run: Callable[[str], list[Values]]) -> None:
    expected, actual = (weights(run(strategy)[0]) for strategy in ("ddp", "zero3"))
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        if not name.endswith("attention.self.key.bias"):  # its gradient is noise, which AdamW scales up
            torch.testing.assert_close(
                value, expected[name], rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
            )
