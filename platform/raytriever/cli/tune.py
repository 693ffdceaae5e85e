"""`tune`: search the settings of `train`, evaluate the best trial, and print the tables."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raytriever.cli.arguments import quote_command, show_views
from raytriever.cli.command import Command, Given, SettingsGroup
from raytriever.cli.train import RUN_SETTINGS, check_own_losses, default_output, resolve_settings, run_arguments
from raytriever.core.errors import flag_of
from raytriever.core.paths import fetch_paths
from raytriever.core.terminal import warn
from raytriever.experiments.run.start_run import check_run
from raytriever.experiments.tuning.space import SearchConfig, parse_search_space
from raytriever.losses.loss_settings import terms_of
from raytriever.losses.user_loss_file import LossFile
from raytriever.training.run_config import Config, read_settings

_SEARCH = SettingsGroup("search", SearchConfig, "search")


def read_sweep(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the checked settings of a sweep, and its name."""
    base = resolve_settings(arguments, may_have_stages=False)
    search: SearchConfig = _SEARCH.read(arguments)
    fetch_paths(search)
    dimensions = parse_search_space(search.search_space).dimensions
    varied = [dimension.name for dimension in dimensions]
    losses = [loss for dimension in dimensions if dimension.name == "loss" for loss in dimension.values]
    check_own_losses(arguments, f"--search-space {search.search_space}", losses)
    for setting in varied:
        if setting in arguments.explicit_flags:
            reason = f"has no effect, because --search-space {search.search_space} varies it"
            warn(f"{flag_of(setting)} {getattr(arguments, setting)}: {reason}; leave it out")
    default = f"sweep-{Path(base.data.dataset).name}-{Path(base.model.model).name}-seed{base.training.seed}"
    default = re.sub(r"[^A-Za-z0-9._-]+", "-", default)[:100]
    name = check_run(
        base, arguments.explicit_flags, default if arguments.run_name is None else arguments.run_name, search, varied
    )
    return {"base": base, "search": search, "name": name}


def tune(given: Given) -> Iterator[str]:
    """Search the settings and yield the tables. Raises `TrialError` at the end if trials failed."""
    base: Config = given.base

    from raytriever.core.terminal import text_table
    from raytriever.evaluation.report_document import format_results
    from raytriever.experiments.tuning.ray.sweep import run_sweep
    from raytriever.experiments.tuning.trial_log import TrialError, sweep_rows

    swept = run_sweep(base, given.search, given.output, given.name, given.fresh, warn, given.trackers)
    if not swept.is_new:
        warn(f"{swept.path} is finished; a larger --trials continues it, --fresh removes it and starts again")
    yield f"\n{len(swept.trials)} trials on {base.data.dataset}, split {base.data.dev_split}, by {swept.metric}"
    yield text_table(sweep_rows(swept.trials, swept.metric))
    if swept.best is not None and swept.results is not None:
        yield f"\n{base.model.model} before and after training in trial {swept.best.name}"
        yield format_results(swept.results)
        loss = str(read_settings(swept.path / "best.yaml").get("loss", {}).get("loss", ""))
        own = (
            ["--loss", loss] if any(map(LossFile.parse, terms_of(loss))) else []
        )  # `train` runs a loss file only if its command line names the file
        best = quote_command("raytriever", "train", "--config", swept.path / "best.yaml", *own, "--output")
        yield f"\nContinue with:\n  {best} DIR"
        yield from show_views(swept.path, given.trackers)
        yield f"  {swept.path / 'figures'} and {swept.path / 'best' / 'report.html'}"
    if swept.failed:
        first = swept.failed[0]
        what = f"{len(swept.failed)} of {len(swept.trials)} trials failed; the first was {first.name}: {first.reason}"
        raise TrialError(what, str(swept.path), "run the same command to try them again")


TUNE = Command(
    tune,
    read=read_sweep,
    output="directory of the sweep (default: runs/RUN-NAME)",
    default_output=default_output,
    arguments=run_arguments("sweep", "sweep, data, model and seed", ", which override the recipe; flags override them"),
    settings=[_SEARCH, *RUN_SETTINGS],
)
