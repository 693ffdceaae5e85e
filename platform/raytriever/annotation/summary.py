"""What came of a job, in the lines that its user reads."""

from __future__ import annotations

from raytriever.annotation.annotated import Annotated


def summary(done: Annotated, priced: bool) -> str:
    """The funnel from candidates to positives, what went wrong with its first example, and what it cost."""
    told, counts = done.told, done.counts
    queries = told["queries"]
    rows = {
        "candidates": told["candidates"],
        "relevant to the query": told["relevant"],
        "useful for the answer: positives": told["positives"] + told["judged_irrelevant"],
    }
    lines = [f"{'':<34}{'in all':>12}{'a query':>10}"]
    lines += [f"{name:<34}{count:>12,}{count / queries:>10.1f}" for name, count in rows.items()]
    lines += ["", f"{queries:,} queries; {told['without_positives']:,} of them have no positive"]
    lines[-1] += f", {told['without_candidates']:,} had no candidate, {told['failed']:,} failed"
    if told["agreed"]:
        lines.append(f"{told['agreed']:,} positives people had named too")
    if told["judged_irrelevant"]:
        lines.append(f"{told['judged_irrelevant']:,} positives left out: people had judged them 0")
    if counts.malformed:
        lines.append(f"{counts.malformed:,} malformed answers; the first: {counts.first_malformed}")
    if counts.failed:
        lines.append(f"the first failure: {counts.first_failed}")
    if done.retried:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in sorted(done.retried.items()))
        lines.append(f"{sum(done.retried.values()):,} requests sent again: {kinds}")
    lines.append(f"{counts.asked:,} answers paid for now, {counts.from_log:,} found in the log")
    cost = f", cost {told['cost']:,.4g}" if priced else ""
    guessed = f" ({counts.uncounted:,} answers came without a count: guessed)" if counts.uncounted else ""
    lines.append(f"{told['tokens_read']:,} tokens read, {told['tokens_written']:,} written{cost}, in all runs{guessed}")
    if done.quarantined:
        lines.append(done.quarantined)
    return "\n".join(lines)
