"""`study.md`: the table of a study, the paper's beside it, and what the figures say of each of its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raytriever.retrieval.paper_table import PaperTable
from raytriever.retrieval.paper_table_files import markdown
from raytriever.retrieval.study_claims import Claim, Verdict
from raytriever.retrieval.sweep_table import markdown_table


@dataclass(frozen=True)
class StudyPage:
    """What stands on the page.

    Args:
        title: its heading.
        lines: what was done: source, scale, data.
        tables: ours.
        claims: with what the figures say of them.
        trainings: a line of titles and a line a training.
        paper: the paper's own tables, by title: a line of titles, then its rows.
        figures: captions by path, as seen from the page.
    """

    title: str
    lines: Sequence[str]
    tables: Sequence[PaperTable]
    claims: Sequence[tuple[Claim, Verdict]]
    trainings: Sequence[Sequence[str]]
    paper: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)


def page_text(page: StudyPage) -> str:
    """The page in Markdown."""
    parts = [f"# {page.title}\n", "".join(f"{line}  \n" for line in page.lines), markdown(page.tables)]
    if page.claims:
        parts.append("## What the table says of the paper's claims\n")
        parts.append(
            markdown_table(
                [
                    ["claim", "in the paper", "here", "figures"],
                    *([claim.text, claim.source, f"**{told.word}**", told.because] for claim, told in page.claims),
                ]
            )
        )
        parts.append(_RULE)
    for path, caption in page.figures.items():
        parts.append(f"![{caption}]({path})\n")
    for title, rows in page.paper.items():
        parts.append(f"## {title}, as printed\n")
        parts.append(markdown_table(rows))
    if len(page.trainings) > 1:
        parts.append("## Trainings\n")
        parts.append(markdown_table(page.trainings))
    return "\n".join(parts)


_RULE = (
    "*Held*: every comparison came out so, by the paired t-test over queries (p < 0.05) and in each seed. *Did not "
    "hold*: one came out the other way by the same rule. *Within noise*: anything else.\n"
)
