"""The public data sets of BEIR (Thakur et al., 2021, arXiv:2104.08663) by name, wherever they are to be found.

Each is looked for as a folder of a local root, under the name of BEIR's own archives, then in `ir_datasets`, then on
the hub, where MTEB keeps them in BEIR's layout; the last two may have to download it. The four that are not public
(BioASQ, Signal-1M, TREC-NEWS, Robust04) are no part of the suite.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from raytriever.data.source import IR_DATASETS
from raytriever.errors import UserError
from raytriever.retrieval.evaluation_sets import EvaluationSet, sets_of

REASON_CHARACTERS = 160


@dataclass(frozen=True)
class _Member:
    """How a data set is called in MTEB, below `beir/` in `ir_datasets` and below `mteb/` on the hub, where that is
    another name than BEIR's own, and which split is judged."""

    task: str
    registered: str | None = None
    hub: str | None = None
    split: str = "test"


BEIR = {
    "msmarco": _Member("MSMARCO", split="dev"),
    "trec-covid": _Member("TRECCOVID"),
    "nfcorpus": _Member("NFCorpus"),
    "nq": _Member("NQ"),
    "hotpotqa": _Member("HotpotQA"),
    "fiqa": _Member("FiQA2018"),
    "arguana": _Member("ArguAna"),
    "webis-touche2020": _Member("Touche2020", "webis-touche2020/v2", "touche2020"),
    "cqadupstack": _Member("CQADupstackRetrieval"),
    "quora": _Member("QuoraRetrieval"),
    "dbpedia-entity": _Member("DBPedia", hub="dbpedia"),
    "scidocs": _Member("SCIDOCS"),
    "fever": _Member("FEVER"),
    "climate-fever": _Member("ClimateFEVER"),
    "scifact": _Member("SciFact"),
}


def named(one: EvaluationSet) -> EvaluationSet:
    """The same with its name in MTEB, where it bears that of a data set of the suite."""
    return replace(one, task=BEIR[one.name].task) if one.name in BEIR else one


def beir_suite(root: Path | None, opens: Callable[[EvaluationSet], None]) -> tuple[list[EvaluationSet], list[str]]:
    """The data sets of the suite that are there, in the order of BEIR's tables.

    Args:
        root: the folder of local copies; None where there is none.
        opens: opens a data set, and raises a `UserError` where it is not to be had.

    Returns:
        The data sets, and for each that is missing its name and why.
    """
    found, missing = [], []
    for name, member in BEIR.items():
        reasons = [f"no folder {root / name}"] if root is not None and not (root / name).is_dir() else []
        for source in _places(root, name, member):
            try:
                [one] = sets_of([source], member.split)
                one = replace(one, name=name, task=member.task, parts=_renamed(one, name))
                opens(one)
            except UserError as error:
                reasons.append(textwrap.shorten(str(error), REASON_CHARACTERS, placeholder=" ..."))
            else:
                found.append(one)
                break
        else:
            missing.append(f"{name} ({'; '.join(dict.fromkeys(reasons))})")
    return found, missing


def _renamed(one: EvaluationSet, name: str) -> dict[str, str]:
    return one.parts if one.is_divided else dict.fromkeys([name], next(iter(one.parts.values())))


def _places(root: Path | None, name: str, member: _Member) -> list[str]:
    """Where it may be, the nearest first; a folder that is there is the only place: what is wrong with it is told."""
    if root is not None and (root / name).is_dir():
        return [str(root / name)]
    hub = f"hf://datasets/mteb/{member.hub or name}"
    return [f"{IR_DATASETS}beir/{member.registered or name}", *([hub] if name != "cqadupstack" else [])]
