"""Selective retrieval: does training improve the decision to show the best document or nothing?

    python studies/abstain.py questions PACKS [--output packs/abstain]
    raytriever study studies/abstain.yaml --output DIR --seeds 1
    python studies/abstain.py choose DIR > abstain.yaml   # --study FILE for mw-in-domain and mw-zero-shot
    raytriever study abstain.yaml --output DIR
    python studies/abstain.py analyze DIR

A person gets the best document of a question if its confidence reaches one threshold, and otherwise nothing. The study
asks whether any training improves this decision beyond the encoder as published, when each uses its best confidence.

- Questions with and without an answer: `questions`. Confidences: `metrics.answer_confidence`. For `combined`, BM25 is
  asked about the same questions; in the row of BM25 its features describe its own ranking.
- Ranking: AUC (against the 500 best others of each query) and nDCG@10 on three data sets of the training and on three
  others, of the same encoders.
- Trainings: contrastive loss (CL), MW, CoSENT, binary cross-entropy (BCE), and two weighted sums (MW+CL, MW+BCE), each
  at two temperatures, on a mixture of all data sets.
- Choice: for each loss, the variant whose best confidence has the lowest AURC with seed 0, on the dev questions of all
  data sets in one pool, is the row of the loss. These dev questions also choose and fit the confidence of each seed,
  and choose its threshold. Where a value was fitted on dev, dev is scored out of fold. Figures are those of test
  questions.

The claims were written before the run. Metrics, each on the
test questions of a data set, or of all data sets in one pool (`all`):

- `aurc`, `aurc_best`: area under the risk-coverage curve by the score of the best document, and by the best confidence;
  lower is better.
- `combined_gain`: AURC by the score minus AURC by `combined`.
- `f1`, `answered`, `shown_removed`, `shown_foreign`, `shown_hard`: at the threshold of the best confidence with the
  highest F1 on the pool, F1, the fraction of questions with an answer that are shown a relevant document, and the
  fraction of each kind of questions without an answer that are shown one.
- `passages_f1`, `over_adaptive`, `over_buffered`, `over_tail`: F1 of all passages whose score reaches the threshold
  with the highest such F1 on the dev questions of the pool; and that minus the F1 of each rule of `cuts`.
- `transfer_loss`: F1 by the score at the threshold of the data set's own dev questions, minus the mean F1 at the
  thresholds of the other data sets' dev questions."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from analysis import Analysis, analyse, read_variants
from questions import StudySize, StudySource, write_questions
from raytriever.core.store.commit import write_atomically
from raytriever.core.terminal import markdown_table
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.differences.differences_by_seed import (
    ABOVE,
    BELOW,
    Cell,
    SeededResults,
    SeedMetrics,
    format_outcome,
)
from raytriever.evaluation.evaluated_datasets import EvaluationDataset
from raytriever.evaluation.results import EVALUATION
from raytriever.experiments.study.claims import (
    DID_NOT,
    HELD,
    WITHIN_NOISE,
    Claim,
    Judge,
    Verdict,
    above,
    above_on_average,
    every,
    no_worse_on_average,
)
from raytriever.experiments.study.outcome import read_variant, seeds_of
from raytriever.experiments.study.study_file import Study, load_study
from raytriever.experiments.study.train_variant import is_finished, variant_folder
from raytriever.tracking.step_log import end_to_end, training_folders
from system_metrics import GAINS, POOLED

FILE = Path(__file__).with_name("abstain.yaml")
# Data sets whose AUC and nDCG are measured.
TRAINED_ON = ("SQuAD, ranking", "SciFact, ranking", "MedQuAD, ranking")
UNSEEN = ("HotpotQA-mini", "Climate-FEVER-evidence", "Cranfield")
RANKED = (*TRAINED_ON, *UNSEEN)
SUM, UNTRAINED, DEV_SUFFIX = "MW+CL", "MiniLM, untrained", " dev"
_WIKIPEDIA, _BIOMEDICAL = "Wikipedia", "biomedicine"
PACKS = {
    "squad": StudySource("SQuAD", _WIKIPEDIA, ("train", "", "dev")),
    "nq-paragraphs": StudySource("NQ", _WIKIPEDIA, ("", "", "test")),
    "scifact": StudySource("SciFact", _BIOMEDICAL, ("train", "", "test")),
    "medquad": StudySource("MedQuAD", _BIOMEDICAL, ("train", "dev", "test")),
}
SIZE = StudySize(train=320, dev=150, test=400, foreign_dev=50, foreign_test=100, documents=1_000)


def write(packs: Path, output: Path) -> None:
    """Write the data sets of the questions, and print how many of each kind there are."""
    openers = {
        source: partial(open_dataset, packs / pack, [split for split in source.splits if split])
        for pack, source in PACKS.items()
    }
    for name, counts in write_questions(output, openers, SIZE).items():
        print(f"{name}: " + "; ".join(f"{text} {count:,}" for text, count in counts.items()))


def candidates_of(study: Study) -> dict[str, list[str]]:
    """Return the rows that dev chooses from, by row of the results: `MW + 0.1 CL, temperature 0.05` is one of MW+CL."""
    candidates: dict[str, list[str]] = {}
    for variant in study.variants:
        if variant.curriculum is not None:
            row = re.sub(r" \+ [\d.]+ ", "+", variant.row.partition(",")[0])
            candidates.setdefault(row, []).append(variant.row)
    return candidates


def read_evaluations(study: Study, folder: Path) -> dict[str, dict[int | None, Path]]:
    """Return the evaluation directories of all finished seeds of a study by row and seed, None if untrained."""
    evaluations = {}
    for variant in study.variants:
        folders = {seed: variant_folder(folder, variant, seed) for seed in seeds_of(variant, study.seeds)}
        evaluations[variant.row] = {
            seed if variant.curriculum else None: folder / EVALUATION
            for seed, folder in folders.items()
            if is_finished(folder)
        }
    return evaluations


def _datasets_of(study: Study) -> dict[str, tuple[EvaluationDataset, EvaluationDataset]]:
    """Return the test and dev questions of each data set."""
    by_name = study.variants[0].datasets
    return {n: (value, by_name[n + DEV_SUFFIX]) for n, value in by_name.items() if n + DEV_SUFFIX in by_name}


def read_ranking(study: Study, folder: Path, chosen: Mapping[str, str]) -> SeededResults:
    """Return the metrics of `RANKED` by row and data set, of the variants that are the rows of losses and of the
    others."""
    losses = {variant: loss for loss, variant in chosen.items()}
    evaluations = read_evaluations(study, folder)
    cells: dict[Cell, list[SeedMetrics]] = {}
    for variant in study.variants:
        some = {name: dataset for name, dataset in variant.datasets.items() if name in RANKED}
        if some and (variant.curriculum is None or variant.row in losses):
            for seed, evaluation in evaluations[variant.row].items():
                for name, metrics in read_variant(
                    replace(variant, datasets=some), evaluation.parent, seed or 0
                ).items():
                    cells.setdefault((losses.get(variant.row, variant.row), name), []).append(metrics)
    return SeededResults(cells)


def _ranking_table(ranking: SeededResults) -> list[list[str]]:
    table = [["row", "metric", *ranking.datasets]]
    for metric in ("auc", "ndcg_at_10"):
        for row in ranking.rows:
            values = (ranking.values(row, name, metric) * 100 for name in ranking.datasets)
            table.append(
                [
                    row,
                    metric,
                    *(
                        f"{value.mean():.2f} ± {value.std(ddof=1):.2f}" if len(value) > 1 else f"{value[0]:.2f}"
                        for value in values
                    ),
                ]
            )
    return table


def _dev_values(study: Study, folder: Path) -> dict[str, float]:
    """Return what dev says of each trained row with the first seed; the highest is best.

    Where the study measures dev questions, it is minus the AURC by the best confidence. Otherwise it is the AUC of the
    dev batches after the last step; the mean over the data sets."""
    if datasets := _datasets_of(study):
        variants = read_variants(datasets, read_evaluations(study, folder))
        return {row: -next(iter(seeds.values())).dev_area for row, seeds in variants.items()}
    by_row: dict[str, list[float]] = {}
    for variant in study.variants:
        if variant.curriculum is not None:
            curve = end_to_end(training_folders(variant_folder(folder, variant, 0)), "dev_batch_auc")
            by_row.setdefault(variant.row, []).append(curve[-1][1])
    return {row: fmean(values) for row, values in by_row.items()}


def choose(file: Path, folder: Path) -> str:
    """Return the text of a study's file with one variant of each loss, which the first seed's dev questions choose.
    Claims and baselines that name another variant of the loss are about the chosen one."""
    study = load_study(file)
    values, chosen = _dev_values(study, folder), {}
    for rows in candidates_of(study).values():
        chosen |= dict.fromkeys(rows, max(rows, key=lambda row: values[row]))
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["variants"] = {row: value for row, value in content["variants"].items() if chosen.get(row, row) == row}
    content |= {key: _renamed(content[key], chosen) for key in ("baseline", "claims") if key in content}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value of YAML in which each text that is a key of `names` is replaced."""
    if isinstance(value, dict):
        return {key: _renamed(item, names) for key, item in value.items()}
    return [_renamed(item, names) for item in value] if isinstance(value, list) else names.get(value, value)


