"""A whole experiment as one frozen value, and the file it is kept in."""

from raytriever.config.curriculum import (
    NAME,
    STAGES,
    TRIALS,
    Curriculum,
    Stage,
    check_curriculum,
    check_curriculum_paths,
    check_explicit_settings,
    default_run_name,
    different_stages,
    dump_config,
    lay_stages,
    load_curriculum,
    naming,
    read_settings,
)
from raytriever.config.settings import Config, check_config, from_dict, lay, to_dict

__all__ = [
    "NAME",
    "STAGES",
    "TRIALS",
    "Config",
    "Curriculum",
    "Stage",
    "check_config",
    "check_curriculum",
    "check_curriculum_paths",
    "check_explicit_settings",
    "default_run_name",
    "different_stages",
    "dump_config",
    "from_dict",
    "lay",
    "lay_stages",
    "load_curriculum",
    "naming",
    "read_settings",
    "to_dict",
]
