"""Losses for sentence-transformers on two devices have the value and the gradients of one device with all rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from library_losses import CASES, equal, write_model
from process_group import run_groups


@pytest.mark.slow
def test_two_devices_equal_one_with_the_whole_batch(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    (one,), two = run_groups(Path(__file__).with_name("library_worker.py"), (1, 2), tmp_path / "model")
    assert len(one) == 2 * len(CASES)
    for rank in range(2):
        for name, (value, gradients) in one.items():
            assert two[rank][name][0] == pytest.approx(value, rel=1e-9), name
            assert equal(two[rank][name][1], gradients), name
        message = bytes(two[rank]["unequal"][1][0].tolist()).decode()
        assert message == "gather_across_devices: the devices' row counts differ: [2, 3]; use dataloader_drop_last=True"
