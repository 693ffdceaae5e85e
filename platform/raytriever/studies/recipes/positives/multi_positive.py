"""Tables 2 and 3 of *Training dense retrievers with multiple positive passages*: positives of one source.

Five objectives are measured in domain and on unseen data sets. `full`: trained on the LLM positives of `nq` and of
`msmarco`; the encoders trained on `msmarco` are also measured on fourteen data sets of BEIR. `small`: trained on a
subset of NFCorpus, whose grades are treated as one source, and measured on it and on subsets of SciFact and Cranfield.
`smoke`: docstrings.
"""

from __future__ import annotations

from pathlib import Path

from raytriever.config import Curriculum
from raytriever.studies.claims import Claim, above, above_on_average, alike, every
from raytriever.studies.datasets import (
    STDLIB,
    StudyDataset,
    Subset,
    pack_subset,
    pydocs_subset,
    untrained_arms,
    whole_dataset,
)
from raytriever.studies.definition import FULL, SMOKE, Arm, Drawing, MeasuredDataset, Study
from raytriever.studies.recipes.positives.settings import (
    METRICS,
    MS_MARCO,
    NQ,
    PassageGroup,
    describe_training,
    hybrid_sets,
    objective_config,
    training_set,
    usual_group,
)
from raytriever.studies.recipes.positives.tables import (
    BEIR,
    HOMOGENEOUS,
    HOMOGENEOUS_COLUMNS,
    OBJECTIVES,
    PAPER,
    beir,
    beir_table,
    fractions,
    table,
)

_UNSEEN = Subset(train=0, dev=0, test=300, documents=1_400)
_UNSEEN_PACKS = (("scifact", "SciFact"), ("cranfield", "Cranfield"))
_NDCG = ("ndcg_at_10",)
# Names of the folders in the archives of BEIR.
_BEIR_FOLDERS = {
    "ArguAna": "arguana",
    "Climate-FEVER": "climate-fever",
    "CQADupStack": "cqadupstack",
    "DBPedia": "dbpedia-entity",
    "FEVER": "fever",
    "FiQA": "fiqa",
    "HotpotQA": "hotpotqa",
    "NFCorpus": "nfcorpus",
    "NQ": "beir-nq",
    "Quora": "quora",
    "SciDocs": "scidocs",
    "SciFact": "scifact",
    "Touche-2020": "webis-touche2020",
    "TREC-COVID": "trec-covid",
}


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    group = usual_group(scale)
    if scale == FULL:
        arms, own, unseen = _full(data_root, group)
        heading: tuple[str, ...] = (describe_training(scale, group),)
    else:
        data, others = _sets(scale, data_root, folder)
        measured = (data.with_metrics(METRICS), *(one.with_metrics(_NDCG) for one in others))
        own, unseen = (data.name,), tuple(one.name for one in others)
        arms = untrained_arms(scale, measured)
        arms += [
            Arm(
                name.lower(),
                name,
                measured,
                Curriculum(objective_config(scale, name, data, group)),
                paper=beir(name, unseen),
            )
            for name in OBJECTIVES
        ]
        lines = [line for one in (data, *others) for line in one.lines]
        heading = (describe_training(scale, group), f"Trained on {data.name}.", *lines)
    return Study(
        name="multi-positive",
        title="Objectives for several positives: homogeneous positives",
        source=f"Tables 2 and 3 of {PAPER}",
        arms=tuple(arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=("SingleLH", "Rand1LH"),
        heading=heading,
        paper=(table(2, "trained on positives of an LLM", HOMOGENEOUS_COLUMNS, HOMOGENEOUS), beir_table()),
        claims=_claims(own, unseen),
        drawings=(Drawing("curves", "dev-loss"),),
    )


def _sets(scale: str, data_root: Path | None, folder: Path) -> tuple[StudyDataset, list[StudyDataset]]:
    """Return the data set to train and measure on, and those that are only measured on."""
    data = training_set(scale, data_root, folder)
    if scale == SMOKE:
        return data, [pydocs_subset(folder, STDLIB)]
    return data, [pack_subset(data_root, folder, name, _UNSEEN, title) for name, title in _UNSEEN_PACKS]


def _full(data_root: Path | None, group: PassageGroup) -> tuple[list[Arm], tuple[str, ...], tuple[str, ...]]:
    """Return the arms, in-domain names and unseen names at full.

    Each objective is trained twice, in one row, because the table of the paper has one row for it.
    """
    nq, marco = (training_set(FULL, data_root, Path(), on=on) for on in (NQ, MS_MARCO))
    titles = {name: f"{name} (BEIR)" if name == "NQ" else name for name in BEIR}
    unseen = [whole_dataset(data_root, _BEIR_FOLDERS[name], title) for name, title in titles.items()]
    on_nq: tuple[MeasuredDataset, ...] = (nq.with_metrics(("accuracy_at_20", "accuracy_at_100")),)
    in_domain = hybrid_sets(data_root, ("mrr_at_10", "recall_at_100", "recall_at_1000"))
    on_marco = (*in_domain, *(one.with_metrics(_NDCG) for one in unseen))
    arms = []
    for name in OBJECTIVES:
        figures = fractions(HOMOGENEOUS_COLUMNS, HOMOGENEOUS[name])
        zero_shot = {(titles[dataset], metric): value for (dataset, metric), value in beir(name, tuple(BEIR)).items()}
        for on, data, measured in ((NQ, nq, on_nq), (MS_MARCO, marco, on_marco)):
            curriculum = Curriculum(objective_config(FULL, name, data, group, "llm", on))
            paper = {key: value for key, value in figures.items() if (key[0] == "NQ") == (on == NQ)}
            paper |= {} if on == NQ else zero_shot
            arms.append(Arm(f"{name.lower()}-{on}", name, measured, curriculum, paper=paper, queries=data.queries))
    return arms, ("NQ", *(one.name for one in in_domain)), tuple(titles.values())


def _claims(own: tuple[str, ...], unseen: tuple[str, ...]) -> tuple[Claim, ...]:
    top, breadth = ("mrr_at_10",), ("recall_at_100",)
    at_home = own[:1] if len(own) == 1 else own[1:2]  # MS MARCO dev, which has both MRR and Recall
    robust = every(*(above("LSEPair", one, METRICS[:1] if len(own) == 1 else top, at_home) for one in OBJECTIVES[:4]))
    spread = every(above("JointLH", "SingleLH", breadth, at_home), above("SingleLH", "JointLH", top, at_home))
    general = every(*(above_on_average("LSEPair", one, _NDCG, unseen) for one in OBJECTIVES[:4]))
    return (
        Claim("LSEPair is the most robust: best in domain", "section 5.1 (1)", robust),
        Claim("Rand1LH is on par with LSEPair in MRR", "section 5.1 (2)", alike("Rand1LH", "LSEPair", top, at_home)),
        Claim("Rand1LH is above SingleLH", "section 5.1 (2)", above("Rand1LH", "SingleLH", (*top, *breadth), at_home)),
        Claim("JointLH gains breadth and loses the top of the ranking", "section 5.1 (3)", spread),
        Claim(
            "SumMargLH is consistently weaker than LSEPair",
            "section 5.1 (3)",
            above("LSEPair", "SumMargLH", (*top, *breadth), at_home),
        ),
        Claim("LSEPair transfers best to unseen data sets, on average", "section 5.1", general),
    )
