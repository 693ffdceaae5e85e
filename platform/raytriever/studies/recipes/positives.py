"""Studies of section 5 of *Training dense retrievers with multiple positive passages*: objectives and sources.

`full` reads `nq` with splits `train`, `dev` and `test` and answers, and `msmarco` with `train`, `fit` (validation
queries), `dev`, `dl19`, `dl20` and `hybrid`. Positives of `train` have the source `human` or `llm`; the latter are
ranked, as `raytriever annotate` writes them. `small` uses subsets of NFCorpus, `smoke` docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raytriever.config import Curriculum, Stage, override
from raytriever.studies.claims import (
    Claim,
    above,
    above_on_average,
    alike,
    best,
    every,
    mostly_above,
    second_at_worst,
    smallest,
    steadier,
)
from raytriever.studies.definition import Arm, Drawing, MeasuredDataset, Study
from raytriever.studies.recipes import tables
from raytriever.studies.recipes.scale import (
    BEIR_FOLDERS,
    MS_MARCO,
    NQ,
    PACKAGES,
    SMOKE_SUBSET,
    STDLIB,
    StudyScale,
    lines_of,
)
from raytriever.studies.recipes.tables import DEV, OBJECTIVES, POSITIVES_PAPER, beir, fractions
from raytriever.studies.recipes.training import PassageGroup, describe_objectives, objective_config, usual_group
from raytriever.studies.subsets import Subset

MULTIPLE = ("Rand1LH", "JointLH", "SumMargLH", "LSEPair")
METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_100")
NDCG, MRR = METRICS[:1], METRICS[1:2]
# Number of training queries: NQ of DPR; for MS MARCO the paper gives about 400k.
QUERIES = {NQ: 58_880, MS_MARCO: 400_000}
_NFCORPUS = Subset(train=1_500, dev=128, test=400, documents=3_400)
_SIMULATED_SOURCES = (
    "For each training query the positive of the highest grade counts as human, and the others as positives of an LLM."
)


def multi_positive(scale: StudyScale) -> Study:
    """Tables 2 and 3: positives of one source; five objectives are measured in domain and on unseen data sets.

    `full`: trained on the LLM positives of `nq` and of `msmarco`; the encoders trained on `msmarco` are also measured
    on fourteen data sets of BEIR. `small`: trained on a subset of NFCorpus, whose grades are treated as one source, and
    measured on it and on subsets of SciFact and Cranfield.
    """
    group = usual_group(scale)
    heading = [describe_objectives(scale, group)]
    if scale.is_full:
        arms, own, unseen = _on_whole_sets(scale, group)
    else:
        data = training_set(scale)
        other = Subset(train=0, dev=0, test=300, documents=1_400)
        others = (
            [scale.pydocs(STDLIB)] if scale.is_smoke else [scale.pack(name, other) for name in ("SciFact", "Cranfield")]
        )
        measured = (data.with_metrics(METRICS), *(one.with_metrics(NDCG) for one in others))
        own, unseen = (data.name,), tuple(one.name for one in others)
        arms = scale.untrained(measured)
        for name in OBJECTIVES:
            curriculum = Curriculum(objective_config(scale, name, data, group))
            arms.append(Arm(name.lower(), name, measured, curriculum, paper=beir(name, unseen)))
        heading += [f"Trained on {data.name}.", *lines_of([data, *others])]
    recall = ("recall_at_100",)
    at_home = own[:1] if len(own) == 1 else own[1:2]  # MS MARCO dev, which has both MRR and Recall
    in_domain = NDCG if len(own) == 1 else MRR
    robust = every(*(above("LSEPair", one, in_domain, at_home) for one in OBJECTIVES[:4]))
    spread = every(above("JointLH", "SingleLH", recall, at_home), above("SingleLH", "JointLH", MRR, at_home))
    general = every(*(above_on_average("LSEPair", one, NDCG, unseen) for one in OBJECTIVES[:4]))
    on_par = alike("Rand1LH", "LSEPair", MRR, at_home)
    drawn = above("Rand1LH", "SingleLH", (*MRR, *recall), at_home)
    weaker = above("LSEPair", "SumMargLH", (*MRR, *recall), at_home)
    return Study(
        name="multi-positive",
        title="Objectives for several positives: homogeneous positives",
        source=f"Tables 2 and 3 of {POSITIVES_PAPER}",
        arms=tuple(arms),
        seeds=scale.seeds,
        baselines=("SingleLH", "Rand1LH"),
        heading=tuple(heading),
        paper=(tables.HOMOGENEOUS_TABLE, tables.BEIR_TABLE),
        claims=(
            Claim("LSEPair is the most robust: best in domain", "section 5.1 (1)", robust),
            Claim("Rand1LH is on par with LSEPair in MRR", "section 5.1 (2)", on_par),
            Claim("Rand1LH is above SingleLH", "section 5.1 (2)", drawn),
            Claim("JointLH gains breadth and loses the top of the ranking", "section 5.1 (3)", spread),
            Claim("SumMargLH is consistently weaker than LSEPair", "section 5.1 (3)", weaker),
            Claim("LSEPair transfers best to unseen data sets, on average", "section 5.1", general),
        ),
        drawings=(Drawing("curves", "dev-loss"),),
    )


def heterogeneous(scale: StudyScale) -> Study:
    """Table 4: four objectives, trained on groups of one human positive and further positives of an LLM.

    `full`: `msmarco`, the human positive first. `small`: the positive of the highest grade of each training query
    replaces the human one, and the others replace those of the LLM. It is measured on NFCorpus and on the passages of
    TREC DL 2019. `smoke`: the own passage of a sentence first, then those of its siblings.
    """
    group = usual_group(scale)
    data, measured, lines = _mixed_sets(scale)
    arms = scale.untrained(measured)
    for name in MULTIPLE:
        curriculum = Curriculum(objective_config(scale, name, data, group, "human-first"))
        paper = fractions(tables.MIXED_COLUMNS, tables.HETEROGENEOUS[name]) if scale.is_full else {}
        arms.append(Arm(name.lower(), name, measured, curriculum, paper=paper, queries=data.queries))
    recall, home = deep_recall(scale), (measured[0].name,)
    second = second_at_worst("LSEPair", MULTIPLE, (*MRR, *NDCG, recall))
    lowest = smallest("SumMargLH", (recall,), home, MULTIPLE)
    breadth = every(best("JointLH", (recall,), home, MULTIPLE), smallest("JointLH", MRR, home, MULTIPLE))
    return Study(
        name="heterogeneous",
        title="Objectives for several positives: one human positive, the others of an LLM",
        source=f"Table 4 of {POSITIVES_PAPER}",
        arms=tuple(arms),
        seeds=scale.seeds,
        baselines=("Rand1LH",),
        heading=(describe_objectives(scale, group), *lines),
        paper=(tables.HETEROGENEOUS_TABLE,),
        claims=(
            Claim("LSEPair is best or second on all metrics", "section 5.2 (1)", second),
            Claim("SumMargLH has the lowest recall", "section 5.2 (2)", lowest),
            Claim("JointLH has the highest recall and the lowest MRR", "section 5.2 (3)", breadth),
        ),
    )


def curriculum(scale: StudyScale) -> Study:
    """Table 5: a curriculum of two stages.

    Each objective is trained on positives of an LLM first; then InfoNCE is trained on human positives. Section 4.3: the
    second stage has one epoch, with the same batch and learning rate. Further rows show each objective after the first
    stage alone, to test whether the second stage brings them closer. `full`: `msmarco`. `small`: sources as in
    `heterogeneous`, 40 steps and then 20.
    """
    group = usual_group(scale)
    data, measured, lines = _mixed_sets(scale)
    length: dict[str, Any] = scale.choose({"max_steps": 2}, {"max_steps": 20}, {"epochs": 1.0})
    second = override(objective_config(scale, "SingleLH", data, group, "human"), {"training": length})
    after, before = [], []
    for name in OBJECTIVES:
        first = objective_config(scale, name, data, group, "llm")
        both = Curriculum(first, (Stage("llm", first), Stage("human", second)))
        paper = fractions(tables.MIXED_COLUMNS, tables.CURRICULUM[name]) if scale.is_full else {}
        after.append(Arm(name.lower(), name, measured, both, paper=paper, queries=data.queries))
        row = f"{name}, first stage"
        before.append(Arm(f"{name.lower()}-first", row, measured, Curriculum(first), queries=data.queries))
    most = mostly_above(MULTIPLE, "SingleLH", (*MRR, *NDCG) if scale.is_full else METRICS)
    rows, rows_before = ([arm.row for arm in arms] for arms in (after, before))
    closer = steadier(rows, rows_before, *MRR, (measured[0].name,))
    stage = scale.choose(", 2 steps", ", 20 steps", ", one epoch")
    return Study(
        name="curriculum",
        title="Positives of an LLM first, then human positives",
        source=f"Table 5 of {POSITIVES_PAPER}",
        arms=(*after, *before),
        seeds=scale.seeds,
        baselines=("SingleLH", "Rand1LH"),
        heading=(
            describe_objectives(scale, group),
            f"Then the second stage: InfoNCE on human positives{stage}.",
            *lines,
        ),
        paper=(tables.CURRICULUM_TABLE,),
        claims=(
            Claim("Most objectives for several positives end above SingleLH", "section 5.3 (1)", most),
            Claim("The second stage brings the objectives closer", "section 5.3 (2)", closer),
        ),
    )


STUDIES: Mapping[str, Callable[[StudyScale], Study]] = {
    "multi-positive": multi_positive,
    "heterogeneous": heterogeneous,
    "curriculum": curriculum,
}


def deep_recall(scale: StudyScale) -> str:
    """Return the recall that is compared: at 1,000 as in the paper, below full at 100."""
    return "recall_at_1000" if scale.is_full else "recall_at_100"


def training_set(scale: StudyScale, on: str = MS_MARCO, **labels: Any) -> MeasuredDataset:
    """Return the data set to train on and measure in domain: a folder at full, else a subset with fields `labels`."""
    if scale.is_full:
        return scale.whole(on, "NQ" if on == NQ else DEV, queries=QUERIES[on])
    if scale.is_smoke:
        return scale.pydocs(PACKAGES, groups=True, subset=replace(SMOKE_SUBSET, **labels))
    return scale.pack("NFCorpus", replace(_NFCORPUS, **labels))


def hybrid_sets(scale: StudyScale, on_dev: tuple[str, ...]) -> tuple[MeasuredDataset, ...]:
    """Return the data sets that a training on MS MARCO is measured on at full: splits of one folder with one corpus.

    `on_dev` are the metrics on the dev split.
    """
    splits = {
        "dev": (DEV, on_dev),
        "dl19": (tables.DL19, NDCG),
        "dl20": (tables.DL20, NDCG),
        "hybrid": (tables.HYBRID, (*MRR, *NDCG)),
    }
    return tuple(scale.whole(MS_MARCO, name, split).with_metrics(metrics) for split, (name, metrics) in splits.items())


def _mixed_sets(scale: StudyScale) -> tuple[MeasuredDataset, tuple[MeasuredDataset, ...], list[str]]:
    """Return the data set with positives of both sources, the data sets to measure on, and lines about them."""
    data = training_set(scale, by_llm=True)
    if scale.is_full:
        return data, hybrid_sets(scale, (*MRR, "recall_at_1000")), lines_of([data])
    passages = Subset(train=0, dev=0, test=100, documents=5_000)
    others = [] if scale.is_smoke else [scale.pack("TREC-DL19-mini", passages)]
    measured = (data.with_metrics(METRICS), *(one.with_metrics(NDCG) for one in others))
    return data, measured, [_SIMULATED_SOURCES, *lines_of([data, *others])]


def _on_whole_sets(scale: StudyScale, group: PassageGroup) -> tuple[list[Arm], tuple[str, ...], tuple[str, ...]]:
    """Return the arms, in-domain names and unseen names of `multi-positive` at full.

    Each objective is trained twice, in one row, because the table of the paper has one row for it.
    """
    titles = {name: f"{name} (BEIR)" if name == "NQ" else name for name in tables.BEIR}
    unseen = [scale.whole(BEIR_FOLDERS[name], title) for name, title in titles.items()]
    nq, marco = (training_set(scale, on) for on in (NQ, MS_MARCO))
    on_nq = (nq.with_metrics(("accuracy_at_20", "accuracy_at_100")),)
    in_domain = hybrid_sets(scale, (*MRR, "recall_at_100", "recall_at_1000"))
    on_marco = (*in_domain, *(one.with_metrics(NDCG) for one in unseen))
    arms = []
    for name in OBJECTIVES:
        figures = fractions(tables.HOMOGENEOUS_COLUMNS, tables.HOMOGENEOUS[name])
        zero_shot = {(titles[one], metric): value for (one, metric), value in beir(name, list(titles)).items()}
        of_nq = {key: value for key, value in figures.items() if key[0] == "NQ"}
        of_marco = {key: value for key, value in figures.items() if key[0] != "NQ"} | zero_shot
        runs: Sequence[tuple[str, MeasuredDataset, tuple[MeasuredDataset, ...], dict[tuple[str, str], float]]] = (
            (NQ, nq, on_nq, of_nq),
            (MS_MARCO, marco, on_marco, of_marco),
        )
        for on, data, measured, paper in runs:
            trained = Curriculum(objective_config(scale, name, data, group, "llm", on))
            arms.append(Arm(f"{name.lower()}-{on}", name, measured, trained, paper=paper, queries=data.queries))
    return arms, ("NQ", *(one.name for one in in_domain)), tuple(titles.values())
