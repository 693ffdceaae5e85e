"""The YAML file an experiment is read from, and the one that is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytriever.config.curriculum import STAGES, Curriculum, lay_stages
from raytriever.config.settings import Config, from_dict, lay, to_dict
from raytriever.errors import ConfigError


def read_settings(path: Path) -> dict[str, Any]:
    """What stands in a configuration file, unchecked, without the hash that a run's own file has.

    Raises:
        ConfigError: it cannot be read, is not YAML, or holds no sections.
    """
    import yaml

    class Plain(yaml.SafeLoader):
        """Plain values only. YAML 1.1 reads `1:4` as sixty-four, a number of base sixty; here it is a text."""

    def integer(loader: Any, node: Any) -> Any:
        return node.value if ":" in node.value else loader.construct_yaml_int(node)

    Plain.add_constructor("tag:yaml.org,2002:int", integer)
    try:
        content = Plain(path.read_text(encoding="utf-8")).get_single_data()
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", str(path), "give a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"is not YAML ({reason})", str(path), "mend the line it names") from error
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
