"""The settings of handing a model over. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raytriever.options import option
from raytriever.paths import EVALUATION

FORMATS = ("onnx", "openvino")


def read_formats(given: str) -> str:
    """Formats between commas, each known and named once."""
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"choose from {', '.join(FORMATS)}, with commas between")
    return ",".join(dict.fromkeys(names))


def read_licence(given: str) -> str:
    """Return the identifier of a licence, if it has the form of one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}", given):
        raise ValueError("give an SPDX identifier such as apache-2.0")
    return given


def read_repository(given: str) -> str:
    """Return the name of a repository on the hub, if it has the form of one."""
    if len(given) > 96 or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", given, re.ASCII):
        raise ValueError("give the name of a repository as OWNER/NAME")
    return given


@dataclass(frozen=True)
class ExportConfig:
    """Formats of an export, and facts for its card."""

    formats: str | None = option(None, "formats to write next to the weights", reads=read_formats, form="onnx,openvino")
    evaluation: str | None = option(
        None,
        "directory of jobs/evaluate.py whose metrics and thresholds go into the model card",
        reads=EVALUATION,
        form="DIR",
    )
    licence: str | None = option(
        None,
        "SPDX identifier such as apache-2.0, for the model card",
        reads=read_licence,
        form="NAME",
    )
    push_to_hub: str | None = option(
        None,
        "also upload the model to the hub, as a private repository; HF_TOKEN holds your token",
        reads=read_repository,
        form="OWNER/NAME",
    )

    @property
    def named(self) -> tuple[str, ...]:
        """The formats that were asked for."""
        return tuple(self.formats.split(",")) if self.formats else ()
