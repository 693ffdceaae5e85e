"""The public API from a data set to a search, in a plain script that starts Ray as the command does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import run_python

REPOSITORY = Path(__file__).parents[2]
LOSSES = """
from torch.nn import functional

MARGIN = 5.0

def hinge(scores, positives, negatives):
    worst = scores.masked_fill(~positives, 1e4).amin(1)
    return functional.relu(MARGIN + scores.masked_fill(~negatives, -1e4).amax(1) - worst).mean()
"""
# The example of the README, on a tiny data set and encoder. It has no `if __name__ == "__main__"`.
STORY = """
import json
import sys

import raytriever as rt
from own_losses import hinge

data = rt.load_dataset(sys.argv[1])
model = rt.load_model(sys.argv[2], precision="fp32")
hard = rt.mine_hard_negatives(data, model, num_negatives=3)
settings = dict(loss="mw", hard_negatives=hard, max_steps=12, batch_size=16, learning_rate=1e-3, temperature=0.05)
run = rt.train(data, model, output="runs/mine", precision="fp32", eval_steps=6, **settings)
again = rt.train(data, model, output="runs/mine", precision="fp32", eval_steps=6, **settings)
report = rt.evaluate(["bm25", model, run], data, split="test")
report.save("results")
index = rt.build_index(run.model, data)
[hits] = index.search(["what is abcdef"], top_k=5)
page = rt.compare([run, report], "page.html")
own = rt.train(data, model, num_workers=2, grad_cache_chunk=4, output="runs/own", precision="fp32",
               **settings | {"max_steps": 4, "loss": hinge})
try:
    rt.train(data, model, output="runs/mine", max_steps=1)
    refused = ""
except rt.ConfigError as error:
    refused = str(error)
print(json.dumps({
    "metrics": report.metrics, "run": run.metrics, "again": again.metrics, "hits": [hit.document_id for hit in hits],
    "negatives": len(hard), "page": page.exists(), "rows": len(report.to_pandas()), "refused": refused,
    "own": own.metrics["after"],
}))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_the_readme(tmp_path: Path, tiny_dataset: Path, tiny_encoder: Path) -> None:
    (tmp_path / "own_losses.py").write_text(LOSSES)
    (tmp_path / "story.py").write_text(STORY)
    variables = {"RAYTRIEVER_CACHE": f"{tmp_path}/cache", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    done = run_python("story.py", tiny_dataset, tiny_encoder, cwd=tmp_path, variables=variables, timeout=560)
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["run"] == outcome["again"]
    assert outcome["run"]["after"]["auc"] > outcome["run"]["before"]["auc"]
    # The run measures its model as `evaluate` does.
    for name, system in {"bm25": "bm25", "encoder": "before", "mine": "after"}.items():
        assert outcome["metrics"][name]["letters"] == pytest.approx(outcome["run"][system], abs=1e-6)
    assert len(outcome["hits"]) == 5
    assert (outcome["negatives"], outcome["page"], outcome["rows"]) == (288, True, 3)
    assert outcome["refused"].startswith("output runs/mine: holds a run with other settings ")
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert (tmp_path / "results" / "results.json").is_file()
