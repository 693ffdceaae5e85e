"""Results printed in *Optimizing What Matters: AUC-driven learning for robust neural retrieval*.

Notes:
- Table 1: the column "Average" is not the mean of the other columns (CL, MiniLM: AUC .85, where .67, .70, .72 and
  .67 average .69), so nothing is compared with it. The columns NLI and MS MARCO of both XLM-R sizes hold the same
  values except for one (MW, Large: AUC .88 and .87), which looks like one column printed twice.
- Table 2: the averages follow from the columns. nDCG of XLM-R-Base with MW on SQuAD is printed as .90 with an MRR of
  .52 and looks misprinted; the printed average includes it.
- Tables 3 and 4 name no data set; the encoder is MiniLM.
- Table 5 counts steps with batches of 64, 32 and 16 by size of the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping

from raytriever.studies.definition import PaperFigures

PAPER = "Optimizing What Matters"
SIZES = ("MiniLM", "XLM-R-Base", "XLM-R-Large")
LOSSES = ("CL", "MW")
METRICS = ("auc", "mrr_at_10", "ndcg_at_10")
_TITLES = ("AUC", "MRR", "nDCG")
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
_ZERO_SHOT_AVERAGES = {
    "CL": ("0.51", "0.29", "0.25", "0.54", "0.30", "0.27", "0.61", "0.37", "0.32"),
    "MW": ("0.54", "0.31", "0.26", "0.58", "0.33", "0.32", "0.65", "0.39", "0.36"),
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


def in_domain(size: str, loss: str, dataset: str) -> dict[tuple[str, str], float]:
    """Return the results of one training in Table 1, by `(data set, metric)`; empty for other data sets."""
    if dataset not in IN_DOMAIN_SETS:
        return {}
    figures = IN_DOMAIN[size, loss][IN_DOMAIN_SETS.index(dataset)]
    return {(dataset, metric): figure for metric, figure in zip(METRICS, figures, strict=True)}


def zero_shot(size: str, loss: str, datasets: tuple[str, ...]) -> dict[tuple[str, str], float]:
    """Return the results of one training in Table 2, for the data sets that are in it."""
    return {
        (dataset, metric): figure
        for dataset in datasets
        if dataset in ZERO_SHOT_SETS
        for metric, figure in zip(METRICS, ZERO_SHOT[dataset, loss][SIZES.index(size)], strict=True)
    }


def in_domain_table() -> PaperFigures:
    """Return Table 1 without its averages."""
    columns = ("Model", "Loss", *(f"{one} {title}" for one in IN_DOMAIN_SETS for title in _TITLES))
    rows = tuple((*key, *(f"{figure:.2f}" for triple in row for figure in triple)) for key, row in IN_DOMAIN.items())
    return PaperFigures(f"Table 1 of {PAPER} (its averages do not follow from its columns)", columns, rows)


def zero_shot_table() -> PaperFigures:
    """Return Table 2."""
    columns = ("Data set", "Loss", *(f"{size} {title}" for size in SIZES for title in _TITLES))
    rows = [(*key, *(f"{figure:.2f}" for triple in row for figure in triple)) for key, row in ZERO_SHOT.items()]
    rows += [("Average", loss, *_ZERO_SHOT_AVERAGES[loss]) for loss in LOSSES]
    return PaperFigures(f"Table 2 of {PAPER} (trained on NLI)", columns, tuple(rows))


def ablation_table() -> PaperFigures:
    """Return Tables 3 and 4."""
    columns = ("Loss", "lr", "Batch", "Hard negatives", "Precision@10", "Recall@1", "MRR", "nDCG@10", "AUC")
    rows = tuple(
        (loss, rate, str(batch), str(hard), *(f"{figure:.2f}" for figure in row))
        for (loss, rate, batch, hard), row in ABLATION.items()
    )
    return PaperFigures(f"Tables 3 and 4 of {PAPER} (MiniLM; the data set is not named)", columns, rows)


def convergence_table() -> PaperFigures:
    """Return Table 5."""
    rows = tuple((f"{size} ({loss})", *map(str, steps)) for (size, loss), steps in CONVERGENCE.items())
    return PaperFigures(f"Table 5 of {PAPER} (steps at the best checkpoint)", ("Model", *CONVERGENCE_SETS), rows)
