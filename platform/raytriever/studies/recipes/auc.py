"""Studies of *Optimizing What Matters: AUC-driven learning for robust neural retrieval*.

Its losses are MW and contrastive loss (CL)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from raytriever.errors import ConfigError, flag_of, setting
from raytriever.models.source import MINILM
from raytriever.reading.structured import read_json
from raytriever.store.commit import MANIFEST, committed_directory, sha256_of
from raytriever.studies.claims import Claim, above, above_on_average, every, mostly_above, no_worse_on_average, steadier
from raytriever.studies.definition import STEPS_TO_BEST, Arm, Drawing, MeasuredDataset, Study
from raytriever.studies.recipes import tables
from raytriever.studies.recipes.scale import BEIR_FOLDERS, LENGTHS, STDLIB, WHOLE_SETS, StudyScale, lines_of
from raytriever.studies.recipes.tables import AUC_METRICS, AUC_PAPER, SIZES, Column, in_domain, zero_shot
from raytriever.studies.recipes.training import LOSSES, Layer, build_curriculum, describe_training
from raytriever.studies.subsets import Subset

BASE = "base-encoder"
_CUT = Subset(train=1_500, dev=128, test=500, documents=2_500)


def mw_in_domain(scale: StudyScale) -> Study:
    """Table 1: each loss trained and measured on the same data set.

    `full`: MiniLM and both XLM-R on NLI, NQ, SQuAD and MS MARCO, folders `nli`, `nq`, `squad` and `msmarco` with splits
    `train`, `dev` and `test`. `small`: MiniLM on subsets of SQuAD, SciFact and MedQuAD. `smoke`: docstrings.
    """
    sets = scale.sets(tuple(WHOLE_SETS), dict.fromkeys(("SQuAD", "SciFact", "MedQuAD"), _CUT))
    claims = []
    for size, block in _blocks(scale).items():
        better, worse = f"{block} MW".strip(), f"{block} CL".strip()
        on_all = above(better, worse, AUC_METRICS[:1])
        claims.append(Claim(f"{size}: MW notably improves AUC on all data sets", "section 5.2", on_all))
        if size == SIZES[-1]:
            text, judge = f"{size}: MW improves all metrics", above(better, worse, AUC_METRICS)
        else:
            text = f"{size}: MW is at least on par with CL in MRR and nDCG, on average"
            judge = no_worse_on_average(better, worse, AUC_METRICS[1:])
        claims.append(Claim(text, "section 5.2", judge))
    return Study(
        name="mw-in-domain",
        title="MW against contrastive loss in domain",
        source=f"Table 1 of {AUC_PAPER}",
        arms=(*scale.untrained([one.with_metrics(AUC_METRICS) for one in sets]), *_arms(scale, sets, AUC_METRICS)),
        seeds=scale.seeds,
        baselines=("CL",),
        heading=(describe_training(scale), *lines_of(sets)),
        paper=(tables.IN_DOMAIN_TABLE,),
        claims=tuple(claims),
        drawings=(Drawing("roc", "roc"), Drawing("scores", "scores")),
    )


def mw_zero_shot(scale: StudyScale) -> Study:
    """Table 2 and Figure 4: each loss trained on NLI, measured on unseen data.

    `full`: MiniLM and both XLM-R trained on `nli`, measured on thirteen data sets of BEIR and on SQuAD, folders under
    BEIR's names and `squad`. `small`: MiniLM trained on a subset of SNLI (its published dev split, a contradiction as
    the hard negative of each premise), measured on subsets of SQuAD, SciFact, NFCorpus, HotpotQA, Climate-FEVER, TREC
    DL 2019 and MedQuAD. `smoke`: trained on docstrings of the standard library, measured on those of other packages.
    """
    source, *sets = scale.sets(
        ["NLI"],
        {"SNLI": Subset(train=3_000, dev=200, test=100, documents=1)}
        | dict.fromkeys(
            ("SQuAD", "SciFact", "NFCorpus", "HotpotQA-mini", "Climate-FEVER-evidence", "TREC-DL19-mini", "MedQuAD"),
            Subset(train=0, dev=0, test=500, documents=3_000),
        ),
    )
    if scale.is_full:
        sets = [scale.whole(BEIR_FOLDERS[name], name) for name in tables.ZERO_SHOT_SETS]
    measured = tuple(one.with_metrics(AUC_METRICS) for one in sets)
    # A premise of SNLI has one contradiction as a rule; texts are a sentence each.
    of_snli = {"data": {"negatives_per_query": 1}, "training": {"batch_size": 64, "max_steps": 80, "dev_batches": 3}}
    settings = scale.choose(None, of_snli, None)
    arms = [
        Arm(
            f"{size.lower()}-{row.lower()}",
            row,
            measured,
            build_curriculum(scale, loss, source, size, settings),
            block=block,
            paper=zero_shot(size, row, [one.name for one in sets]),
            queries=source.queries,
        )
        for size, block in _blocks(scale).items()
        for row, loss in LOSSES.items()
    ]
    claims = []
    for size, block in _blocks(scale).items():
        better, worse = f"{block} MW".strip(), f"{block} CL".strip()
        most = mostly_above((better,), worse, AUC_METRICS)
        auc, others = (above_on_average(better, worse, metrics) for metrics in (AUC_METRICS[:1], AUC_METRICS[1:]))
        claims += [
            Claim(f"{size}: MW outperforms CL in the majority of data sets and metrics", "Table 2", most),
            Claim(f"{size}: MW has higher AUC, on average", "Table 2", auc),
            Claim(f"{size}: MW has higher MRR and nDCG, on average", "section 6", others),
        ]
    return Study(
        name="mw-zero-shot",
        title="MW against contrastive loss on unseen data sets",
        source=f"Table 2 and Figure 4 of {AUC_PAPER}",
        arms=(*scale.untrained(measured), *arms),
        seeds=scale.seeds,
        baselines=("CL",),
        heading=(describe_training(scale, settings), f"Trained on {source.name}.", *lines_of([source, *sets])),
        paper=(tables.ZERO_SHOT_TABLE,),
        claims=tuple(claims),
        drawings=tuple(Drawing("gains", f"gains-{metric}", metric) for metric in AUC_METRICS),
    )


def mw_ablation(scale: StudyScale) -> Study:
    """Tables 3 and 4: learning rate, batch and hard negatives, with each loss.

    The paper names no data set; this study uses SQuAD. `full`: the folder `squad`. `small`: a subset of it, with
    batches of 16 and 32 instead of 64 and 128, and 1, 3 and 5 hard negatives instead of 3, 5 and 7. `smoke`: four
    settings on docstrings.
    """
    [data] = scale.sets(["SQuAD"], {"SQuAD": _CUT}, [STDLIB])
    # Batches and numbers of hard negatives of the paper, and those used instead.
    batches = scale.choose({64: 4, 128: 8}, {64: 16, 128: 32}, {64: 64, 128: 128})
    hard = scale.choose({3: 1, 5: 2}, {3: 1, 5: 3, 7: 5}, {3: 3, 5: 5, 7: 7})
    arms = []
    for (loss, rate, batch, negatives), figures in tables.ABLATION.items():
        if negatives not in hard:
            continue
        row = f"{loss} {rate} {batches[batch]} {hard[negatives]}"
        settings: Layer = {
            "data": {"negatives_per_query": hard[negatives]},
            "training": {"batch_size": batches[batch], "learning_rate": float(rate)},
        }
        paper = {(data.name, name): figure for name, figure in zip(tables.ABLATION_METRICS, figures, strict=True)}
        arms.append(
            Arm(
                row.lower().replace(" ", "-"),
                row,
                (data.with_metrics(tables.ABLATION_METRICS),),
                build_curriculum(scale, LOSSES[loss], data, settings=settings),
                coordinates={"loss": loss, "batch": f"{loss} {batches[batch]}", "hard negatives": hard[negatives]},
                paper=paper if scale.is_full else {},  # printed only if the setting is the same
                queries=data.queries,
            )
        )
    cl, mw = ([arm.row for arm in arms if arm.coordinates["loss"] == loss] for loss in LOSSES)
    pairs = list(zip(mw, cl, strict=True))
    higher = every(*(above(ours, theirs, ("auc",)) for ours, theirs in pairs))
    lower = every(*(above(theirs, ours, ("mrr_at_10",)) for ours, theirs in pairs))
    sensitive = every(*(steadier(mw, cl, metric) for metric in ("auc", "ndcg_at_10")))
    return Study(
        name="mw-ablation",
        title="Learning rate, batch and hard negatives under MW and contrastive loss",
        source=f"Tables 3 and 4 of {AUC_PAPER}",
        arms=tuple(arms),
        seeds=scale.seeds,
        baselines=(cl[0],),
        heading=(describe_training(scale), "Rows: loss, learning rate, batch, hard negatives.", *lines_of([data])),
        paper=(tables.ABLATION_TABLE,),
        claims=(
            Claim("MW has the higher AUC in every setting", "Tables 3 and 4", higher),
            Claim("CL has the higher MRR in every setting", "Tables 3 and 4", lower),
            Claim("MW is stable over batches and hard negatives, CL is more sensitive", "appendix B", sensitive),
        ),
        drawings=(
            Drawing("lines", "auc", "auc", x="hard negatives", by="batch"),
            Drawing("lines", "ndcg", "ndcg_at_10", x="hard negatives", by="batch"),
        ),
    )


def mw_convergence(scale: StudyScale) -> Study:
    """Table 5: steps to the best checkpoint with each loss.

    `full`: as `mw-in-domain`, with early stopping. `small`: MiniLM on subsets of SNLI and SQuAD, two of the table's
    four data sets, with one hard negative per query, up to 200 steps. The dev loss is computed every 10 steps, and
    training stops after 8 validations without a better one. `smoke`: docstrings.
    """
    cut = Subset(train=4_000, dev=192, test=300, documents=2_500)
    sets = scale.sets(tables.CONVERGENCE_SETS, {"SNLI": replace(cut, documents=1), "SQuAD": cut})
    # One hard negative, two data sets and 200 steps: with more, twelve trainings take over 90 minutes on two cores.
    small: Layer = {
        "data": {"negatives_per_query": 1},
        "training": {"max_steps": 200, "eval_steps": 10, "dev_batches": 4, "patience": 8},
    }
    smoke: Layer = {"training": {"max_steps": 6, "eval_steps": 2, "dev_batches": 1}}
    settings = scale.choose(smoke, small, None)

    def paper(size: str, loss: str, dataset: str) -> dict[Column, float]:
        if not scale.is_full:
            return {}
        return {(dataset, STEPS_TO_BEST): float(tables.CONVERGENCE[size, loss][tables.CONVERGENCE_SETS.index(dataset)])}

    rows = [(f"{block} MW".strip(), f"{block} CL".strip()) for block in _blocks(scale).values()]
    return Study(
        name="mw-convergence",
        title="Steps to the best checkpoint under MW and contrastive loss",
        source=f"Table 5 of {AUC_PAPER}",
        arms=tuple(_arms(scale, sets, AUC_METRICS[-1:], (STEPS_TO_BEST,), settings, paper)),
        seeds=scale.seeds,
        baselines=("CL",),
        heading=(describe_training(scale, settings), *lines_of(sets)),
        paper=(tables.CONVERGENCE_TABLE,),
        claims=tuple(
            Claim(f"{mw} has a slower convergence rate", "appendix C", above(mw, cl, (STEPS_TO_BEST,)))
            for mw, cl in rows
        ),
        drawings=(Drawing("curves", "dev-loss"),),
    )


def mw_from_base(scale: StudyScale) -> Study:
    """Table 1 in small: each loss from an encoder that has not learnt to embed.

    The paper trains a base encoder. all-MiniLM-L6-v2, which the other studies train at `small`, already embeds well.
    Here both losses start from `DATA_ROOT/base-encoder`, the output of `benchmarks/base_encoder.py`: a BERT of MiniLM's
    size that has learnt only to fill in masked words. `small`: subsets of SNLI and SQuAD, up to 200 steps; dev loss and
    AUC on dev data every 25 steps; training stops after 4 validations without a lower dev loss. `smoke`: docstrings,
    from all-MiniLM-L6-v2. `full` is the study `mw-in-domain`.

    The claims were written before the first run. Of the paper's gap in AUC the mean over its columns NLI and SQuAD is
    compared with, because these are the data sets here.
    """
    encoder, about = (MINILM, "all-MiniLM-L6-v2") if scale.is_smoke else _base_encoder(scale)
    cut = Subset(train=6_000, dev=192, test=500, documents=2_500)
    # All documents of SNLI are judged for queries of the subset.
    sets = scale.sets((), {"SNLI": replace(cut, documents=1), "SQuAD": cut})
    validation = {"eval_datasets": "own", "eval_corpus": 200}
    small: Layer = {
        "data": {"negatives_per_query": 1},
        "training": {
            "max_steps": 200,
            "learning_rate": 1e-4,
            "warmup_steps": 20,
            "eval_steps": 25,
            "dev_batches": 4,
            "patience": 4,
        },
        "validation": validation,
    }
    smoke: Layer = {"training": {"max_steps": 4, "eval_steps": 2}, "validation": {**validation, "eval_corpus": 20}}
    settings: Layer = {**scale.choose(smoke, small, small), "model": {"model": encoder}}
    arms = _arms(scale, sets, AUC_METRICS, (STEPS_TO_BEST,), settings, _paper_of_kind)
    measured = tuple(one.with_metrics(AUC_METRICS) for one in sets)
    return Study(
        name="mw-from-base",
        title="MW against contrastive loss from an encoder that has not learnt to embed",
        source=f"Table 1 of {AUC_PAPER}, in small",
        arms=(
            Arm("before", "base encoder", measured, None, model=encoder, lengths=LENGTHS[scale.name]),
            *(replace(arm, name=arm.name.removeprefix("minilm-")) for arm in arms),
        ),
        seeds=scale.seeds,
        baselines=("CL",),
        heading=(describe_training(scale, settings, about), *lines_of(sets)),
        paper=(tables.IN_DOMAIN_TABLE,),
        claims=_claims_from_base(),
        drawings=(Drawing("curves", "dev-auc", "auc"), Drawing("curves", "dev-loss"), Drawing("roc", "roc")),
    )


STUDIES: Mapping[str, Callable[[StudyScale], Study]] = {
    "mw-in-domain": mw_in_domain,
    "mw-zero-shot": mw_zero_shot,
    "mw-ablation": mw_ablation,
    "mw-convergence": mw_convergence,
    "mw-from-base": mw_from_base,
}


def _blocks(scale: StudyScale) -> dict[str, str]:
    """Return the sizes of encoders, each with the name of its block of rows."""
    return {size: size for size in SIZES} if scale.is_full else {SIZES[0]: ""}


def _arms(
    scale: StudyScale,
    sets: Sequence[MeasuredDataset],
    metrics: tuple[str, ...],
    extras: tuple[str, ...] = (),
    settings: Layer | None = None,
    paper: Callable[[str, str, str], Mapping[Column, float]] = in_domain,
) -> list[Arm]:
    """Return a training of each size and loss on each data set, which is measured there."""
    return [
        Arm(
            f"{size.lower()}-{row.lower()}-{one.name.lower().replace(' ', '-')}",
            row,
            (one.with_metrics(metrics, extras),),
            build_curriculum(scale, loss, one, size, settings),
            block=block,
            paper=paper(size, row, one.name),
            queries=one.queries,
        )
        for size, block in _blocks(scale).items()
        for row, loss in LOSSES.items()
        for one in sets
    ]


class _Measurement(TypedDict):
    tokens: int
    loss: float
    accuracy: float


class _Figures(TypedDict):
    """`figures.json` of a base encoder, as far as the page names it."""

    measurements: list[_Measurement]


def _base_encoder(scale: StudyScale) -> tuple[str, str]:
    """Copy the base encoder into the folder of the study, which continues only with the same weights."""
    root = scale.data_root
    if root is None:
        remedy = f"give the folder that holds {BASE} and the packs of the study"
        raise ConfigError("is missing", setting("data_root"), remedy)
    script = f"python benchmarks/base_encoder.py SOURCE ... {flag_of('output')} {root / BASE}"
    weights = root / BASE / "encoder" / "model.safetensors"
    if not weights.is_file():
        raise ConfigError(f"holds no {BASE}", setting("data_root", root), f"run `{script}`")
    copy = scale.folder / f"{BASE}-{sha256_of(weights)[:12]}"
    if not copy.is_dir():
        with committed_directory(copy) as temporary:
            ignored = shutil.ignore_patterns(MANIFEST)
            shutil.copytree(weights.parent, temporary, dirs_exist_ok=True, ignore=ignored)
    figures = read_json(copy / "figures.json", _Figures, f"run `{script}` again")
    last = max(figures["measurements"], key=lambda one: one["tokens"])
    return str(copy), (
        f"{copy.name}, trained at masked tokens with {last['tokens']:,} tokens (held-out loss {last['loss']:.2f}, "
        f"accuracy {last['accuracy']:.3f})"
    )


_COLUMNS = {"SNLI": "NLI", "SQuAD": "SQuAD"}  # of Table 1 with data of the same kind


def _paper_of_kind(size: str, row: str, dataset: str) -> dict[Column, float]:
    """Return the paper's results on the column of Table 1 that has data of the same kind."""
    results = in_domain(size, row, _COLUMNS.get(dataset, ""))
    return {(dataset, metric): figure for (_, metric), figure in results.items()}


def _claims_from_base() -> tuple[Claim, ...]:
    auc = AUC_METRICS[:1]
    mw, cl = (sum(_paper_of_kind(SIZES[0], row, one)[one, *auc] for one in _COLUMNS) for row in ("MW", "CL"))
    gap = round((mw - cl) / len(_COLUMNS), 4)
    half = gap / 2
    at_least_half, whole = (above_on_average("MW", "CL", auc, by=by) for by in (half, gap))
    on_par = no_worse_on_average("MW", "CL", AUC_METRICS[1:])
    return (
        Claim("MW has the higher AUC on all data sets", "section 5.2", above("MW", "CL", auc)),
        Claim(f"The gap in AUC is at least half of the paper's, {half:.4f}, on average", "Table 1", at_least_half),
        Claim(f"The gap in AUC is at least the paper's, {gap:.3f}, on average", "Table 1", whole),
        Claim("MW is at least on par with CL in MRR and nDCG, on average", "section 5.2", on_par),
        Claim("MW has a slower convergence rate", "Table 5", above("MW", "CL", (STEPS_TO_BEST,))),
    )
