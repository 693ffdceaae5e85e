"""`tune`: search the settings of `train`, measure the best trial, and print the tables."""

from __future__ import annotations

import re
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, build_config, quote_command, show_views
from raytriever.cli.train import add_run_flags, check_own_losses, resolve_settings, run_output
from raytriever.config import Config, check_config_paths, read_settings
from raytriever.errors import flag_of
from raytriever.experiment.start import check_explicit_settings, check_run_name
from raytriever.losses.config import terms_of
from raytriever.losses.files import LossFile
from raytriever.paths import fetch_paths
from raytriever.terminal import show, warn
from raytriever.tuning.space import SearchConfig, parse_search_space


def main(words: list[str]) -> None:
    """Parse, search, print; raises `TrialError` at the end if trials failed."""
    arguments = _parser().parse(words)
    base = resolve_settings(arguments, may_have_stages=False)
    search = build_config(arguments, SearchConfig)
    fetch_paths(search)
    dimensions = parse_search_space(search.search_space).dimensions
    varied = [dimension.name for dimension in dimensions]
    losses = [loss for dimension in dimensions if dimension.name == "loss" for loss in dimension.values]
    check_own_losses(arguments, f"--search-space {search.search_space}", losses)
    check_explicit_settings(base, arguments.explicit_flags, search, varied)
    for setting in varied:
        if setting in arguments.explicit_flags:
            reason = f"has no effect, because --search-space {search.search_space} varies it"
            warn(f"{flag_of(setting)} {getattr(arguments, setting)}: {reason}; leave it out")
    name = _default_name(base) if arguments.run_name is None else arguments.run_name
    check_run_name(name)
    check_config_paths(base)
    output = run_output(arguments, name)

    from raytriever.evaluation.document import training_notes
    from raytriever.evaluation.results import EVALUATION, Results
    from raytriever.evaluation.tables import metrics_table
    from raytriever.terminal import text_table
    from raytriever.tuning.ray.sweep import run_sweep
    from raytriever.tuning.trial_log import TrialError, sweep_rows

    swept = run_sweep(base, search, output, name, arguments.fresh, warn, arguments.trackers)
    if not swept.is_new:
        warn(f"{swept.path} is finished; a larger --trials continues it, --fresh removes it and starts again")
    show(f"\n{len(swept.trials)} trials on {base.data.dataset}, split {base.data.dev_split}, by {swept.metric}")
    show(text_table(sweep_rows(swept.trials, swept.metric)))
    if swept.best is not None:
        rows = {title: swept.rows[row] for row, title in _ROW_TITLES.items()}
        show(f"\ntrial {swept.best.name} on split {base.data.test_split}")
        show(metrics_table(rows).as_text())
        show(training_notes(Results.read(swept.path / "best" / EVALUATION), _ROW_TITLES))
        loss = str(read_settings(swept.path / "best.yaml").get("loss", {}).get("loss", ""))
        own = ["--loss", loss] if any(map(LossFile.parse, terms_of(loss))) else []  # `train` wants it named
        best = quote_command("raytriever", "train", "--config", swept.path / "best.yaml", *own, "--output")
        show(f"\nContinue with:\n  {best} DIR")
        show_views(swept.path, arguments.trackers)
        show(f"  {swept.path / 'figures'} and {swept.path / 'best' / 'report.html'}")
    if swept.failed:
        first = swept.failed[0]
        raise TrialError(
            f"{len(swept.failed)} of {len(swept.trials)} trials failed, first {first.name}: {first.reason}",
            str(swept.path),
            "run the same command to try them again",
        )


_ROW_TITLES = {"bm25": "BM25", "before": "encoder before", "after": "best trial"}


def _parser() -> Parser:
    parser = Parser("tune", "Search the settings of training, and measure the best.")
    add_settings(parser, SearchConfig, "search")
    add_run_flags(parser, "sweep", "sweep, data, model and seed", ", which override the recipe; flags override them")
    return parser


def _default_name(base: Config) -> str:
    name = f"sweep-{Path(base.data.dataset).name}-{Path(base.model.model).name}-seed{base.training.seed}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100]
