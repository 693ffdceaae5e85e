"""Hard negatives mined once, compared with negatives mined again during training: sync, async, rolling.

The study is ours. It tests a statement of the handbook chapter *Contrastive learning for retrieval*: moderately stale
negatives help much more than none, and asynchronous refreshes cost less than they lose. `full`: MiniLM with the
settings of *Optimizing What Matters* and InfoNCE on SQuAD, refreshed every 500 steps. `small`: a subset of SQuAD, 120
steps, refreshed every 30. `smoke`: docstrings.
"""

from __future__ import annotations

from pathlib import Path

from raytriever.studies.claims import Claim, above, alike
from raytriever.studies.datasets import STDLIB, StudyDataset, Subset, pack_subset, pydocs_subset, whole_dataset
from raytriever.studies.definition import FULL, SMOKE, Arm, Drawing, Study
from raytriever.studies.recipes.auc.settings import FULL_SETS, Layer, build_curriculum, describe_training

SOURCE = "Contrastive learning for retrieval (handbook chapter)"
_METRICS = ("ndcg_at_10", "mrr_at_10", "auc")
_CUT = Subset(train=4_000, dev=192, test=500, documents=4_000)
TEMPERATURE = 0.05
_IN_BATCH, _STATIC = "in-batch only", "static"
MODES = ("sync", "async", "rolling")
_LENGTHS: dict[str, Layer] = {
    SMOKE: {"training": {"max_steps": 4, "eval_steps": 4}},
    FULL: {},
}
_SMALL: Layer = {"training": {"max_steps": 120, "eval_steps": 20}}
_EVERY = {SMOKE: 2, FULL: 500}


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    data = _data(scale, data_root, folder)
    length = _LENGTHS.get(scale, _SMALL)
    every = _EVERY.get(scale, 30)
    settings: dict[str, Layer] = {_IN_BATCH: {"data": {"negatives_per_query": 0}}, _STATIC: {}}
    settings |= {mode: {"refresh": {"refresh_every": every, "refresh_mode": mode}} for mode in MODES}
    arms = tuple(
        Arm(
            row.replace(" ", "-"),
            row,
            (data.with_metrics(_METRICS),),
            build_curriculum(scale, "infonce", data, settings={"loss": {"temperature": TEMPERATURE}, **length, **own}),
            queries=data.queries,
        )
        for row, own in settings.items()
    )
    return Study(
        name="refresh",
        title="Hard negatives that keep up with the encoder",
        source=f"{SOURCE}, which has no table of this",
        arms=arms,
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=(_STATIC, _IN_BATCH),
        heading=(
            describe_training(scale, {"loss": {"temperature": TEMPERATURE}, **length}),
            f"Loss: InfoNCE. static: negatives of BM25, mined once. The other rows begin with these "
            f"and mine new negatives every {every} steps.",
            *data.lines,
        ),
        claims=(
            Claim("Stale negatives help over none", "asynchronous refresh", above("async", _IN_BATCH, _METRICS[:2])),
            Claim("Staleness costs little", "asynchronous refresh", alike("async", "sync", _METRICS[:2])),
            Claim(
                "Refreshed negatives are better than negatives mined once",
                "iterative mining",
                above("sync", _STATIC, _METRICS[:2]),
            ),
            Claim("A rolling refresh is as good", "asynchronous refresh", alike("rolling", "async", _METRICS[:2])),
        ),
        drawings=(Drawing("curves", "dev-loss"),),
    )


def _data(scale: str, data_root: Path | None, folder: Path) -> StudyDataset:
    if scale == FULL:
        name, queries = FULL_SETS["SQuAD"]
        return whole_dataset(data_root, name, "SQuAD", queries=queries)
    return pydocs_subset(folder, STDLIB) if scale == SMOKE else pack_subset(data_root, folder, "squad", _CUT, "SQuAD")
