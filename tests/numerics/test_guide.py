"""Masking by a guide against a brute force: a masked pair is one whose document is known to be relevant."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from batch_ids import BatchIds, build_loss
from examples import Example, assert_near, computed, example, graded, gradients
from reference_losses import backward_values, query_scores, reference_loss
from sentence_transformers.sentence_transformer.losses import CachedGISTEmbedLoss
from thread_workers import on_workers
from torch import nn
from torch.nn import functional

from raytriever.core.errors import LossInputError
from raytriever.losses import score_matrix as panels
from raytriever.losses.false_negative_mask import MASKED, MOST_MASKED, GuideEmbeddings
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES

MARGIN = 0.2


def guide_of(batch: Example, dim: int = 4) -> GuideEmbeddings:
    """Embeddings of another dimension; positives lie near their queries, so that not nearly everything is masked."""
    generator = torch.Generator().manual_seed(len(batch.passages))
    queries = torch.randn(len(batch.queries), dim, generator=generator, dtype=torch.float64)
    passages = torch.randn(len(batch.passages), dim, generator=generator, dtype=torch.float64)
    for query, documents in zip(queries, batch.ids.positives.tolist(), strict=True):
        for document in documents:
            passages[batch.ids.passages == document] += 0.4 * query
    return GuideEmbeddings(queries, passages)


def above(scores: dict[int, float], own: list[int], others: list[int], margin: float) -> list[int]:
    """The others that score above the lowest of the own ones, less the margin."""
    bound = min(scores[item] for item in own)
    return [item for item in others if scores[item] > bound - margin * abs(bound)]


def masked_ids(batch: Example, guide: GuideEmbeddings, margin: float) -> tuple[BatchIds, BatchIds, list[float]]:
    """The ids in which masked documents are known positives without a teacher's score or label; the same with the roles
    exchanged; and each query's fraction of negatives that are masked."""
    ids = batch.ids
    row_of = {document: row for row, document in reversed(list(enumerate(ids.passages.tolist())))}
    known, backward = ids.known.tolist(), ids.known.tolist()
    teacher, labels, partials = ids.teacher.scores.clone(), ids.labels.scores.clone(), []
    for i, query in enumerate(guide.queries):
        scores = {document: float(guide.passages[row] @ query) for document, row in row_of.items()}
        own = [document for document in ids.positives[i].tolist() if document >= 0]
        others = [document for document in row_of if document not in own and document not in known[i]]
        masked = above(scores, own, others, margin)
        partials.append(len(masked) / max(1, len(others)))
        known[i] += masked
        for table in (teacher, labels):
            table[i][torch.isin(ids.teacher.documents[i], torch.tensor(masked))] = torch.nan
    for i in range(len(guide.queries)):
        first = int(ids.positives[i][0])
        scores = {j: float(guide.queries[j] @ guide.passages[row_of[first]]) for j in range(len(guide.queries))}
        owners = [j for j in scores if first in ids.positives[j].tolist() or first in ids.known[j].tolist()]
        for j in above(scores, [i], [j for j in scores if j not in owners], margin):
            backward[j].append(first)

    def with_known(rows: list[list[int]]) -> BatchIds:
        most = max(map(len, rows))
        table = torch.tensor([row + [-1] * (most - len(row)) for row in rows])
        scores, graded = (dataclasses.replace(ids.teacher, scores=value) for value in (teacher, labels))
        return dataclasses.replace(ids, known=table, teacher=scores, labels=graded)

    return with_known(known), with_known(backward), partials


def expected(config: LossConfig, batch: Example, margin: float = MARGIN) -> list[torch.Tensor]:
    forward, backward, _ = masked_ids(batch, guide_of(batch), margin)
    queries, passages = batch.queries, batch.passages
    if config.loss == "infonce-symmetric":
        there = reference_loss(dataclasses.replace(config, loss="infonce"), queries, passages, forward)
        back = torch.stack(list(backward_values(queries, passages, backward, config.temperature)))
        value = (there + back.mean()) / 2
    else:
        value = reference_loss(config, queries, passages, forward)
    return gradients(value, batch)


def negatives_of(batch: Example, ids: BatchIds) -> int:
    return sum(len(row.negatives) for row in query_scores(batch.queries, batch.passages, ids, LossConfig()))


def settings(name: str, margin: float | None = MARGIN, **others: object) -> LossConfig:
    return LossConfig(loss=name, temperature=0.7, margin=0.5, guide="minilm", guide_margin=margin, **others)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("panel_bytes", [panels.PANEL_BYTES, 300], ids=["one panel", "panels"])