def analyze(file: Path, folder: Path) -> Analysis:
    """Analyze a finished study; write `abstain.json`, `abstain.md` and the figure into its folder."""
    study = load_study(file)
    datasets = _datasets_of(study)
    variants = read_variants(datasets, read_evaluations(study, folder))
    analysis = analyse(variants, candidates_of(study), UNTRAINED)
    ranking = read_ranking(study, folder, analysis.content["chosen variants"])
    results = SeededResults({**analysis.results.cells, **ranking.cells})
    claims = claims_of(list(datasets))
    verdicts = [(claim, claim.verdict(results)) for claim in claims]
    rows = [[claim.text, claim.source, verdict.word, verdict.because] for claim, verdict in verdicts]
    tables = {
        **analysis.tables,
        "AUC and nDCG@10": _ranking_table(ranking),
        "Claims": [["claim", "source", "verdict", "values"], *rows],
    }
    text = f"# {study.title}\n" + "".join(f"\n## {title}\n\n{markdown_table(table)}" for title, table in tables.items())
    captions = analysis.plot(folder)
    text += "".join(f"\n![{caption}]({name})\n" for name, caption in captions.items())
    content = {
        **analysis.content,
        "ranking": {
            row: {name: [cell.metrics for cell in ranking.cells[row, name]] for name in ranking.datasets}
            for row in ranking.rows
        },
        "claims": [dict(zip(("text", "source", "verdict"), row, strict=False)) for row in rows],
    }
    write_atomically(folder / "abstain.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomically(folder / "abstain.md", text)
    return analysis


_BEFORE, _PROMISE = "stated before the run", "promise of MW, section 3"


def claims_of(datasets: Sequence[str]) -> tuple[Claim, ...]:
    """Return the claims; `datasets` are the names of the data sets, without the pool."""
    beyond = "has a lower AURC by its best confidence than the encoder as published by its own, in one pool"
    score, losses = "has a lower AURC by its score", ("CL", "MW", "CoSENT", "BCE", SUM, "MW+BCE")
    return (
        *(Claim(f"{row} {beyond}", _BEFORE, _lower(row, UNTRAINED, "aurc_best")) for row in losses),
        *(
            Claim(
                f"{item}+{other} has a lower AURC than {item} and than {other}, each by its best confidence, in one "
                "pool",
                _BEFORE,
                every(*(_lower(f"{item}+{other}", part, "aurc_best") for part in (item, other))),
            )
            for item, other in (("MW", "CL"), ("MW", "BCE"))
        ),
        Claim(
            "`combined` has a lower AURC than the score in one pool, for the trained rows and the encoder as published",
            _BEFORE,
            every(*(_positive(row, "combined_gain") for row in (UNTRAINED, *losses))),
        ),
        Claim(f"MW {score} than CL, in one pool", _PROMISE, _lower("MW", "CL", "aurc")),
        *(
            Claim(f"{row} {score} than CL, in one pool", _BEFORE, _lower(row, "CL", "aurc"))
            for row in ("CoSENT", "BCE")
        ),
        Claim(
            f"MW {score} than CoSENT and than BCE, in one pool",
            _BEFORE,
            every(_lower("MW", "CoSENT", "aurc"), _lower("MW", "BCE", "aurc")),
        ),
        *(
            Claim(
                f"A threshold of the score that was chosen on another data set costs {row} less F1 than CL, on average",
                _PROMISE if row == "MW" else _BEFORE,
                above_on_average("CL", row, ("transfer_loss",), datasets),
            )
            for row in ("MW", "CoSENT", "BCE")
        ),
        *(
            Claim(text, _BEFORE, above_on_average(row, other, (metric,), sets))
            for where, sets in (("the data sets of the training", TRAINED_ON), ("data sets not trained on", UNSEEN))
            for row, other, metric, text in (
                *((row, "CL", "auc", f"{row} has a higher AUC than CL on {where}, on average") for row in losses[1:]),
                *(
                    (
                        row,
                        UNTRAINED,
                        "ndcg_at_10",
                        f"{row} has a higher nDCG than the encoder as published on {where}, on average",
                    )
                    for row in losses
                ),
            )
        ),
        *(
            Claim(
                f"{row} ranks no worse than CL on {where}, on average (nDCG, down to -.01)",
                _BEFORE,
                no_worse_on_average(row, "CL", ("ndcg_at_10",), sets),
            )
            for where, sets in (("the data sets of the training", TRAINED_ON), ("data sets not trained on", UNSEEN))
            for row in losses[1:]
        ),
        *(
            Claim(
                f"One threshold of the score has a higher F1 of kept passages than {rule}, in one pool, for the trained"
                " rows and the encoder as published",
                _BEFORE,
                every(*(_positive(row, metric) for row in (UNTRAINED, *losses))),
            )
            for metric, rule in GAINS.items()
        ),
        Claim(
            "MW shows a document for fewer questions with a replaced entity than the encoder as published, in one pool",
            _BEFORE,
            _lower("MW", UNTRAINED, "shown_hard"),
        ),
    )


def _lower(row: str, other: str, metric: str) -> Judge:
    return above(other, row, (metric,), (POOLED,))


def _positive(row: str, metric: str) -> Judge:
    """Claim that a metric is above 0 in one pool."""

    def judge(results: SeededResults) -> Verdict:
        one = results.contrast({row: 1}, [POOLED], metric)
        word = {ABOVE: HELD, BELOW: DID_NOT}.get(one.outcome, WITHIN_NOISE)
        return Verdict(word, f"{row}: {metric} {one.difference:+.4f} {format_outcome(one.p, one.outcome)}")

    return judge


def main() -> None:
    """Write the questions, or analyse a finished study."""
    parser = argparse.ArgumentParser(description="Questions and analysis of the study abstain.yaml.")
    commands = parser.add_subparsers(dest="command", required=True)
    questions = commands.add_parser("questions", help="write the data sets that abstain.yaml names")
    questions.add_argument("packs", type=Path, metavar="PACKS", help="folder of the data packs")
    questions.add_argument("--output", type=Path, default=Path("packs/abstain"), metavar="DIR")
    analysis = commands.add_parser("analyze", help="analyse the output of `raytriever study`")
    analysis.add_argument("folder", type=Path, metavar="DIR", help="output of `raytriever study studies/abstain.yaml`")
    chosen = commands.add_parser("choose", help="print the file of a study with one variant of each loss")
    chosen.add_argument("--study", type=Path, default=FILE, metavar="FILE", help="default: abstain.yaml")
    chosen.add_argument("folder", type=Path, metavar="DIR", help="output of `raytriever study ... --seeds 1`")
    arguments = parser.parse_args()
    if arguments.command == "questions":
        write(arguments.packs, arguments.output)
    elif arguments.command == "choose":
        print(choose(arguments.study, arguments.folder), end="")
    else:
        analyze(FILE, arguments.folder)
        print((arguments.folder / "abstain.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
