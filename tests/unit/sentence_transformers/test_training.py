"""The training script of the how-to page runs, improves its model, and writes a model card with the loss."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from library_losses import equal, write_model
from processes import run_python
from sentence_transformers import SentenceTransformer

SUPPORT = Path(__file__).parents[2] / "support"
OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "train-with-sentence-transformers.md"


@pytest.mark.slow
def test_the_script_of_the_page_trains(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    script = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    assert script.count("\n") <= 25
    # A model with random weights needs more than a trained one.
    more = {"1e-4": "3e-3", '"num_train_epochs": 3': '"num_train_epochs": 6'}
    for written, used in {"sentence-transformers/all-MiniLM-L6-v2": str(tmp_path / "tiny"), **more}.items():
        assert written in script
        script = script.replace(written, used)
    script = script.replace("trainer.train()", 'before = evaluator(model)["dev_auc"]\ntrainer.train()')
    program = script + (
        "\nimport json\nlogs = [each['eval_dev_auc'] for each in trainer.state.log_history if 'eval_dev_auc' in each]"
        "\nprint(json.dumps([before, *logs]))\n"
    )
    done = run_python("-c", program, cwd=tmp_path, variables=OFFLINE)
    before, *logs = json.loads(done.stdout.splitlines()[-1])
    assert len(logs) >= 2
    assert logs[-1] > before  # two trainings differ in their last bits, and so does the order of the epochs
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "raytriever.sentence_transformers.losses.MannWhitneyLoss" in card
    assert "loss:MannWhitneyLoss" in card
    assert '"temperature": 0.01' in card
    assert "Optimizing What Matters" in card
    assert "Pooled AUC" in card


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "cached"])
def test_two_processes_of_torchrun_step_as_one(kind: str, tmp_path: Path) -> None:
    """Half of the rows in each process give the weights of one process with all rows."""
    write_model(tmp_path / "tiny")
    before = dict(SentenceTransformer(str(tmp_path / "tiny"), device="cpu", local_files_only=True).named_parameters())
    steps = []
    for launcher in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]):
        output = tmp_path / f"step-{len(steps)}.pt"
        words = [*launcher, SUPPORT / "trainer_step.py", tmp_path / "tiny", output, kind]
        run_python(*words, variables=OFFLINE | {"OMP_NUM_THREADS": "1"})
        after = torch.load(output, weights_only=True)
        steps.append([after[name] - value.detach() for name, value in before.items() if "pooler" not in name])
    assert equal(steps[1], steps[0], 3e-6)
