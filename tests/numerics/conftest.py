"""Put the literal losses of this folder, and what all tests share, on the path of its tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "support")]
