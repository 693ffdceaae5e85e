"""The formats in which training data is published, one file each: what its rows mean, and how it is recognised."""

from __future__ import annotations

from raytriever.data.formats.plan import Plan
from raytriever.data.formats.recognise import FORMATS, recognise

__all__ = ["FORMATS", "Plan", "recognise"]
