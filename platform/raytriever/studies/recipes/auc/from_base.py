"""Table 1 of *Optimizing What Matters* in small: MW and contrastive loss from an encoder that has not learnt to embed.

The paper trains a base encoder. all-MiniLM-L6-v2, which the other studies train at `small`, already embeds well. Here
both losses start from `DATA_ROOT/base-encoder`, the output of `benchmarks/base_encoder.py`: a BERT of MiniLM's size
that has learnt only to fill in masked words. `small`: subsets of SNLI and SQuAD, up to 200 steps; dev loss and AUC on
dev data every 25 steps; training stops after 4 validations without a lower dev loss. `smoke`: docstrings, from
all-MiniLM-L6-v2. `full` is the study `mw-in-domain`.

The claims were written before the first run. Of the paper's gap in AUC the mean over its columns NLI and SQuAD is
compared with, because these are the data sets here.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from raytriever.errors import ConfigError, flag_of, setting
from raytriever.models.source import MINILM
from raytriever.reading.structured import read_json
from raytriever.store.commit import MANIFEST, committed_directory, sha256_of
from raytriever.studies.claims import Claim, above, above_on_average, no_worse_on_average
from raytriever.studies.datasets import LENGTHS, PACKAGES, STDLIB, StudyDataset, Subset, pack_subset, pydocs_subset
from raytriever.studies.definition import SMOKE, STEPS_TO_BEST, Arm, Drawing, Study
from raytriever.studies.recipes.auc.settings import LOSSES, Layer, build_curriculum, describe_training
from raytriever.studies.recipes.auc.tables import METRICS, PAPER, SIZES, in_domain, in_domain_table

BASE = "base-encoder"
_CUT = Subset(train=6_000, dev=192, test=500, documents=2_500)
# Title of each pack, and the column of Table 1 with data of its kind.
_PACKS = {"snli": ("SNLI", "NLI"), "squad": ("SQuAD", "SQuAD")}
_VALIDATION = {"eval_datasets": "own", "eval_corpus": 200}
_SMALL: Layer = {
    "data": {"negatives_per_query": 1},
    "training": {
        "max_steps": 200,
        "learning_rate": 1e-4,
        "warmup_steps": 20,
        "eval_steps": 25,
        "dev_batches": 4,
        "patience": 4,
    },
    "validation": _VALIDATION,
}
_SMOKE: Layer = {"training": {"max_steps": 4, "eval_steps": 2}, "validation": _VALIDATION | {"eval_corpus": 20}}


class _Measurement(TypedDict):
    tokens: int
    loss: float
    accuracy: float


class _Figures(TypedDict):
    """`figures.json` of a base encoder, as far as the page names it."""

    measurements: list[_Measurement]


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    encoder, about = (MINILM, "all-MiniLM-L6-v2") if scale == SMOKE else _base_encoder(data_root, folder)
    sets = _sets(scale, data_root, folder)
    settings = _SMOKE if scale == SMOKE else _SMALL
    arms = [
        Arm(
            f"{row.lower()}-{one.name.lower()}",
            row,
            (one.with_metrics(METRICS, (STEPS_TO_BEST,)),),
            build_curriculum(scale, loss, one, settings={**settings, "model": {"model": encoder}}),
            paper=_paper(row, one.name),
        )
        for row, loss in LOSSES.items()
        for one in sets
    ]
    measured = tuple(one.with_metrics(METRICS) for one in sets)
    untrained = Arm("before", "base encoder", measured, None, model=encoder, lengths=LENGTHS[scale])
    return Study(
        name="mw-from-base",
        title="MW against contrastive loss from an encoder that has not learnt to embed",
        source=f"Table 1 of {PAPER}, in small",
        arms=(untrained, *arms),
        seeds=1 if scale == SMOKE else 3,
        baselines=("CL",),
        heading=(describe_training(scale, settings, about), *(line for one in sets for line in one.lines)),
        paper=(in_domain_table(),),
        claims=_claims(),
        drawings=(Drawing("curves", "dev-auc", "auc"), Drawing("curves", "dev-loss"), Drawing("roc", "roc")),
    )


def _sets(scale: str, data_root: Path | None, folder: Path) -> list[StudyDataset]:
    if scale == SMOKE:
        return [pydocs_subset(folder, part) for part in (STDLIB, PACKAGES)]
    return [
        # All documents of SNLI are judged for queries of the subset.
        pack_subset(data_root, folder, name, replace(_CUT, documents=1) if name == "snli" else _CUT, title)
        for name, (title, _) in _PACKS.items()
    ]


def _base_encoder(data_root: Path | None, folder: Path) -> tuple[str, str]:
    """Copy the base encoder into the folder of the study, which continues only with the same weights.

    Returns:
        The path of the copy, and a description of the encoder.

    Raises:
        ConfigError: there is no base encoder.
        StorageError: its `figures.json` is damaged.
    """
    script = f"python benchmarks/base_encoder.py SOURCE ... {flag_of('output')}"
    if data_root is None:
        raise ConfigError(
            "is missing", setting("data_root"), f"give the folder that holds {BASE} and the packs of the study"
        )
    source = data_root / BASE / "encoder"
    weights = source / "model.safetensors"
    if not weights.is_file():
        raise ConfigError(f"holds no {BASE}", setting("data_root", data_root), f"run `{script} {data_root / BASE}`")
    copy = folder / f"{BASE}-{sha256_of(weights)[:12]}"
    if not copy.is_dir():
        with committed_directory(copy) as temporary:
            shutil.copytree(source, temporary, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
    measurements = read_json(copy / "figures.json", _Figures, f"run `{script} {data_root / BASE}` again")[
        "measurements"
    ]
    last = max(measurements, key=lambda one: one["tokens"])
    return str(copy), (
        f"{copy.name}, trained at masked tokens with {last['tokens']:,} tokens (held-out loss {last['loss']:.2f}, "
        f"accuracy {last['accuracy']:.3f})"
    )


def _paper(row: str, dataset: str) -> dict[tuple[str, str], float]:
    """Return the paper's results on the column of Table 1 that has data of the same kind."""
    columns = dict(_PACKS.values())
    if dataset not in columns:
        return {}
    return {(dataset, metric): figure for (_, metric), figure in in_domain(SIZES[0], row, columns[dataset]).items()}


def _gap() -> float:
    """Return the gap in AUC between MW and CL in Table 1, as the mean over the columns that are compared with."""
    auc = METRICS[0]
    gaps = [_paper("MW", title)[title, auc] - _paper("CL", title)[title, auc] for title, _ in _PACKS.values()]
    return round(sum(gaps) / len(gaps), 4)


def _claims() -> tuple[Claim, ...]:
    auc, gap = METRICS[:1], _gap()
    half = gap / 2
    return (
        Claim("MW has the higher AUC on all data sets", "section 5.2", above("MW", "CL", auc)),
        Claim(
            f"The gap in AUC is at least half of the paper's, {half:.4f}, on average",
            "Table 1",
            above_on_average("MW", "CL", auc, by=half),
        ),
        Claim(
            f"The gap in AUC is at least the paper's, {gap:.3f}, on average",
            "Table 1",
            above_on_average("MW", "CL", auc, by=gap),
        ),
        Claim(
            "MW is at least on par with CL in MRR and nDCG, on average",
            "section 5.2",
            no_worse_on_average("MW", "CL", METRICS[1:]),
        ),
        Claim("MW has a slower convergence rate", "Table 5", above("MW", "CL", (STEPS_TO_BEST,))),
    )
