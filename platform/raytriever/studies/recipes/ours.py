"""Studies that repeat no table: the weight of the distribution regulariser, refreshed negatives, and a guide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

from raytriever.config import Curriculum, override
from raytriever.studies.claims import Claim, above, alike, every, larger_gain, no_worse_on_average
from raytriever.studies.definition import OOD, Arm, Drawing, Study
from raytriever.studies.recipes.scale import (
    MS_MARCO,
    PACKAGES,
    SMOKE_SUBSET,
    STDLIB,
    UNTRAINED,
    StudyScale,
    lines_of,
)
from raytriever.studies.recipes.tables import AUC_METRICS, DEV
from raytriever.studies.recipes.training import (
    LOSSES,
    Layer,
    PassageGroup,
    build_curriculum,
    describe_objectives,
    describe_training,
    objective_config,
)
from raytriever.studies.subsets import Subset

TEMPERATURE = 0.05
WEIGHTS = (0.0, 0.001, 0.01, 0.05, 0.1)


def lambda_weight(scale: StudyScale) -> Study:
    """Figure 8 of the out-of-distribution paper: the weight of the distribution regulariser, and approximate search.

    The study measures retrieval by exact search, the distance of queries and passages (MMD^2, and the mean distance of
    a query and its positives), and the candidates that HNSW scores for queries, divided by those for held-out passages,
    both at recall@10 of 0.95. The paper shows curves and prints no numbers. Its encoders are coCondenser and RetroMAE,
    fine-tuned with the official settings of MS MARCO, which it does not repeat.

    `full`: `msmarco` with the settings of `multi-positive` for one positive, and bert-base-uncased instead of
    coCondenser. `small`: MiniLM on a subset of SQuAD. `smoke`: docstrings.
    """
    metrics, group = ("ndcg_at_10", "recall_at_100"), PassageGroup(8, 1)
    if scale.is_full:
        data = scale.whole(MS_MARCO, DEV, queries=400_000)
    else:
        [data] = scale.sets((), {"SQuAD": Subset(train=1_500, dev=128, test=500, documents=4_000)}, [STDLIB])
    measured = (data.with_metrics(metrics, (OOD,)),)

    def curriculum(weight: float) -> Curriculum:
        if scale.is_full:
            config = objective_config(scale, "SingleLH", data, group, "human")
            return Curriculum(override(config, {"loss": {"distribution_weight": weight}}))
        loss = {"temperature": TEMPERATURE, "distribution_weight": weight}
        return build_curriculum(scale, "infonce", data, settings={"loss": loss})

    weights = scale.choose((WEIGHTS[0], *WEIGHTS[-2:]), WEIGHTS, WEIGHTS)
    rows = {weight: f"lambda {weight:g}" for weight in WEIGHTS}
    arms = [
        Arm(
            f"lambda-{weight:g}",
            rows[weight],
            measured,
            curriculum(weight),
            coordinates={"lambda": weight},
            queries=data.queries,
        )
        for weight in weights
    ]
    about = (
        describe_objectives(scale, group)
        if scale.is_full
        else describe_training(scale, {"loss": {"temperature": TEMPERATURE}})
    )
    closer = every(*(above(rows[less], rows[more], ("query_positive_l2",)) for less, more in pairwise(weights)))
    few = [rows[weight] for weight in WEIGHTS if 0 < weight < 0.05]
    cheaper = every(*(above(rows[0.0], row, ("candidates_ratio",)) for row in few))
    claims = [
        Claim("The larger lambda, the closer are queries and their positives", "Figure 8", closer),
        Claim(
            "The regulariser reduces the MMD of queries and passages",
            "section 4, Figure 7",
            above(rows[0.0], rows[0.1], ("mmd2",)),
        ),
        Claim("Below 0.05 approximate search gets cheaper", "appendix F", cheaper),
        Claim("At 0.1 retrieval suffers", "appendix F", above(rows[0.0], rows[0.1], metrics[:1])),
    ]
    if not scale.is_full:
        drifts = above(rows[0.0], UNTRAINED, ("mmd2",))
        claims.append(Claim("InfoNCE alone drives queries and passages apart", "section 2, Figure 3", drifts))
    paper = "Alleviating performance degradation caused by out-of-distribution issues in embedding-based retrieval"
    return Study(
        name="lambda",
        title="The weight of the distribution regulariser",
        source=f"Figure 8 of {paper}",
        arms=(*scale.untrained(measured), *arms),
        seeds=scale.seeds,
        baselines=(rows[0.0],),
        heading=(
            about,
            "Loss: InfoNCE plus lambda times the mean squared distance of a query and its passages.",
            *lines_of([data]),
        ),
        claims=tuple(claims),
        drawings=tuple(
            Drawing("lines", name, name, x="lambda")
            for name in ("ndcg_at_10", "mmd2", "query_positive_l2", "candidates_ratio")
        ),
    )


def refresh(scale: StudyScale) -> Study:
    """Hard negatives mined once, compared with negatives mined again during training: sync, async, rolling.

    It tests a statement of the handbook chapter *Contrastive learning for retrieval*: moderately stale negatives help
    much more than none, and asynchronous refreshes cost less than they lose. `full`: MiniLM with the settings of
    *Optimizing What Matters* and InfoNCE on SQuAD, refreshed every 500 steps. `small`: a subset of SQuAD, 120 steps,
    refreshed every 30. `smoke`: docstrings.
    """
    [data] = scale.sets(["SQuAD"], {"SQuAD": Subset(train=4_000, dev=192, test=500, documents=4_000)}, [STDLIB])
    metrics, in_batch, static = ("ndcg_at_10", "mrr_at_10", "auc"), "in-batch only", "static"
    steps, refresh_every = scale.choose((4, 2), (120, 30), (0, 500))
    common: Layer = {"loss": {"temperature": TEMPERATURE}}
    if steps:
        common = {**common, "training": {"max_steps": steps, "eval_steps": scale.choose(4, 20, 0)}}
    settings: dict[str, Layer] = {in_batch: {"data": {"negatives_per_query": 0}}, static: {}}
    for mode in ("sync", "async", "rolling"):
        settings[mode] = {"refresh": {"refresh_every": refresh_every, "refresh_mode": mode}}
    arms = tuple(
        Arm(
            row.replace(" ", "-"),
            row,
            (data.with_metrics(metrics),),
            build_curriculum(scale, "infonce", data, settings={**common, **own}),
            queries=data.queries,
        )
        for row, own in settings.items()
    )
    better, none = above("sync", static, metrics[:2]), above("async", in_batch, metrics[:2])
    return Study(
        name="refresh",
        title="Hard negatives that keep up with the encoder",
        source="Contrastive learning for retrieval (handbook chapter), which has no table of this",
        arms=arms,
        seeds=scale.seeds,
        baselines=(static, in_batch),
        heading=(
            describe_training(scale, common),
            f"Loss: InfoNCE. static: negatives of BM25, mined once. The other rows begin with these "
            f"and mine new negatives every {refresh_every} steps.",
            *lines_of([data]),
        ),
        claims=(
            Claim("Stale negatives help over none", "asynchronous refresh", none),
            Claim("Staleness costs little", "asynchronous refresh", alike("async", "sync", metrics[:2])),
            Claim("Refreshed negatives are better than negatives mined once", "iterative mining", better),
            Claim("A rolling refresh is as good", "asynchronous refresh", alike("rolling", "async", metrics[:2])),
        ),
        drawings=(Drawing("curves", "dev-loss"),),
    )


def guide(scale: StudyScale) -> Study:
    """False negatives and the losses: MW and contrastive loss (CL), each with and without a guide that masks them.

    Under MW a false negative is compared with every positive of the batch, under CL with one. So the guide should
    matter more for MW. The claims were written before the first run.

    `small`: two data sets on which negatives are often false. Of NFCorpus, training keeps one positive of each query
    and the others, 42 on average, are documents like any other: 1.7 % of the negatives in a batch of 32 and 19 % of a
    query's own hard negatives (BM25) are judged relevant (seed 0, 20 batches). Of SNLI, nearly every premise has one
    hypothesis that follows from it, and hypotheses are as general as "A person is outside": what else follows is not
    judged. The guide is all-MiniLM-L6-v2 as published, from which training starts too, with margin 0 as in GISTEmbed.
    `full`: NQ and MS MARCO, with the settings of *Optimizing What Matters*. `smoke`: docstrings.
    """
    cut = Subset(train=1_500, dev=128, test=500, documents=2_500)
    if scale.is_smoke:
        sets = [scale.pydocs(STDLIB, groups=True, subset=replace(SMOKE_SUBSET, labels=1)), scale.pydocs(PACKAGES)]
    else:
        sets = scale.sets(["MS MARCO", "NQ"], {"NFCorpus": replace(cut, labels=1), "SNLI": cut})
    hidden = sets[0].name  # training does not know most of its relevant documents
    measured = [one.with_metrics(AUC_METRICS) for one in sets]
    with_guide = {row: f"{row} + guide" for row in LOSSES}
    arms = [
        Arm(
            f"{row.lower()}{'-guide' if model else ''}-{one.name.lower().replace(' ', '-')}",
            with_guide[row] if model else row,
            (one,),
            build_curriculum(scale, loss, one, settings={"loss": {"guide": model}}),
            queries=one.queries,
        )
        for one in measured
        for row, loss in LOSSES.items()
        for model in (None, "minilm")
    ]
    stated = "stated before the run"
    where = f"{hidden}, whose training queries keep one positive" if hidden == "NFCorpus" else hidden
    gains = [
        Claim(
            f"On {where}, the guide improves {title} with both losses",
            stated,
            every(*(above(guided, plain, (metric,), (hidden,)) for plain, guided in with_guide.items())),
        )
        for title, metric in (("AUC", "auc"), ("nDCG@10", "ndcg_at_10"))
    ]
    more = larger_gain((with_guide["MW"], "MW"), (with_guide["CL"], "CL"), "auc", hidden)
    costs = every(*(no_worse_on_average(guided, plain, ("ndcg_at_10",)) for plain, guided in with_guide.items()))
    return Study(
        name="guide",
        title="False negatives masked by a guide",
        source="ours; the masking is that of GISTEmbed (Solatorio, 2024, arXiv:2402.16829)",
        arms=(*scale.untrained(measured), *arms),
        seeds=scale.seeds,
        baselines=tuple(LOSSES),
        heading=(
            describe_training(scale),
            "Guide: all-MiniLM-L6-v2 as published, with its own lengths; margin 0.",
            *lines_of(sets),
        ),
        claims=(
            *gains,
            Claim(f"On {hidden}, MW gains more AUC from the guide than CL", stated, more),
            Claim(
                "On average over the data sets, the guide costs at most 0.01 of nDCG@10 with either loss", stated, costs
            ),
        ),
        drawings=(Drawing("gains", "gains"), Drawing("roc", "roc")),
    )


STUDIES: Mapping[str, Callable[[StudyScale], Study]] = {"lambda": lambda_weight, "refresh": refresh, "guide": guide}
