"""Model card (Mitchell et al., 2019): description, training data, results and limits of a model.

The card is a README with the metadata that the hub reads. Its facts come only from files: `config.yaml` of a run,
`results.json` of its own evaluation, and `results.json` of another evaluation. A number that was not evaluated does not
appear."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytriever.core.terminal import markdown_table, one_line
from raytriever.evaluation.protocol import target_text
from raytriever.evaluation.report_document import KIND_TITLES, fraction_cell, thresholds_markdown
from raytriever.evaluation.results import Results
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.description import Description
from raytriever.models.directory.hub_or_local import PUBLISHED
from raytriever.retrieval.search.calibration_file import Calibration

MAIN = ("ndcg_at_10", "mrr_at_10", "recall_at_100", "auc")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_TRAINED = {"bm25": "BM25", "before": "before training", "after": "this model"}

USE = """## Intended use
The model finds passages that answer questions, in search and in retrieval for language models. The questions should be
like those of its training and test data. Scores are {similarity}s. The AUC and the thresholds below, if present, show
how well one threshold serves all queries. The model was not evaluated on other kinds of text or on other languages:
evaluate it there first. Passages longer than {length} tokens are cut. The ranking repeats the gaps and errors of the
training data. A high score means that the model finds two texts similar. It does not mean that a passage is true.
"""
READ = """## How to load the model
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
queries = model.encode_query(["a question"]{length})
passages = model.encode_document(["a passage"]{length})
model.similarity(queries, passages)
```
"""


@dataclass(frozen=True)
class CardFacts:
    """Facts for a model card."""

    name: str
    description: Description
    dim: int
    licence: str | None = None  # SPDX identifier of the license on the hub, or None
    # Settings of the run that trained the model; empty if no run of raytriever trained it.
    config: Mapping[str, Any] = field(default_factory=dict)
    # Results of the evaluation at the end of that run; empty if there are none.
    trained: Results = field(default_factory=Results)
    results: Results = field(default_factory=Results)  # results of this model in another evaluation; may be empty
    calibration: Calibration | None = None  # map from scores to probabilities for one corpus, or None
    graphs: Sequence[str] = ()

    @property
    def evaluated(self) -> Mapping[str, Mapping[str, float | None]]:
        """Metrics of the evaluation by data set."""
        return next(iter(self.results.models.values()), {})


def model_card(facts: CardFacts) -> str:
    """Return the text of a model's `README.md`. It begins with the metadata for the hub."""
    from huggingface_hub import ModelCardData

    description, is_cosine = facts.description, facts.description.similarity == "cosine"
    base = facts.config.get("model", {}).get("model")
    base = PUBLISHED.get(base, base)
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "dense-retrieval", "raytriever"],
        license=facts.licence,
        base_model=base if base and _HUB_NAME.fullmatch(base) else None,
        model_name=facts.name,
        eval_results=_hub_results(facts) or None,
    )
    parts = [
        f"# {facts.name}\n\n{_description(facts)}\n",
        READ.format(
            name=facts.name,
            # sentence-transformers truncates embeddings after normalization, so it must normalize embeddings again.
            length=", normalize_embeddings=True" if description.truncate_dim and is_cosine else "",
        ),
        USE.format(similarity=description.similarity.replace("dot", "dot product"), length=description.passage_length),
        *_named_prompts(description),
        *_training(facts),
        *_results(facts),
        *_calibration(facts.calibration),
    ]
    if facts.graphs:
        parts.append("## Other runtimes\n" + "".join(f"- {line}\n" for line in facts.graphs))
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(parts)


def _description(facts: CardFacts) -> str:
    description = facts.description
    is_shared = description.towers == "shared"
    towers = "One encoder reads queries and passages" if is_shared else "Queries and passages have separate encoders"
    similarity = "cosine similarity" if description.similarity == "cosine" else f"{description.similarity} products"
    prompts = [
        f"{side} begin with `{text}`"
        for side, text in (("queries", description.query_prompt), ("passages", description.passage_prompt))
        if text
    ]
    lines = [
        f"A dense retriever: it maps texts to vectors of {facts.dim} components,"
        " and a query to a vector near its answers.",
        f"{towers}, {description.pooling} pooling, {similarity}; queries are cut at {description.query_length} tokens,"
        f" passages at {description.passage_length}{''.join(', ' + line for line in prompts)}.",
    ]
    return "\n".join(lines)


def _named_prompts(description: Description) -> list[str]:
    rows = [
        [name, json.dumps(text, ensure_ascii=False)]
        for name, text in sorted(description.prompts.items())
        if text and name not in ("query", "document")
    ]
    if not rows:
        return []
    table = markdown_table([["name", "text in front"], *rows])
    use = 'Choose a prompt with `model.encode(texts, prompt_name="NAME")`. Names ending in `-query` are for queries.'
    return [f"## Prompts\n{use}\n\n{table}"]


def _training(facts: CardFacts) -> list[str]:
    if not facts.config:
        return []
    import yaml

    data = facts.config.get("data", {}).get("dataset", "unknown")
    loss = LossConfig(facts.config.get("loss", {}).get("loss", LossConfig.loss)).title
    text = yaml.safe_dump(dict(facts.config), sort_keys=False, allow_unicode=True)
    # Use a longer fence than any in the settings, so that the settings cannot end it.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [
        f"## Training\nTrained by raytriever on `{data}` with the loss `{loss}`. All settings:\n\n"
        f"<details><summary>config.yaml</summary>\n\n{fence}yaml\n{text}{fence}\n\n</details>\n"
    ]


def _results(facts: CardFacts) -> list[str]:
    parts: list[str] = []
    for name, row in facts.trained.about.items():
        rows = {_TRAINED[model]: sets[name] for model, sets in facts.trained.models.items()}
        head = "" if parts else "## Results\n"
        parts.append(f"{head}`{name}`, split `{row.split}`, evaluated at the end of training:\n\n{_table(rows)}")
    models, about = facts.evaluated, facts.results.about
    if models:
        head = "" if parts else "## Results\n"
        splits = {row.split for row in about.values()}
        parts.append(
            f"{head}Evaluated after training,"
            f" split {', '.join(f'`{split}`' for split in sorted(splits))}:\n\n{_table(models)}"
        )
    if facts.results.thresholds:
        parts.append(
            "## Thresholds\nA query is answered if its confidence is at least the threshold. A pair is relevant if its"
            " score is at least the threshold. Each threshold is one number for all queries:\n\n"
            f"{thresholds_markdown(facts.results.thresholds)}"
        )
    return parts


def _calibration(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    kinds = list(dict.fromkeys(kind for threshold in calibration.thresholds for kind in threshold.unanswerable))
    titles = [KIND_TITLES[kind] for kind in kinds]
    head = ["chosen for", "threshold", "queries answered", "answers that are relevant", *titles]
    rows = [
        [
            target_text(threshold.target, threshold.wanted),
            f"{threshold.score:.4f}",
            fraction_cell(threshold.answered, "none").text,
            fraction_cell(threshold.top_precision, "none").text,
            *(fraction_cell(threshold.unanswerable.get(kind), "-").text for kind in kinds),
        ]
        for threshold in calibration.thresholds
    ]
    decides = "The first threshold decides whether a query has an answer." if rows else "There is no threshold."
    splits = [f"`{one_line(split)}`" for split in dict.fromkeys((calibration.chosen_on, calibration.checked_on))]
    chosen = f"{calibration.chosen_queries:,} queries of {splits[0]}"
    checked = f"{calibration.checked_queries:,} queries of {splits[-1]}"
    if not calibration.is_checked_apart:
        checked = "the same queries, so the values are a little too good"
    error = calibration.first_error
    about = (
        f"`calibration.json` says what {calibration.confidence.name} and scores mean for the passages of"
        f" `{one_line(calibration.dataset)}` (made {one_line(calibration.date)}). {decides} Thresholds were chosen on"
        f" {chosen}. The values, with 95 % intervals, were measured on {checked}."
        f"{'' if kinds else ' All of these queries have a relevant passage.'} The calibration error of the best"
        f" passage's probability is {error.value:.3f} (95 %: {error.low:.3f} to {error.high:.3f}). The"
        " file is valid until a tenth of the passages has changed."
    )
    return [f"## Answers\n{about}\n" + (f"\n{markdown_table([head, *rows])}" if rows else "")]


def _table(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    names = [name for name in MAIN if any(row.get(name) is not None for row in rows.values())]
    names = names or sorted({name for row in rows.values() for name in row})[:6]
    lines = [
        [label, *("-" if (value := row.get(name)) is None else f"{value:.4f}" for name in names)]
        for label, row in rows.items()
    ]
    return markdown_table([["", *names], *lines])


def _hub_results(facts: CardFacts) -> list[Any]:
    from huggingface_hub import EvalResult

    evaluated: dict[str, tuple[str, Mapping[str, float | None]]] = {}
    for results, sets in (facts.trained, facts.trained.models.get("after", {})), (facts.results, facts.evaluated):
        evaluated |= {name: (results.about[name].split, row) for name, row in sets.items()}
    return [
        EvalResult(
            task_type="information-retrieval",
            task_name="Information Retrieval",
            dataset_type=re.sub(r"[^\w.-]+", "-", name),
            dataset_name=name,
            dataset_split=split,
            metric_type=metric,
            metric_value=round(value, 5),
        )
        for name, (split, row) in evaluated.items()
        for metric, value in row.items()
        if value is not None
    ]