def test_equals_the_literal_loss_without_the_masked_pairs(
    name: str, panel_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "PANEL_BYTES", panel_bytes)
    for seed in range(3):
        batch = graded(example(seed, batch=6))
        partials = masked_ids(batch, guide_of(batch), MARGIN)[2]
        assert 0 < sum(partials) < len(partials)
        assert_near(computed(settings(name), batch, guide=guide_of(batch)), expected(settings(name), batch))


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_infonce_masks_as_the_loss_of_sentence_transformers(margin: float) -> None:
    generator, size = torch.Generator().manual_seed(4), 8
    texts = torch.randn(2, 3, size, 5, generator=generator, dtype=torch.float64)
    texts[:, 1] += texts[:, 0]  # positives are near their queries
    ours, guide = functional.normalize(texts, dim=-1)
    theirs = SimpleNamespace(
        similarity_fct=nn.CosineSimilarity(dim=-1),
        cross_entropy_loss=nn.CrossEntropyLoss(),
        margin_strategy="relative",
        margin=margin,
        temperature=0.7,
        mini_batch_size=3,
        **dict.fromkeys(["contrast_anchors", "contrast_positives", "gather_across_devices"], False),
        show_progress_bar=False,
    )
    theirs.sim_matrix = partial(CachedGISTEmbedLoss.sim_matrix, theirs)
    expected = CachedGISTEmbedLoss.calculate_loss(theirs, [[item] for item in ours], [[item] for item in guide])
    ids = BatchIds(torch.arange(size), torch.arange(size)[:, None], torch.arange(2 * size))
    embeddings = GuideEmbeddings(guide[0], guide[1:].flatten(0, 1))
    output = build_loss(settings("infonce", margin))(ours[0], ours[1:].flatten(0, 1), ids, guide=embeddings)
    assert 0.05 < float(output.statistics[MASKED]) < 0.6
    assert output.value.item() == pytest.approx(expected.item(), rel=1e-10)


def test_the_share_of_masked_negatives_is_logged_and_the_auc_is_of_the_others() -> None:
    batch = graded(example(1, batch=6))
    ids, _, partials = masked_ids(batch, guide_of(batch), MARGIN)
    statistics = build_loss(settings("infonce"))(
        batch.queries, batch.passages, batch.ids, guide=guide_of(batch)
    ).statistics
    plain = dataclasses.replace(settings("infonce"), guide=None, guide_margin=None)
    without = build_loss(plain)(batch.queries, batch.passages, ids).statistics
    assert float(statistics["batch_auc"]) == float(without["batch_auc"])
    assert float(statistics[MOST_MASKED]) == pytest.approx(max(partials))
    before = negatives_of(batch, batch.ids)
    after = negatives_of(batch, ids)
    assert float(statistics[MASKED]) == pytest.approx(1 - after / before)


def test_a_pair_at_the_bound_is_no_false_negative() -> None:
    """As in GISTEmbed, a copy of the positive is kept at margin 0; one above the positive is masked."""
    ids = BatchIds(torch.tensor([0]), torch.tensor([[0]]), torch.arange(4))
    embeddings = torch.tensor([[0.5], [0.5], [0.501], [0.4]], dtype=torch.float64)
    queries, guide = torch.ones(1, 1, dtype=torch.float64), GuideEmbeddings(torch.ones(1, 1).double(), embeddings)
    masked = {
        margin: build_loss(settings("infonce", margin))(queries, embeddings, ids, guide=guide).statistics[MASKED]
        for margin in (None, 0.1, 0.3)
    }
    assert {margin: round(3 * float(partial)) for margin, partial in masked.items()} == {None: 1, 0.1: 2, 0.3: 3}


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_a_loss_whose_negatives_are_all_masked_is_finite(name: str) -> None:
    batch = graded(example(2, batch=4, positives=1, repeats=False))
    guide = GuideEmbeddings(torch.ones(4, 1).double(), torch.arange(len(batch.passages)).double()[:, None])
    guide.passages[batch.ids.positives[:, 0]] = -1
    output = build_loss(settings(name))(batch.queries, batch.passages, batch.ids, guide=guide)
    gradients = torch.autograd.grad(output.value, (batch.queries, batch.passages), allow_unused=True)
    assert float(output.statistics[MASKED]) == float(output.statistics[MOST_MASKED]) == 1
    assert all(bool(torch.isfinite(x).all()) for x in (output.value, *gradients) if x is not None)


def test_a_guide_that_is_not_finite_is_refused_by_every_worker() -> None:
    batch = graded(example(0, batch=4, positives=1, repeats=False))
    ids = dataclasses.replace(batch.ids, teacher=None)

    def refusal(workers: object) -> str:
        own, texts = slice(2 * workers.rank, 2 * workers.rank + 2), slice(6 * workers.rank, 6 * workers.rank + 6)
        partial = BatchIds(ids.queries[own], ids.positives[own], ids.passages[texts])
        guide = guide_of(batch)
        queries = guide.queries[own].clone()
        queries[0, 0] = torch.nan if workers.rank else queries[0, 0]
        with pytest.raises(LossInputError, match="guide: embeddings of the guide hold NaN or infinity") as caught:
            build_loss(settings("mw"))(
                batch.queries[own],
                batch.passages[texts],
                partial,
                workers,
                GuideEmbeddings(queries, guide.passages[texts]),
            )
        return str(caught.value)

    assert len(set(on_workers(2, refusal))) == 1


def test_settings_and_embeddings_of_a_guide_belong_together() -> None:
    batch = graded(example(0))
    with pytest.raises(LossInputError, match="the embeddings of the guide are missing"):
        build_loss(settings("mw"))(batch.queries, batch.passages, batch.ids)
    with pytest.raises(LossInputError, match="the settings name no guide"):
        build_loss(LossConfig("mw"))(batch.queries, batch.passages, batch.ids, guide=guide_of(batch))
