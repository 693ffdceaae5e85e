"""Which point a trial tries: the next of a grid, a random one, or one that Optuna thinks well of.

A proposal is a function of the seed, the trial's number and what earlier trials came to, and of nothing that was kept
in a process: a sweep that is killed and gone on with proposes what it would have proposed. Past trials are told anew
each time; none is run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from raytriever.errors import ConfigError
from raytriever.tuning.space import Dimension, Point, SearchSpace

GRID, RANDOM, OPTUNA = "grid", "random", "optuna"
SEARCHERS = (GRID, RANDOM, OPTUNA)
# Draws in search of a point that was not tried; so many in vain, and there is none.
DRAWS = 200
# Trials drawn at random before Optuna has seen enough (its own default).
STARTUP = 10


@dataclass(frozen=True)
class PastTrial:
    """An earlier trial.

    Args:
        point: what it tried.
        value: what it came to, larger being better; None where it came to nothing or is not done.
        done: whether it is over.
    """

    point: Point
    value: float | None
    done: bool


class Sampler(Protocol):
    """Proposes points."""

    def propose(self, number: int, past: Sequence[PastTrial]) -> Point | None:
        """The point of a trial; None where all points were tried.

        Args:
            number: of the trial, from 0.
            past: the trials 0 to `number` - 1.
        """


@dataclass(frozen=True)
class GridSampler:
    """Every combination once, in order."""

    points: Sequence[Point]

    def propose(self, number: int, past: Sequence[PastTrial]) -> Point | None:
        """See `Sampler`."""
        return self.points[number] if number < len(self.points) else None


@dataclass(frozen=True)
class RandomSampler:
    """Points drawn evenly, none of them twice (Bergstra and Bengio, 2012)."""

    space: SearchSpace
    seed: int

    def propose(self, number: int, past: Sequence[PastTrial]) -> Point | None:
        """See `Sampler`."""
        tried = [one.point for one in past]
        for draw in range(DRAWS):
            random = np.random.default_rng(np.random.SeedSequence((self.seed, number, draw)))
            point = {one.key: _drawn(one, random) for one in self.space.dimensions}
            if point not in tried:
                return point
        listed = not any(one.is_range for one in self.space.dimensions)
        return next((point for point in self.space.grid() if point not in tried), None) if listed else None


def _drawn(dimension: Dimension, random: np.random.Generator) -> Any:
    if not dimension.is_range:
        return dimension.values[int(random.integers(len(dimension.values)))]
    if dimension.whole and not dimension.log:
        return int(random.integers(int(dimension.low or 0), int(dimension.high or 0) + 1))
    return dimension.at(float(random.random()))


@dataclass(frozen=True)
class OptunaSampler:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., 2011; Akiba et al., 2019).

    Trials under way count as bad ones, so that those beside each other try different things.
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
            seed=seed, constant_liar=True, n_startup_trials=STARTUP, multivariate=False
        )
        study = optuna.create_study(sampler=sampler, direction="maximize")
        states = optuna.trial.TrialState
        for one in past:
            state = states.RUNNING if not one.done else states.FAIL if one.value is None else states.COMPLETE
            value = one.value if state is states.COMPLETE else None
            study.add_trial(
                optuna.trial.create_trial(
                    params=self._indices(one.point), distributions=distributions, state=state, value=value
                )
            )
        tried = [one.point for one in past]
        for _ in range(DRAWS):
            asked = study.ask(distributions)
            point = {one.key: self._value(one, asked.params[one.key]) for one in self.space.dimensions}
            if point not in tried:
                return point
            study.tell(asked, state=states.FAIL)
        return RandomSampler(self.space, self.seed).propose(number, past)

    def _distribution(self, dimension: Dimension) -> Any:
        import optuna.distributions as kinds

        if not dimension.is_range:
            return kinds.CategoricalDistribution(tuple(range(len(dimension.values))))
        if dimension.whole:
            return kinds.IntDistribution(int(dimension.low or 0), int(dimension.high or 0), log=dimension.log)
        return kinds.FloatDistribution(float(dimension.low or 0), float(dimension.high or 0), log=dimension.log)

    def _indices(self, point: Point) -> dict[str, Any]:
        """What Optuna is told: of a list the place, because its values may be any."""
        return {
            one.key: point[one.key] if one.is_range else one.values.index(point[one.key])
            for one in self.space.dimensions
        }

    def _value(self, dimension: Dimension, given: Any) -> Any:
        return given if dimension.is_range else dimension.values[given]


def build_sampler(searcher: str, space: SearchSpace, seed: int) -> Sampler:
    """The sampler of a name; raises `ConfigError` where Optuna is not installed or a range has no grid."""
    if searcher == GRID:
        return GridSampler(space.grid())
    if searcher == RANDOM:
        return RandomSampler(space, seed)
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ConfigError("needs optuna", "--searcher optuna", "pip install 'raytriever[tune]'") from error
    return OptunaSampler(space, seed)
