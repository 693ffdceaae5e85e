"""The YAML file an experiment is read from, and the one that is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytriever.config.curriculum import STAGES, Curriculum, lay_stages
from raytriever.config.settings import Config, from_dict, lay, to_dict
from raytriever.errors import ConfigError
from raytriever.reading.structured import read_yaml


def read_settings(path: Path) -> dict[str, Any]:
    """What stands in a configuration file, unchecked, without the hash that a run's own file has.

    Raises:
        ConfigError: it cannot be read, is not YAML, has a key twice, is nested too deep, or holds no sections.
    """
    try:
        content = read_yaml(path, "correct the line it names", ConfigError)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", str(path), "give a YAML file") from error
    if not isinstance(content, Mapping):
        raise ConfigError("holds no sections", str(path), "give `data:`, `model:`, `loss:` or `training:`")
    return {name: value for name, value in content.items() if name != "hash"}


def load_curriculum(
    path: Path, base: Config | None = None, flags: Mapping[str, Mapping[str, Any]] | None = None
) -> Curriculum:
    """Lay a configuration file over a base, flags over the file's own settings, and its stages over all of these.

    Args:
        path: the file.
        base: the defaults when None.
        flags: `{section: {setting: value}}`.

    Raises:
        ConfigError: see `read_settings`, `from_dict` and `lay_stages`.
    """
    content = read_settings(path)
    own = {name: value for name, value in content.items() if name != STAGES}
    config = lay(from_dict(own, str(path), base, beside=[STAGES]), flags or {})
    return Curriculum(config, lay_stages(content[STAGES], str(path), config) if STAGES in content else ())


def dump_config(config: Config | Curriculum) -> str:
    """The resolved settings as YAML, with their hash."""
    import yaml

    values = to_dict(config) if isinstance(config, Config) else config.to_dict()
    return yaml.safe_dump({"hash": config.hash, **values}, sort_keys=False, allow_unicode=True)
