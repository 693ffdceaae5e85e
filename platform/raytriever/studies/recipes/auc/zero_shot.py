"""Table 2 and Figure 4 of *Optimizing What Matters*: MW and contrastive loss trained on NLI, measured on unseen data.

`full`: MiniLM and both XLM-R trained on `nli`, measured on thirteen data sets of BEIR and on SQuAD, folders under
BEIR's names and `squad`. `small`: MiniLM trained on a subset of SNLI (its published dev split, a contradiction as the
hard negative of each premise), measured on subsets of SQuAD, SciFact, NFCorpus, HotpotQA, Climate-FEVER, TREC DL 2019
and MedQuAD. `smoke`: trained on docstrings of the standard library, measured on those of other packages.
"""

from __future__ import annotations

from pathlib import Path

from raytriever.studies.claims import Claim, above_on_average, mostly_above
from raytriever.studies.datasets import (
    PACKAGES,
    STDLIB,
    StudyDataset,
    Subset,
    pack_subset,
    pydocs_subset,
    untrained_arms,
    whole_dataset,
)
from raytriever.studies.definition import FULL, SMOKE, Arm, Drawing, Study
from raytriever.studies.recipes.auc.settings import FULL_SETS, LOSSES, build_curriculum, describe_training
from raytriever.studies.recipes.auc.tables import METRICS, PAPER, SIZES, zero_shot, zero_shot_table

_TRAINED = Subset(train=3_000, dev=200, test=100, documents=1)
_MEASURED = Subset(train=0, dev=0, test=500, documents=3_000)
_PACKS = (
    ("squad", "SQuAD"),
    ("scifact", "SciFact"),
    ("nfcorpus-filtered", "NFCorpus"),
    ("hotpotqa-mini", "HotpotQA-mini"),
    ("climate-fever-evidence", "Climate-FEVER-evidence"),
    ("trec-dl19-mini", "TREC-DL19-mini"),
    ("medquad", "MedQuAD"),
)
# Names of the folders in the archives of BEIR.
_BEIR = {
    "NFCorpus": "nfcorpus",
    "TREC-COVID": "trec-covid",
    "FiQA": "fiqa",
    "SQuAD": "squad",
    "HotpotQA": "hotpotqa",
    "Touche-2020": "webis-touche2020",
    "ArguAna": "arguana",
    "CQADupStack": "cqadupstack",
    "Quora": "quora",
    "DBPedia": "dbpedia-entity",
    "SciDocs": "scidocs",
    "SciFact": "scifact",
    "FEVER": "fever",
    "Climate-FEVER": "climate-fever",
}
# A premise of SNLI has one contradiction as a rule; texts are a sentence each.
_NLI = {"data": {"negatives_per_query": 1}, "training": {"batch_size": 64, "max_steps": 80, "dev_batches": 3}}


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    source, sets = _sets(scale, data_root, folder)
    sizes = SIZES if scale == FULL else SIZES[:1]
    measured = tuple(one.with_metrics(METRICS) for one in sets)
    names = tuple(one.name for one in sets)
    settings = None if scale in (SMOKE, FULL) else _NLI
    arms = [
        Arm(
            f"{size.lower()}-{row.lower()}",
            row,
            measured,
            build_curriculum(scale, loss, source, size, settings),
            block=size if scale == FULL else "",
            paper=zero_shot(size, row, names),
            queries=source.queries,
        )
        for size in sizes
        for row, loss in LOSSES.items()
    ]
    return Study(
        name="mw-zero-shot",
        title="MW against contrastive loss on unseen data sets",
        source=f"Table 2 and Figure 4 of {PAPER}",
        arms=(*untrained_arms(scale, measured), *arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=("CL",),
        heading=(
            describe_training(scale, settings),
            f"Trained on {source.name}.",
            *(line for one in (source, *sets) for line in one.lines),
        ),
        paper=(zero_shot_table(),),
        claims=tuple(claim for size in sizes for claim in _claims(f"{size} " if scale == FULL else "", size)),
        drawings=tuple(Drawing("gains", f"gains-{metric}", metric) for metric in METRICS),
    )


def _sets(scale: str, data_root: Path | None, folder: Path) -> tuple[StudyDataset, list[StudyDataset]]:
    """Return the training data, and the data sets to measure on."""
    if scale == FULL:
        name, (pack, queries) = "NLI", FULL_SETS["NLI"]
        return whole_dataset(data_root, pack, name, queries=queries), [
            whole_dataset(data_root, pack, title) for title, pack in _BEIR.items()
        ]
    if scale == SMOKE:
        return pydocs_subset(folder, STDLIB), [pydocs_subset(folder, PACKAGES)]
    source = pack_subset(data_root, folder, "snli", _TRAINED, "SNLI")
    return source, [pack_subset(data_root, folder, name, _MEASURED, title) for name, title in _PACKS]


def _claims(of: str, size: str) -> list[Claim]:
    better, worse = f"{of}MW", f"{of}CL"
    most = mostly_above((better,), worse, METRICS)
    return [
        Claim(f"{size}: MW outperforms CL in the majority of data sets and metrics", "Table 2", most),
        Claim(f"{size}: MW has higher AUC, on average", "Table 2", above_on_average(better, worse, METRICS[:1])),
        Claim(
            f"{size}: MW has higher MRR and nDCG, on average", "section 6", above_on_average(better, worse, METRICS[1:])
        ),
    ]
