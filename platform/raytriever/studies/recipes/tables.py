"""Results that the papers print, as far as a study compares with them or shows them.

*Optimizing What Matters: AUC-driven learning for robust neural retrieval*:
- Table 1: the column "Average" is not the mean of the other columns (CL, MiniLM: AUC .85, where .67, .70, .72 and
  .67 average .69), so nothing is compared with it. The columns NLI and MS MARCO of both XLM-R sizes hold the same
  values except for one (MW, Large: AUC .88 and .87), which looks like one column printed twice.
- Table 2: the averages follow from the columns. nDCG of XLM-R-Base with MW on SQuAD is printed as .90 with an MRR of
  .52 and looks misprinted; the printed average includes it.
- Tables 3 and 4 name no data set; the encoder is MiniLM.
- Table 5 counts steps with batches of 64, 32 and 16 by size of the encoder.

*Training dense retrievers with multiple positive passages*:
- In our copy of the paper the heads of Tables 2, 4 and 5 are shifted by a column. Columns are read in the order of the
  words of the heads, which agrees with the text: NQ Acc@20 and Acc@100; MS MARCO dev MRR@10, Recall@100 and
  Recall@1000 (Tables 4 and 5: MRR@10 and Recall@1000); nDCG@10 on DL19 and on DL20; MRR@10 and nDCG@10 on the hybrid
  annotation.
- Table 3: the averages follow from the columns. Touche and T-COVID look exchanged (.65 and .31; other retrievers on
  BEIR have them the other way round). They are shown as printed, and nothing is compared with them.
- Figure 1 is a picture: only the values in the text are known, and for (G, M) = (8, 4) those of Table 2. For
  SingleLH the text gives 29.88 there and Table 2 29.91.
- The first row of Table 7 is LSEPair of Table 2.
- Marks of significance are left out, because some of them are missing in our copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any

from raytriever.studies.definition import PaperFigures

AUC_PAPER = "Optimizing What Matters"
POSITIVES_PAPER = "Training dense retrievers with multiple positive passages"
SIZES = ("MiniLM", "XLM-R-Base", "XLM-R-Large")
AUC_METRICS = ("auc", "mrr_at_10", "ndcg_at_10")
Column = tuple[str, str]  # data set and metric
_Triple = tuple[float, float, float]

IN_DOMAIN_SETS = ("NLI", "NQ", "SQuAD", "MS MARCO")
# By size and loss: AUC, MRR@10 and nDCG@10 on each of the four.
IN_DOMAIN: Mapping[tuple[str, str], tuple[_Triple, ...]] = {
    ("MiniLM", "CL"): ((0.67, 0.24, 0.29), (0.70, 0.35, 0.46), (0.72, 0.39, 0.48), (0.67, 0.36, 0.44)),
    ("MiniLM", "MW"): ((0.81, 0.35, 0.43), (0.84, 0.36, 0.43), (0.85, 0.37, 0.44), (0.81, 0.34, 0.43)),
    ("XLM-R-Base", "CL"): ((0.69, 0.27, 0.32), (0.70, 0.36, 0.44), (0.78, 0.38, 0.47), (0.69, 0.27, 0.32)),
    ("XLM-R-Base", "MW"): ((0.84, 0.37, 0.45), (0.87, 0.36, 0.45), (0.86, 0.36, 0.45), (0.84, 0.37, 0.45)),
    ("XLM-R-Large", "CL"): ((0.73, 0.31, 0.37), (0.79, 0.38, 0.48), (0.65, 0.31, 0.38), (0.73, 0.31, 0.37)),
    ("XLM-R-Large", "MW"): ((0.88, 0.39, 0.47), (0.89, 0.37, 0.46), (0.92, 0.41, 0.50), (0.87, 0.39, 0.47)),
}

# By data set and loss: AUC, MRR@10 and nDCG@10 of each size.
ZERO_SHOT: Mapping[tuple[str, str], tuple[_Triple, ...]] = {
    ("NFCorpus", "CL"): ((0.49, 0.26, 0.16), (0.51, 0.27, 0.18), (0.56, 0.28, 0.19)),
    ("NFCorpus", "MW"): ((0.50, 0.26, 0.17), (0.55, 0.30, 0.20), (0.58, 0.31, 0.20)),
    ("TREC-COVID", "CL"): ((0.20, 0.34, 0.19), (0.24, 0.37, 0.25), (0.29, 0.39, 0.24)),
    ("TREC-COVID", "MW"): ((0.16, 0.44, 0.22), (0.26, 0.43, 0.31), (0.28, 0.43, 0.38)),
    ("FiQA", "CL"): ((0.44, 0.12, 0.09), (0.43, 0.14, 0.10), (0.52, 0.18, 0.12)),
    ("FiQA", "MW"): ((0.48, 0.16, 0.11), (0.49, 0.17, 0.12), (0.51, 0.18, 0.13)),
    ("SQuAD", "CL"): ((0.80, 0.40, 0.44), (0.85, 0.47, 0.51), (0.86, 0.47, 0.52)),
    ("SQuAD", "MW"): ((0.86, 0.41, 0.45), (0.90, 0.52, 0.90), (0.92, 0.57, 0.62)),
    ("HotpotQA", "CL"): ((0.66, 0.62, 0.46), (0.64, 0.55, 0.41), (0.66, 0.63, 0.48)),
    ("HotpotQA", "MW"): ((0.69, 0.62, 0.47), (0.70, 0.56, 0.46), (0.72, 0.59, 0.46)),
    ("Touche-2020", "CL"): ((0.27, 0.12, 0.07), (0.24, 0.08, 0.05), (0.37, 0.12, 0.05)),
    ("Touche-2020", "MW"): ((0.25, 0.09, 0.06), (0.26, 0.09, 0.07), (0.39, 0.18, 0.07)),
    ("ArguAna", "CL"): ((0.71, 0.15, 0.21), (0.83, 0.17, 0.24), (0.86, 0.19, 0.27)),
    ("ArguAna", "MW"): ((0.77, 0.16, 0.22), (0.86, 0.15, 0.27), (0.90, 0.17, 0.31)),
    ("CQADupStack", "CL"): ((0.38, 0.19, 0.17), (0.26, 0.13, 0.11), (0.45, 0.28, 0.25)),
    ("CQADupStack", "MW"): ((0.40, 0.20, 0.18), (0.33, 0.19, 0.16), (0.52, 0.33, 0.31)),
    ("Quora", "CL"): ((0.94, 0.86, 0.85), (0.94, 0.83, 0.81), (0.97, 0.87, 0.86)),
    ("Quora", "MW"): ((0.97, 0.86, 0.85), (0.96, 0.86, 0.84), (0.98, 0.88, 0.86)),
    ("DBPedia", "CL"): ((0.40, 0.36, 0.24), (0.32, 0.23, 0.14), (0.56, 0.33, 0.23)),
    ("DBPedia", "MW"): ((0.42, 0.36, 0.24), (0.46, 0.30, 0.20), (0.59, 0.38, 0.29)),
    ("SciDocs", "CL"): ((0.31, 0.10, 0.05), (0.29, 0.12, 0.06), (0.42, 0.17, 0.07)),
    ("SciDocs", "MW"): ((0.38, 0.12, 0.06), (0.30, 0.12, 0.06), (0.43, 0.18, 0.08)),
    ("SciFact", "CL"): ((0.61, 0.20, 0.22), (0.68, 0.26, 0.28), (0.66, 0.36, 0.39)),
    ("SciFact", "MW"): ((0.63, 0.21, 0.23), (0.70, 0.28, 0.29), (0.77, 0.39, 0.41)),
    ("FEVER", "CL"): ((0.47, 0.18, 0.19), (0.64, 0.32, 0.35), (0.73, 0.50, 0.52)),
    ("FEVER", "MW"): ((0.54, 0.24, 0.25), (0.73, 0.44, 0.45), (0.75, 0.53, 0.54)),
    ("Climate-FEVER", "CL"): ((0.50, 0.16, 0.12), (0.62, 0.32, 0.23), (0.67, 0.38, 0.29)),
    ("Climate-FEVER", "MW"): ((0.53, 0.19, 0.13), (0.58, 0.27, 0.20), (0.70, 0.40, 0.32)),
}
ZERO_SHOT_SETS = tuple(dict.fromkeys(name for name, _ in ZERO_SHOT))
_ZERO_SHOT_AVERAGES: dict[tuple[str, str], tuple[_Triple, ...]] = {
    ("Average", "CL"): ((0.51, 0.29, 0.25), (0.54, 0.30, 0.27), (0.61, 0.37, 0.32)),
    ("Average", "MW"): ((0.54, 0.31, 0.26), (0.58, 0.33, 0.32), (0.65, 0.39, 0.36)),
}

ABLATION_METRICS = ("precision_at_10", "recall_at_1", "mrr_at_10", "ndcg_at_10", "auc")
# By loss, learning rate, batch and hard negatives.
ABLATION: Mapping[tuple[str, str, int, int], tuple[float, ...]] = {
    ("CL", "3e-5", 64, 3): (0.10, 0.36, 0.55, 0.63, 0.90),
    ("CL", "3e-5", 64, 5): (0.10, 0.37, 0.55, 0.64, 0.90),
    ("CL", "3e-5", 64, 7): (0.10, 0.37, 0.55, 0.63, 0.90),
    ("CL", "5e-5", 128, 3): (0.10, 0.36, 0.55, 0.63, 0.89),
    ("CL", "5e-5", 128, 5): (0.10, 0.36, 0.54, 0.62, 0.88),
    ("CL", "5e-5", 128, 7): (0.10, 0.38, 0.56, 0.64, 0.92),
    ("MW", "3e-5", 64, 3): (0.10, 0.35, 0.54, 0.62, 0.96),
    ("MW", "3e-5", 64, 5): (0.10, 0.35, 0.54, 0.63, 0.96),
    ("MW", "3e-5", 64, 7): (0.10, 0.35, 0.54, 0.62, 0.96),
    ("MW", "3e-5", 128, 3): (0.10, 0.34, 0.53, 0.62, 0.97),
    ("MW", "3e-5", 128, 5): (0.10, 0.34, 0.53, 0.62, 0.96),
    ("MW", "3e-5", 128, 7): (0.10, 0.34, 0.53, 0.62, 0.97),
}

CONVERGENCE_SETS = ("NLI", "MS MARCO", "SQuAD", "NQ")
CONVERGENCE: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("MiniLM", "MW"): (16000, 5000, 2000, 9500),
    ("MiniLM", "CL"): (14000, 3500, 1000, 7000),
    ("XLM-R-Base", "MW"): (24000, 3500, 4000, 12500),
    ("XLM-R-Base", "CL"): (20000, 1500, 2500, 11000),
    ("XLM-R-Large", "MW"): (21500, 4500, 2500, 10000),
    ("XLM-R-Large", "CL"): (18000, 3000, 2000, 8000),
}

OBJECTIVES = ("SingleLH", "Rand1LH", "JointLH", "SumMargLH", "LSEPair")
DEV, DL19, DL20, HYBRID = "MS MARCO dev", "DL19", "DL20", "Hybrid"

HOMOGENEOUS_COLUMNS: tuple[Column, ...] = (
    ("NQ", "accuracy_at_20"),
    ("NQ", "accuracy_at_100"),
    (DEV, "mrr_at_10"),
    (DEV, "recall_at_100"),
    (DEV, "recall_at_1000"),
    (DL19, "ndcg_at_10"),
    (DL20, "ndcg_at_10"),
    (HYBRID, "mrr_at_10"),
    (HYBRID, "ndcg_at_10"),
)
HOMOGENEOUS: Mapping[str, tuple[float, ...]] = {
    "SingleLH": (76.18, 84.57, 29.91, 81.54, 93.60, 62.58, 60.20, 75.43, 48.96),
    "Rand1LH": (75.68, 84.76, 30.44, 82.02, 94.11, 63.09, 61.15, 79.19, 53.07),
    "JointLH": (75.93, 85.15, 28.22, 83.09, 95.10, 59.81, 63.20, 75.44, 51.71),
    "SumMargLH": (75.12, 84.57, 29.79, 80.76, 92.98, 62.50, 61.24, 78.52, 49.86),
    "LSEPair": (77.01, 85.62, 30.57, 83.10, 94.82, 65.33, 62.80, 78.96, 52.99),
}

# By data set: nDCG@10 of each objective, in their order.
BEIR: Mapping[str, tuple[float, ...]] = {
    "ArguAna": (34.87, 28.66, 39.52, 28.40, 31.79),
    "Climate-FEVER": (21.50, 21.31, 21.04, 21.08, 22.05),
    "CQADupStack": (26.73, 23.28, 24.58, 23.60, 23.98),
    "DBPedia": (28.82, 28.49, 30.49, 27.67, 29.73),
    "FEVER": (64.10, 64.66, 61.10, 63.48, 64.24),
    "FiQA": (24.40, 24.42, 23.53, 23.52, 24.87),
    "HotpotQA": (43.02, 42.20, 41.19, 40.68, 43.33),
    "NFCorpus": (24.66, 24.84, 25.41, 23.41, 25.92),
    "NQ": (43.13, 45.34, 42.89, 43.22, 45.91),
    "Quora": (81.58, 80.81, 65.88, 80.36, 81.26),
    "SciDocs": (10.32, 9.83, 10.27, 8.62, 10.39),
    "SciFact": (50.35, 48.64, 50.60, 46.27, 52.08),
    "Touche-2020": (65.24, 63.34, 62.28, 59.78, 66.14),
    "TREC-COVID": (30.72, 30.80, 28.65, 29.33, 31.10),
}
_BEIR_AVERAGE = (39.25, 38.33, 37.67, 37.10, 39.49)
_EXCHANGED = ("Touche-2020", "TREC-COVID")

MIXED_COLUMNS: tuple[Column, ...] = (
    (DEV, "mrr_at_10"),
    (DEV, "recall_at_1000"),
    (DL19, "ndcg_at_10"),
    (DL20, "ndcg_at_10"),
    (HYBRID, "mrr_at_10"),
    (HYBRID, "ndcg_at_10"),
)
HETEROGENEOUS: Mapping[str, tuple[float, ...]] = {
    "Rand1LH": (30.64, 94.55, 62.39, 63.31, 77.30, 51.06),
    "JointLH": (28.45, 95.65, 59.68, 64.62, 78.45, 52.46),
    "SumMargLH": (30.43, 93.10, 60.53, 60.01, 74.29, 46.61),
    "LSEPair": (30.68, 95.52, 64.13, 65.04, 78.32, 53.14),
}
CURRICULUM: Mapping[str, tuple[float, ...]] = {
    "SingleLH": (33.65, 96.00, 62.34, 63.60, 80.14, 54.32),
    "Rand1LH": (34.13, 96.21, 63.25, 63.42, 82.04, 55.21),
    "JointLH": (33.83, 96.48, 62.83, 64.69, 83.83, 55.70),
    "SumMargLH": (33.08, 95.97, 61.20, 63.90, 81.00, 54.09),
    "LSEPair": (33.97, 96.42, 65.35, 64.91, 80.67, 55.70),
}

# Values of Figure 1 that the text gives, by objective, G and M.
RATIO: Mapping[tuple[str, int, int], Mapping[Column, float]] = {
    ("JointLH", 16, 2): {(DEV, "mrr_at_10"): 30.37, (HYBRID, "ndcg_at_10"): 52.43},
    ("JointLH", 16, 4): {(HYBRID, "ndcg_at_10"): 53.87},
    ("JointLH", 16, 8): {(DEV, "mrr_at_10"): 27.59},
    ("LSEPair", 16, 8): {(DEV, "mrr_at_10"): 29.00},
    ("Rand1LH", 16, 8): {(DEV, "mrr_at_10"): 29.28},
    **{
        (name, 8, 4): {
            column: figure for column, figure in zip(HOMOGENEOUS_COLUMNS, row, strict=True) if column[0] != "NQ"
        }
        for name, row in HOMOGENEOUS.items()
        if name != "SingleLH"
    },
}

VARIANT_COLUMNS = HOMOGENEOUS_COLUMNS[:2]
VARIANTS: Mapping[str, tuple[float, ...]] = {
    "LSEPair": (77.01, 85.62),
    "SumMargLH": (75.12, 84.57),
    "LSEPair_maxP": (74.18, 83.91),
    "LSEPair_maxN": (76.76, 85.79),
    "LSEPair_minP": (76.79, 85.82),
    "LSEPair_minP_maxN": (76.48, 85.76),
}

BUDGET_COLUMNS: tuple[Column, ...] = ((DEV, "mrr_at_10"), (DEV, "recall_at_1000"))
# By positives per query and the share of the queries with these positives.
BUDGET: Mapping[tuple[int, str], tuple[float, ...]] = {
    (4, "100 %"): (30.57, 94.82),
    (1, "100 %"): (29.83, 93.60),
    (2, "50 %"): (29.50, 93.80),
    (3, "33.3 %"): (27.81, 93.65),
    (4, "25 %"): (26.57, 93.67),
}
_TITLES = {
    "accuracy_at_20": "Acc@20",
    "accuracy_at_100": "Acc@100",
    "mrr_at_10": "MRR@10",
    "ndcg_at_10": "nDCG@10",
    "recall_at_100": "Recall@100",
    "recall_at_1000": "Recall@1000",
}
_SHORT_TITLES = ("AUC", "MRR", "nDCG")  # of `AUC_METRICS`


def in_domain(size: str, loss: str, dataset: str) -> dict[Column, float]:
    """Return the results of one training in Table 1, by `(data set, metric)`; empty for other data sets."""
    if dataset not in IN_DOMAIN_SETS:
        return {}
    figures = IN_DOMAIN[size, loss][IN_DOMAIN_SETS.index(dataset)]
    return {(dataset, metric): figure for metric, figure in zip(AUC_METRICS, figures, strict=True)}


def zero_shot(size: str, loss: str, datasets: Sequence[str]) -> dict[Column, float]:
    """Return the results of one training in Table 2, for the data sets that are in it."""
    return {
        (dataset, metric): figure
        for dataset in datasets
        if dataset in ZERO_SHOT_SETS
        for metric, figure in zip(AUC_METRICS, ZERO_SHOT[dataset, loss][SIZES.index(size)], strict=True)
    }


def fractions(columns: Sequence[Column], row: Sequence[float]) -> dict[Column, float]:
    """Return a row that is printed in per cent by `(data set, metric)`, as fractions."""
    return {column: figure / 100 for column, figure in zip(columns, row, strict=True)}


def beir(objective: str, datasets: Sequence[str]) -> dict[Column, float]:
    """Return the results of one objective in Table 3, for the data sets that are in it and not exchanged."""
    column = OBJECTIVES.index(objective)
    published = [name for name in datasets if name in BEIR and name not in _EXCHANGED]
    return {(name, "ndcg_at_10"): BEIR[name][column] / 100 for name in published}


def _printed(
    title: str, columns: Sequence[str], rows: Mapping[Any, Sequence[float]], form: str = ".2f"
) -> PaperFigures:
    """Return a table, with the parts of a row's key in its first columns; a figure that is not known is empty."""
    texts = {key: ["" if isnan(figure) else f"{figure:{form}}" for figure in row] for key, row in rows.items()}
    return PaperFigures(title, tuple(columns), tuple((*map(str, key), *row) for key, row in texts.items()))


