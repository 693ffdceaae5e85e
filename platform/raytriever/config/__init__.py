"""Settings of an experiment as one frozen value, and the YAML file that stores them."""

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
    dump_config,
    load_curriculum,
    read_settings,
    read_stages,
    stage_difference,
    stage_errors,
)
from raytriever.config.settings import Config, check_config, from_dict, override, to_dict

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
    "dump_config",
    "from_dict",
    "load_curriculum",
    "override",
    "read_settings",
    "read_stages",
    "stage_difference",
    "stage_errors",
    "to_dict",
]
