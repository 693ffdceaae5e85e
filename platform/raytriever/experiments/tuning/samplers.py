"""Samplers of the search space: every point of a grid, random points, or the proposals of Optuna.

A proposal is a function of the seed, the trial's number and the results of earlier trials. No sampler has a state, so a
sweep that is killed and resumed proposes the same points. Optuna gets the earlier trials again for each proposal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from raytriever.core.errors import ConfigError, setting
from raytriever.experiments.tuning.space import Dimension, Point, SearchSpace
from raytriever.experiments.tuning.trial_log import Trial

GRID, RANDOM, OPTUNA = "grid", "random", "optuna"
ATTEMPTS = 200  # attempts to sample a point that was not tried yet
STARTUP_TRIALS = 10  # random trials before Optuna's model is used (the default of Optuna)


@dataclass(frozen=True)
class Sampler:
    """Sampler that proposes points of the search space."""

    # `grid` proposes every combination in order; `random` proposes uniform points without repetition (Bergstra and
    # Bengio, 2012); `optuna` uses its tree-structured Parzen estimator (Bergstra et al., 2011; Akiba et al., 2019).
    # Optuna treats running trials as bad trials, so that concurrent trials try different points.
    searcher: str
    space: SearchSpace
    seed: int

    def __post_init__(self) -> None:
        if self.searcher == GRID:
            self.space.grid()
        if self.searcher == OPTUNA and find_spec("optuna") is None:
            remedy = "install it: pip install 'raytriever[tune]'"
            raise ConfigError("requires the package optuna", setting("searcher", "optuna"), remedy)

    def propose(self, trials: Sequence[Trial], metric: str = "", settled: int | None = None) -> Point | None:
        """Return the point of the next trial after `trials`; None if all points were tried.

        Optuna learns from the `metric` of the first `settled` trials (None: all), and treats the others as running."""
        number = len(trials)
        if self.searcher == GRID:
            points = self.space.grid()
            return points[number] if number < len(points) else None
        proposal = self._propose_by_optuna(trials, metric, settled) if self.searcher == OPTUNA else None
        return proposal or self._sample(trials)

    def _sample(self, trials: Sequence[Trial]) -> Point | None:
        tried = [trial.settings for trial in trials]
        for attempt in range(ATTEMPTS):
            random = np.random.default_rng(np.random.SeedSequence((self.seed, len(trials), attempt)))
            point = {dimension.key: _sample(dimension, random) for dimension in self.space.dimensions}
            if point not in tried:
                return point
        is_finite = not any(dimension.is_range for dimension in self.space.dimensions)
        return next((point for point in self.space.grid() if point not in tried), None) if is_finite else None

    def _propose_by_optuna(self, trials: Sequence[Trial], metric: str, settled: int | None) -> Point | None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        dimensions = self.space.dimensions
        distributions = {dimension.key: _distribution(dimension) for dimension in dimensions}
        seed = int(np.random.SeedSequence((self.seed, len(trials))).generate_state(1)[0])
        sampler = optuna.samplers.TPESampler(
            seed=seed, constant_liar=True, n_startup_trials=STARTUP_TRIALS, multivariate=False
        )
        study = optuna.create_study(sampler=sampler, direction="maximize")
        states = optuna.trial.TrialState
        for trial in trials:
            is_settled, value, point = settled is None or trial.number < settled, trial.value(metric), trial.settings
            state = states.RUNNING if not is_settled else states.FAIL if value is None else states.COMPLETE
            stored = optuna.trial.create_trial(
                # Values of a list are passed as indices, because Optuna accepts only some types of values.
                params={d.key: point[d.key] if d.is_range else d.values.index(point[d.key]) for d in dimensions},
                distributions=distributions,
                state=state,
                value=value if state is states.COMPLETE else None,
            )
            study.add_trial(stored)
        tried = [trial.settings for trial in trials]
        for _ in range(ATTEMPTS):
            proposal = study.ask(distributions)
            asked = proposal.params
            point = {
                dimension.key: asked[dimension.key] if dimension.is_range else dimension.values[asked[dimension.key]]
                for dimension in dimensions
            }
            if point not in tried:
                return point
            study.tell(proposal, state=states.FAIL)
        return None


def _sample(dimension: Dimension, random: np.random.Generator) -> Any:
    if not dimension.is_range:
        return dimension.values[int(random.integers(len(dimension.values)))]
    if dimension.whole and not dimension.log:
        return int(
            random.integers(int(dimension.low or 0), int(dimension.high or 0) + 1)
        )  # NumPy excludes the upper end
    return dimension.at(float(random.random()))


def _distribution(dimension: Dimension) -> Any:
    import optuna.distributions as kinds

    if not dimension.is_range:
        return kinds.CategoricalDistribution(tuple(range(len(dimension.values))))
    if dimension.whole:
        return kinds.IntDistribution(int(dimension.low or 0), int(dimension.high or 0), log=dimension.log)
    return kinds.FloatDistribution(float(dimension.low or 0), float(dimension.high or 0), log=dimension.log)