def _by_objective(
    number: int, about: str, columns: Sequence[Column], rows: Mapping[str, Sequence[float]]
) -> PaperFigures:
    title = f"Table {number} of {POSITIVES_PAPER} ({about})"
    return _printed(title, ("Objective", *_titles(columns)), {(name,): row for name, row in rows.items()})


def _titles(columns: Sequence[Column]) -> list[str]:
    return [f"{dataset} {_TITLES[metric]}" for dataset, metric in columns]


def _flat(rows: Mapping[tuple[str, str], Sequence[_Triple]]) -> dict[tuple[str, str], list[float]]:
    return {key: [figure for triple in row for figure in triple] for key, row in rows.items()}


IN_DOMAIN_TABLE = _printed(
    f"Table 1 of {AUC_PAPER} (its averages do not follow from its columns)",
    ("Model", "Loss", *(f"{one} {title}" for one in IN_DOMAIN_SETS for title in _SHORT_TITLES)),
    _flat(IN_DOMAIN),
)
ZERO_SHOT_TABLE = _printed(
    f"Table 2 of {AUC_PAPER} (trained on NLI)",
    ("Data set", "Loss", *(f"{size} {title}" for size in SIZES for title in _SHORT_TITLES)),
    _flat({**ZERO_SHOT, **_ZERO_SHOT_AVERAGES}),
)
ABLATION_TABLE = _printed(
    f"Tables 3 and 4 of {AUC_PAPER} (MiniLM; the data set is not named)",
    ("Loss", "lr", "Batch", "Hard negatives", "Precision@10", "Recall@1", "MRR", "nDCG@10", "AUC"),
    ABLATION,
)
CONVERGENCE_TABLE = _printed(
    f"Table 5 of {AUC_PAPER} (steps at the best checkpoint)",
    ("Model", *CONVERGENCE_SETS),
    {(f"{size} ({loss})",): steps for (size, loss), steps in CONVERGENCE.items()},
    "d",
)
HOMOGENEOUS_TABLE = _by_objective(2, "trained on positives of an LLM", HOMOGENEOUS_COLUMNS, HOMOGENEOUS)
BEIR_TABLE = _printed(
    f"Table 3 of {POSITIVES_PAPER} (nDCG@10, trained on MS MARCO; Touche and T-COVID look exchanged)",
    ("Data set", *OBJECTIVES),
    {(name,): row for name, row in {**BEIR, "Average": _BEIR_AVERAGE}.items()},
)
HETEROGENEOUS_TABLE = _by_objective(4, "human and LLM positives", MIXED_COLUMNS, HETEROGENEOUS)
CURRICULUM_TABLE = _by_objective(5, "after the second stage", MIXED_COLUMNS, CURRICULUM)
VARIANTS_TABLE = _by_objective(6, "NQ", VARIANT_COLUMNS, VARIANTS)
BUDGET_TABLE = _printed(
    f"Table 7 of {POSITIVES_PAPER} (MS MARCO dev, LSEPair)",
    ("Positives", "Queries", *(_TITLES[metric] for _, metric in BUDGET_COLUMNS)),
    BUDGET,
)
_RATIO_COLUMNS = ((DEV, "mrr_at_10"), (HYBRID, "ndcg_at_10"))
RATIO_TABLE = _printed(
    f"Figure 1 of {POSITIVES_PAPER}, values from its text and Table 2",
    ("Objective", "G", "M", *_titles(_RATIO_COLUMNS)),
    {
        key: [figures.get(column, nan) for column in _RATIO_COLUMNS]
        for key, figures in sorted(RATIO.items(), key=lambda item: item[0][1:])
    },
)
