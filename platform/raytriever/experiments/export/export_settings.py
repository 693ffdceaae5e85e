"""Settings of an export. This module imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raytriever.core.paths import EVALUATION
from raytriever.core.setting_declarations import option

FORMATS = ("onnx", "openvino")


def read_formats(text: str) -> str:
    """Check a comma-separated list of formats and return it without repetitions."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"choose from {', '.join(FORMATS)}, separated by commas")
    return ",".join(dict.fromkeys(names))


def read_licence(text: str) -> str:
    """Check the identifier of a license and return it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}", text):
        raise ValueError("give an SPDX identifier such as apache-2.0")
    return text


def read_repository(text: str) -> str:
    """Check the name of a repository on the hub and return it."""
    if len(text) > 96 or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text, re.ASCII):
        raise ValueError("give the name of a repository as OWNER/NAME")
    return text


@dataclass(frozen=True)
class ExportConfig:
    """Settings of an export: formats, facts for the model card, and the repository for the upload."""

    formats: str | None = option(
        None, "formats to write next to the weights", reads=read_formats, metavar="onnx,openvino"
    )
    evaluation: str | None = option(
        None,
        "directory of `raytriever evaluate` whose metrics and thresholds go into the model card",
        reads=EVALUATION,
        metavar="DIR",
    )
    licence: str | None = option(
        None, "SPDX identifier such as apache-2.0, for the model card", reads=read_licence, metavar="NAME"
    )
    push_to_hub: str | None = option(
        None,
        "also upload the model to the hub, as a private repository; HF_TOKEN holds your token",
        reads=read_repository,
        metavar="OWNER/NAME",
    )

    @property
    def format_names(self) -> tuple[str, ...]:
        """The requested formats."""
        return tuple(self.formats.split(",")) if self.formats else ()
