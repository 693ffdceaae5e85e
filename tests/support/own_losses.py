"""Losses of a user, as one writes them without reading the package."""

from __future__ import annotations


def joint(scores, positives, negatives):
    whole = scores.masked_fill(~(negatives | positives), -1e9).logsumexp(1)
    return (whole - (scores * positives).sum(1) / positives.sum(1)).mean()


def auc(scores, positives, negatives, query_ids, passage_ids, teacher_scores, temperature):
    """Compare all positives with all negatives of the batch, and use everything a function may ask for."""
    pairs = scores[negatives][:, None] - scores[positives]
    ids = (query_ids[:, None] * 31 + passage_ids).to(scores.dtype).cos()
    return pairs.sigmoid().mean() + (scores * ids * teacher_scores.nan_to_num()).mean() * temperature


def plain(scores, positives):
    return (scores.exp() * ~positives).sum() / len(scores) - scores[positives].mean()
