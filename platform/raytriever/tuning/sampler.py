"""Samplers of the search space: every point of a grid, random points, or the proposals of Optuna.

A proposal is a function of the seed, the trial's number and the results of earlier trials. No sampler has a state, so a
sweep that is killed and resumed proposes the same points. Optuna gets the earlier trials again for each proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from raytriever.errors import ConfigError, setting
from raytriever.tuning.space import Dimension, Point, SearchSpace

GRID, RANDOM, OPTUNA = "grid", "random", "optuna"
DRAWS = 200  # attempts to draw a point that was not tried
STARTUP_TRIALS = 10  # random trials before Optuna's model starts (its own default)


@dataclass(frozen=True)
class PastTrial:
    """An earlier trial.

    Args:
        point: its settings.
        value: its metric, where larger is better; None without a finite value, or if it has not ended.
        has_ended: whether it has ended.
    """

    point: Point
    value: float | None
    has_ended: bool


class Sampler(Protocol):
    """Proposes points of the search space."""

    def propose(self, number: int, past: Sequence[PastTrial]) -> Point | None:
        """Return the point of a trial; None if all points were tried.

        Args:
            number: Number of the trial, from 0.
            past: the trials 0 to `number` - 1.
        """


@dataclass(frozen=True)
class GridSampler:
    """Proposes every combination once, in order."""

    points: Sequence[Point]

    def propose(self, number: int, past: Sequence[PastTrial]) -> Point | None:
        """See `Sampler`."""
        return self.points[number] if number < len(self.points) else None


@dataclass(frozen=True)
class RandomSampler:
    """Draws points uniformly, none of them twice (Bergstra and Bengio, 2012)."""

    space: SearchSpace
    seed: int

    def propose(self, number: int, past: Sequence[PastTrial]) -> Point | None:
        """See `Sampler`."""
        tried = [one.point for one in past]
        for draw in range(DRAWS):
            random = np.random.default_rng(np.random.SeedSequence((self.seed, number, draw)))
            point = {one.key: _draw(one, random) for one in self.space.dimensions}
            if point not in tried:
                return point
        is_finite = not any(one.is_range for one in self.space.dimensions)
        return next((point for point in self.space.grid() if point not in tried), None) if is_finite else None


def _draw(dimension: Dimension, random: np.random.Generator) -> Any:
    if not dimension.is_range:
        return dimension.values[int(random.integers(len(dimension.values)))]
    if dimension.whole and not dimension.log:
        return int(random.integers(int(dimension.low or 0), int(dimension.high or 0) + 1))
    return dimension.at(float(random.random()))


@dataclass(frozen=True)
class OptunaSampler:
    """Proposes points by Optuna's tree-structured Parzen estimator (Bergstra et al., 2011; Akiba et al., 2019).

    Running trials count as bad ones, so that concurrent trials try different points.
    """

    space: SearchSpace
    seed: int

    def propose(self, number: int, past: Sequence[PastTrial]) -> Point | None:
        """See `Sampler`."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        distributions = {one.key: self._distribution(one) for one in self.space.dimensions}
        seed = int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0])
        sampler = optuna.samplers.TPESampler(
            seed=seed, constant_liar=True, n_startup_trials=STARTUP_TRIALS, multivariate=False
        )
        study = optuna.create_study(sampler=sampler, direction="maximize")
        states = optuna.trial.TrialState
        for one in past:
            state = states.RUNNING if not one.has_ended else states.FAIL if one.value is None else states.COMPLETE
            value = one.value if state is states.COMPLETE else None
            study.add_trial(
                optuna.trial.create_trial(
                    params=self._indices(one.point), distributions=distributions, state=state, value=value
                )
            )
        tried = [one.point for one in past]
        for _ in range(DRAWS):
            proposal = study.ask(distributions)
            point = {one.key: self._value(one, proposal.params[one.key]) for one in self.space.dimensions}
            if point not in tried:
                return point
            study.tell(proposal, state=states.FAIL)
        return RandomSampler(self.space, self.seed).propose(number, past)

    def _distribution(self, dimension: Dimension) -> Any:
        import optuna.distributions as kinds

        if not dimension.is_range:
            return kinds.CategoricalDistribution(tuple(range(len(dimension.values))))
        if dimension.whole:
            return kinds.IntDistribution(int(dimension.low or 0), int(dimension.high or 0), log=dimension.log)
        return kinds.FloatDistribution(float(dimension.low or 0), float(dimension.high or 0), log=dimension.log)

    def _indices(self, point: Point) -> dict[str, Any]:
        """Return the parameters for Optuna: the index of a listed value, because Optuna accepts only some types."""
        return {
            one.key: point[one.key] if one.is_range else one.values.index(point[one.key])
            for one in self.space.dimensions
        }

    def _value(self, dimension: Dimension, parameter: Any) -> Any:
        return parameter if dimension.is_range else dimension.values[parameter]


def build_sampler(searcher: str, space: SearchSpace, seed: int) -> Sampler:
    """Return the sampler of a name; raise `ConfigError` if Optuna is not installed or a range has no grid."""
    if searcher == GRID:
        return GridSampler(space.grid())
    if searcher == RANDOM:
        return RandomSampler(space, seed)
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "requires the package optuna", setting("searcher", "optuna"), "pip install 'raytriever[tune]'"
        ) from error
    return OptunaSampler(space, seed)
