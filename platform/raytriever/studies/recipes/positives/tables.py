"""Results printed in *Training dense retrievers with multiple positive passages*.

Notes:
- In our copy of the paper the heads of Tables 2, 4 and 5 are shifted by a column. Columns are read in the order of the
  words of the heads, which agrees with the text: NQ Acc@20 and Acc@100; MS MARCO dev MRR@10, Recall@100 and
  Recall@1000 (Tables 4 and 5: MRR@10 and Recall@1000); nDCG@10 on DL19 and on DL20; MRR@10 and nDCG@10 on the hybrid
  annotation.
- Table 3: the averages follow from the columns. Touche and T-COVID look exchanged (.65 and .31; other retrievers on
  BEIR have them the other way round). They are shown as printed, and nothing is compared with them.
- Figure 1 is a picture: only the values in the text are known, and for (G, M) = (8, 4) those of Table 2. For
  SingleLH the text gives 29.88 there and Table 2 29.91.
- The first row of Table 7 is LSEPair of Table 2.

Marks of significance are left out, because some of them are missing in our copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from raytriever.studies.definition import PaperFigures

PAPER = "Training dense retrievers with multiple positive passages"
OBJECTIVES = ("SingleLH", "Rand1LH", "JointLH", "SumMargLH", "LSEPair")
DEV, DL19, DL20, HYBRID = "MS MARCO dev", "DL19", "DL20", "Hybrid"
Column = tuple[str, str]

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


def fractions(columns: tuple[Column, ...], row: tuple[float, ...]) -> dict[Column, float]:
    """Return a printed row by `(data set, metric)`, as fractions."""
    return {column: figure / 100 for column, figure in zip(columns, row, strict=True)}


def beir(objective: str, datasets: tuple[str, ...]) -> dict[Column, float]:
    """Return the results of one objective in Table 3, for the data sets that are in it and not exchanged."""
    column = OBJECTIVES.index(objective)
    published = [name for name in datasets if name in BEIR and name not in _EXCHANGED]
    return {(name, "ndcg_at_10"): BEIR[name][column] / 100 for name in published}


def table(number: int, about: str, columns: tuple[Column, ...], rows: Mapping[str, tuple[float, ...]]) -> PaperFigures:
    """Return a table with one row for each objective."""
    titles = tuple(f"{dataset} {_TITLES[metric]}" for dataset, metric in columns)
    return PaperFigures(
        f"Table {number} of {PAPER} ({about})",
        ("Objective", *titles),
        tuple((name, *(f"{figure:.2f}" for figure in row)) for name, row in rows.items()),
    )


def beir_table() -> PaperFigures:
    """Return Table 3."""
    rows = {**BEIR, "Average": _BEIR_AVERAGE}
    return PaperFigures(
        f"Table 3 of {PAPER} (nDCG@10, trained on MS MARCO; Touche and T-COVID look exchanged)",
        ("Data set", *OBJECTIVES),
        tuple((name, *(f"{figure:.2f}" for figure in row)) for name, row in rows.items()),
    )


def ratio_table() -> PaperFigures:
    """Return the known values of Figure 1."""
    columns = ((DEV, "mrr_at_10"), (HYBRID, "ndcg_at_10"))
    rows = tuple(
        (name, str(size), str(most), *(f"{figures[one]:.2f}" if one in figures else "" for one in columns))
        for (name, size, most), figures in sorted(RATIO.items(), key=lambda item: item[0][1:])
    )
    titles = tuple(f"{dataset} {_TITLES[metric]}" for dataset, metric in columns)
    return PaperFigures(
        f"Figure 1 of {PAPER}, values from its text and Table 2", ("Objective", "G", "M", *titles), rows
    )


def budget_table() -> PaperFigures:
    """Return Table 7."""
    rows = tuple((str(most), share, *(f"{figure:.2f}" for figure in row)) for (most, share), row in BUDGET.items())
    titles = tuple(_TITLES[metric] for _, metric in BUDGET_COLUMNS)
    return PaperFigures(f"Table 7 of {PAPER} (MS MARCO dev, LSEPair)", ("Positives", "Queries", *titles), rows)


_TITLES = {
    "accuracy_at_20": "Acc@20",
    "accuracy_at_100": "Acc@100",
    "mrr_at_10": "MRR@10",
    "ndcg_at_10": "nDCG@10",
    "recall_at_100": "Recall@100",
    "recall_at_1000": "Recall@1000",
}
