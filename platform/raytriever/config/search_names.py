"""Names of what is searched often, each for one setting with values around the papers'.

*Optimizing What Matters* trains at temperature 0.01 with 5 hard negatives and compares contrastive with Mann-Whitney
loss; its Tables 3 and 4 have 3, 5 and 7 negatives and learning rates of 3e-5 and 5e-5, section 5.1 batches of 16 to 64.
The handbook's example of a sharp temperature is 0.05. *Alleviating Performance Degradation*, Appendix E, sets lambda to
0.01 by default and says to choose it on held-out data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytriever.config.file import read_settings
from raytriever.config.search_space import SearchSpace, read_space
from raytriever.errors import ConfigError
from raytriever.options import did_you_mean

FLAG = "--search-space"
NAMED: dict[str, tuple[str, str, Any]] = {
    "loss": ("loss", "loss", ["infonce", "infonce-symmetric", "mw"]),
    "lambda": ("loss", "distribution_weight", {"low": 0.0, "high": 0.1, "grid": [0.0, 0.01]}),
    "temperature": ("loss", "temperature", {"low": 0.005, "high": 0.1, "scale": "log", "grid": [0.01, 0.05]}),
    "learning-rate": (
        "training",
        "learning_rate",
        {"low": 1e-5, "high": 1e-4, "scale": "log", "grid": [1e-5, 3e-5, 5e-5]},
    ),
    "batch": ("training", "batch_size", [16, 32, 64]),
    "negatives": ("data", "negatives_per_query", [3, 5, 7]),
    "refresh": ("refresh", "refresh_every", [100, 300, 1000]),
    "warmup": ("training", "warmup_steps", {"low": 0, "high": 1000, "grid": [0, 100, 500]}),
}


def search_space(given: str) -> SearchSpace:
    """A space from what was given as a flag: names separated by commas, or a file.

    Raises:
        ConfigError: an unknown name, one given twice, or see `read_settings` and `read_space`.
    """
    if given.endswith((".yaml", ".yml")) or "/" in given:
        return read_space(read_settings(Path(given)), given)
    content: dict[str, dict[str, Any]] = {}
    for name in (part.strip() for part in given.split(",")):
        if name not in NAMED:
            raise ConfigError(f"unknown name {name!r}", FLAG, f"{did_you_mean(name, NAMED)} Or give a YAML file")
        section, setting, domain = NAMED[name]
        if setting in content.get(section, {}):
            raise ConfigError(f"{name!r} stands there twice", FLAG, "give each name once")
        content.setdefault(section, {})[setting] = domain
    return read_space(content, FLAG)


def short_name(key: str) -> str:
    """What a dimension is called in tables: its name above where it has one, else the setting's."""
    names = {f"{section}.{setting}": name for name, (section, setting, _) in NAMED.items()}
    return names.get(key, key.partition(".")[2].replace("_", "-"))
