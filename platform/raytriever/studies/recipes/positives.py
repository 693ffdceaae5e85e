"""Studies of *Training dense retrievers with multiple positive passages*.

`full` reads `nq` with splits `train`, `dev` and `test` and answers, and `msmarco` with `train`, `fit` (validation
queries), `dev`, `dl19`, `dl20` and `hybrid`. Positives of `train` have the source `human` or `llm`; the latter are
ranked, as `raytriever annotate` writes them. `small` uses subsets of NFCorpus, `smoke` docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
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
_NDCG, _MRR = METRICS[:1], METRICS[1:2]
# Number of training queries: NQ of DPR; for MS MARCO the paper gives about 400k.
_QUERIES = {NQ: 58_880, MS_MARCO: 400_000}
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
        data = _training_set(scale)
        other = Subset(train=0, dev=0, test=300, documents=1_400)
        others = (
            [scale.pydocs(STDLIB)] if scale.is_smoke else [scale.pack(name, other) for name in ("SciFact", "Cranfield")]
        )
        measured = (data.with_metrics(METRICS), *(one.with_metrics(_NDCG) for one in others))
        own, unseen = (data.name,), tuple(one.name for one in others)
        arms = scale.untrained(measured)
        for name in OBJECTIVES:
            curriculum = Curriculum(objective_config(scale, name, data, group))
            arms.append(Arm(name.lower(), name, measured, curriculum, paper=beir(name, unseen)))
        heading += [f"Trained on {data.name}.", *lines_of([data, *others])]
    recall = ("recall_at_100",)
    at_home = own[:1] if len(own) == 1 else own[1:2]  # MS MARCO dev, which has both MRR and Recall
    in_domain = _NDCG if len(own) == 1 else _MRR
    robust = every(*(above("LSEPair", one, in_domain, at_home) for one in OBJECTIVES[:4]))
    spread = every(above("JointLH", "SingleLH", recall, at_home), above("SingleLH", "JointLH", _MRR, at_home))
    general = every(*(above_on_average("LSEPair", one, _NDCG, unseen) for one in OBJECTIVES[:4]))
    on_par = alike("Rand1LH", "LSEPair", _MRR, at_home)
    drawn = above("Rand1LH", "SingleLH", (*_MRR, *recall), at_home)
    weaker = above("LSEPair", "SumMargLH", (*_MRR, *recall), at_home)
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
    recall, home = _deep_recall(scale), (measured[0].name,)
    second = second_at_worst("LSEPair", MULTIPLE, (*_MRR, *_NDCG, recall))
    lowest = smallest("SumMargLH", (recall,), home, MULTIPLE)
    breadth = every(best("JointLH", (recall,), home, MULTIPLE), smallest("JointLH", _MRR, home, MULTIPLE))
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
    most = mostly_above(MULTIPLE, "SingleLH", (*_MRR, *_NDCG) if scale.is_full else METRICS)
    rows, rows_before = ([arm.row for arm in arms] for arms in (after, before))
    closer = steadier(rows, rows_before, *_MRR, (measured[0].name,))
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


def ratio(scale: StudyScale) -> Study:
    """Figure 1: the share of positives in a group. A group has G passages, and at most M of them are positives.

    `full`: `msmarco`. `small`: batches of 8. `smoke`: smaller groups.
    """
    data = _training_set(scale)
    metrics = METRICS[:2]
    measured = _hybrid_sets(scale, _MRR) if scale.is_full else (data.with_metrics(metrics),)
    paper_groups = ((8, 2), (8, 4), (16, 2), (16, 4), (16, 8))
    groups = scale.choose(((2, 1), (4, 1), (4, 2), (4, 3)), paper_groups, paper_groups)
    settings = [("SingleLH", size, 1) for size in dict.fromkeys(size for size, _ in groups)]
    settings += [(name, *one) for name in (("Rand1LH", "JointLH") if scale.is_smoke else MULTIPLE) for one in groups]
    small = {"training": {"batch_size": 8}}

    def row(name: str, size: int, most: int) -> str:
        return f"{name} {size} {most}"

    arms = []
    for name, size, most in settings:
        config = objective_config(scale, name, data, PassageGroup(size, most), "llm" if scale.is_full else "all")
        paper = {key: value / 100 for key, value in tables.RATIO.get((name, size, most), {}).items()}
        arms.append(
            Arm(
                f"{name.lower()}-{size}-{most}",
                row(name, size, most),
                measured,
                Curriculum(override(config, scale.choose({}, small, {}))),
                coordinates={"objective": name, "G": size, "M": most},
                paper=paper if scale.is_full else {},
                queries=data.queries,
            )
        )
    on = (measured[0].name,)
    rows = {name: [row(name, *group) for group in paper_groups] for name in MULTIPLE}
    steady = every(*(steadier(rows[name], rows["JointLH"], *_MRR, on) for name in ("SumMargLH", "LSEPair")))
    dilutes = above(row("JointLH", 16, 2), row("JointLH", 16, 8), _MRR, on)
    drop = every(*(above(row(name, 16, 4), row(name, 16, 8), _MRR, on) for name in MULTIPLE))
    under = every(*(above(row("SingleLH", 16, 1), row(name, 16, 8), _MRR, on) for name in ("LSEPair", "Rand1LH")))
    claims = (
        Claim("SumMargLH and LSEPair vary less with G and M than JointLH", "section 6.1 (1)", steady),
        Claim("At G = 16 JointLH loses MRR from M = 2 to 8", "section 6.1 (1)", dilutes),
        Claim("At G = 16 every objective loses MRR from M = 4 to 8", "section 6.1 (2)", drop),
        Claim("At G = 16 and M = 8 even LSEPair and Rand1LH are below SingleLH", "section 6.1 (2)", under),
    )
    return Study(
        name="ratio",
        title="Positives and negatives of a group",
        source=f"Figure 1 of {POSITIVES_PAPER}",
        arms=tuple(arms),
        seeds=scale.seeds,
        baselines=(row("SingleLH", groups[0][0], 1),),
        heading=(
            describe_objectives(scale, usual_group(scale)),
            *scale.choose((), ("Batches of 8.",), ()),
            "Rows: objective, G, M.",
            *lines_of([data]),
        ),
        paper=(tables.RATIO_TABLE,),
        claims=() if scale.is_smoke else claims,
        drawings=tuple(Drawing("lines", metric, metric, x="M", by="objective", panel="G") for metric in metrics),
    )


def variants(scale: StudyScale) -> Study:
    """Table 6: variants of LSEPair.

    LSEPair uses all pairs; its variants use only the hardest or easiest positives and negatives. `full`: `nq`. `small`:
    measured by nDCG, MRR and recall, because NFCorpus has no answers.
    """
    whole, worst = "LSEPair", "LSEPair_maxP"
    group, data = usual_group(scale), _training_set(scale, NQ)
    metrics = tuple(metric for _, metric in tables.VARIANT_COLUMNS) if scale.is_full else METRICS
    arms = tuple(
        Arm(
            name.lower().replace("_", "-"),
            name,
            (data.with_metrics(metrics),),
            Curriculum(objective_config(scale, name, data, group, "llm" if scale.is_full else "all", NQ)),
            paper=fractions(tables.VARIANT_COLUMNS, figures) if scale.is_full else {},
            queries=data.queries,
        )
        for name, figures in tables.VARIANTS.items()
    )
    others = [name for name in tables.VARIANTS if name not in (whole, worst, "SumMargLH")]
    same = every(*(alike(name, whole, metrics) for name in others))
    return Study(
        name="variants",
        title="Variants of LSEPair",
        source=f"Table 6 of {POSITIVES_PAPER}",
        arms=arms,
        seeds=scale.seeds,
        baselines=(worst, whole),
        heading=(describe_objectives(scale, group), *lines_of([data])),
        paper=(tables.VARIANTS_TABLE,),
        claims=(
            Claim("LSEPair_maxP is the worst", "section 6.2", smallest(worst, metrics)),
            Claim("SumMargLH underperforms too", "section 6.2", above(whole, "SumMargLH", metrics)),
            Claim("The other variants do not differ significantly from LSEPair", "section 6.2", same),
        ),
    )


def budget(scale: StudyScale) -> Study:
    """Table 7: a budget of labels, used for more queries, or for more positives of each query.

    Positives outside the budget are removed from the training data, so a training may use them as negatives. `full`:
    `msmarco`, `msmarco-1-of-100`, `msmarco-2-of-50`, `msmarco-3-of-33` and `msmarco-4-of-25`, which hold the best
    positives of a random share of the training queries; 3, 3, 4, 5 and 5 epochs. `small`: a quarter of these epochs.
    """
    everything = _training_set(scale)
    metrics = tuple(metric for _, metric in tables.BUDGET_COLUMNS) if scale.is_full else METRICS
    # All rows are measured on the whole data set.
    measured = _hybrid_sets(scale, metrics)[:1] if scale.is_full else (everything.with_metrics(metrics),)
    shares = {"100 %": 1.0, "50 %": 1 / 2, "33.3 %": 1 / 3, "25 %": 1 / 4}
    # Epochs of section 6.3; for the whole set, which is the first row, those of section 4.4.
    epochs = dict(zip(tables.BUDGET, (3.0, 3.0, 4.0, 5.0, 5.0), strict=True))
    arms: list[Arm] = []
    for (most, share), figures in tables.BUDGET.items():
        data = everything
        if scale.is_full and arms:
            part = scale.whole(f"{MS_MARCO}-{most}-of-{round(100 * shares[share])}", DEV, "dev")
            data = replace(part, queries=round(_QUERIES[MS_MARCO] * shares[share]))
        elif arms:
            data = _training_set(scale, share=shares[share], labels=most)
        full = {"epochs": epochs[most, share]}
        small = {"epochs": 0.25 * epochs[most, share], "max_steps": None}
        length: dict[str, Any] = scale.choose({"max_steps": 2}, small, full)
        group, source = PassageGroup(8, most), "llm" if scale.is_full else "all"
        config = objective_config(scale, "LSEPair", data, group, source)
        arms.append(
            Arm(
                f"{most}-of-{share.split()[0]}",
                f"{most} of {share}",
                measured,
                Curriculum(override(config, {"data": {"positives_order": "ranked"}, "training": length})),
                paper=fractions(tables.BUDGET_COLUMNS, figures) if scale.is_full else {},
                queries=data.queries,
            )
        )
    whole, *fixed = (arm.row for arm in arms)
    recall = _deep_recall(scale)
    falls = every(*(above(more, fewer, _MRR) for more, fewer in pairwise(fixed)))
    level = every(*(alike(one, fixed[0], (recall,)) for one in fixed[1:]))
    better = every(*(above(whole, one, (*_MRR, recall)) for one in fixed))
    lengths = (
        "Rows: positives per query, and the share of the queries with these positives; 0.75, 0.75, 1, 1.25 and 1.25 "
        "epochs, a quarter of the epochs of the paper."
    )
    return Study(
        name="budget",
        title="A budget of labels: more queries, or more positives of each",
        source=f"Table 7 of {POSITIVES_PAPER}",
        arms=tuple(arms),
        seeds=scale.seeds,
        baselines=(fixed[0],),
        heading=(
            describe_objectives(scale, PassageGroup(8, 4)),
            *scale.choose((), (lengths,), ()),
            *lines_of([everything]),
        ),
        paper=(tables.BUDGET_TABLE,),
        claims=(
            Claim("Under a fixed budget MRR falls with more positives a query", "section 6.3", falls),
            Claim("Recall changes only marginally", "section 6.3", level),
            Claim("Four positives of all queries are much better", "section 6.3", better),
        ),
    )


STUDIES: Mapping[str, Callable[[StudyScale], Study]] = {
    "multi-positive": multi_positive,
    "heterogeneous": heterogeneous,
    "curriculum": curriculum,
    "ratio": ratio,
    "variants": variants,
    "budget": budget,
}


def _deep_recall(scale: StudyScale) -> str:
    return "recall_at_1000" if scale.is_full else "recall_at_100"


def _training_set(scale: StudyScale, on: str = MS_MARCO, **labels: Any) -> MeasuredDataset:
    """Return the data set to train on and to measure in domain.

    Args:
        scale: scale of the study.
        on: folder at full, `nq` or `msmarco`.
        labels: fields of the subset below full: `share`, `labels`, `by_llm`.
    """
    if scale.is_full:
        return scale.whole(on, "NQ" if on == NQ else DEV, queries=_QUERIES[on])
    if scale.is_smoke:
        return scale.pydocs(PACKAGES, groups=True, subset=replace(SMOKE_SUBSET, **labels))
    return scale.pack("NFCorpus", replace(_NFCORPUS, **labels))


def _hybrid_sets(scale: StudyScale, on_dev: tuple[str, ...]) -> tuple[MeasuredDataset, ...]:
    """Return the data sets that a training on MS MARCO is measured on at full: splits of one folder with one corpus.

    `on_dev` are the metrics on the dev split.
    """
    splits = {
        "dev": (DEV, on_dev),
        "dl19": (tables.DL19, _NDCG),
        "dl20": (tables.DL20, _NDCG),
        "hybrid": (tables.HYBRID, (*_MRR, *_NDCG)),
    }
    return tuple(scale.whole(MS_MARCO, name, split).with_metrics(metrics) for split, (name, metrics) in splits.items())


def _mixed_sets(scale: StudyScale) -> tuple[MeasuredDataset, tuple[MeasuredDataset, ...], list[str]]:
    """Return the data set with positives of both sources, the data sets to measure on, and lines about them."""
    data = _training_set(scale, by_llm=True)
    if scale.is_full:
        return data, _hybrid_sets(scale, (*_MRR, "recall_at_1000")), lines_of([data])
    passages = Subset(train=0, dev=0, test=100, documents=5_000)
    others = [] if scale.is_smoke else [scale.pack("TREC-DL19-mini", passages)]
    measured = (data.with_metrics(METRICS), *(one.with_metrics(_NDCG) for one in others))
    return data, measured, [_SIMULATED_SOURCES, *lines_of([data, *others])]


def _on_whole_sets(scale: StudyScale, group: PassageGroup) -> tuple[list[Arm], tuple[str, ...], tuple[str, ...]]:
    """Return the arms, in-domain names and unseen names of `multi-positive` at full.

    Each objective is trained twice, in one row, because the table of the paper has one row for it.
    """
    titles = {name: f"{name} (BEIR)" if name == "NQ" else name for name in tables.BEIR}
    unseen = [scale.whole(BEIR_FOLDERS[name], title) for name, title in titles.items()]
    nq, marco = (_training_set(scale, on) for on in (NQ, MS_MARCO))
    on_nq = (nq.with_metrics(("accuracy_at_20", "accuracy_at_100")),)
    in_domain = _hybrid_sets(scale, (*_MRR, "recall_at_100", "recall_at_1000"))
    on_marco = (*in_domain, *(one.with_metrics(_NDCG) for one in unseen))
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
