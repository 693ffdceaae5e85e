"""One page that tells a run and opens offline: its figures, pictures and settings in a single HTML file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from raytriever.retrieval.table import TITLES
from raytriever.storage import write_atomically

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; background: white; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; }
"""


def write_report(
    path: Path,
    title: str,
    about: Sequence[str],
    rows: Mapping[str, Mapping[str, float]],
    figures: Mapping[str, Path],
    config_yaml: str,
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        title: its heading.
        about: paragraphs under the heading.
        rows: metrics by system.
        figures: PNG files by caption; they are embedded.
        config_yaml: the resolved settings.
    """
    names = list(next(iter(rows.values())))
    header = "".join(f"<th>{escape(TITLES.get(name, name))}</th>" for name in names)
    body = "".join(
        f"<tr><td>{escape(system)}</td>" + "".join(f"<td>{metrics[name]:.4f}</td>" for name in names) + "</tr>"
        for system, metrics in rows.items()
    )
    pictures = "".join(
        f'<h2>{escape(caption)}</h2><img alt="{escape(caption)}" src="data:image/png;base64,{_base64(file)}">'
        for caption, file in figures.items()
    )
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in about)
    write_atomically(
        path,
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{escape(title)}</h1>{paragraphs}"
        f"<table><thead><tr><th>system</th>{header}</tr></thead><tbody>{body}</tbody></table>"
        f"{pictures}<h2>Settings</h2><pre>{escape(config_yaml)}</pre></html>\n",
    )


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode("ascii")
