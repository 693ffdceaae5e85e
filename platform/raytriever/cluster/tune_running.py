"""The trials of a sweep under Ray Tune."""

from __future__ import annotations

import math
import os
from tempfile import TemporaryDirectory

import ray
from ray import tune

from raytriever.activity import activity
from raytriever.cluster.fit_thread import FitThread
from raytriever.cluster.monitor import listening
from raytriever.cluster.session import Workplace, gpus
from raytriever.cluster.tune_conductor import Conductor, Plan
from raytriever.cluster.tune_material import SweepMaterial
from raytriever.cluster.tune_planning import watched_metric
from raytriever.cluster.tune_search import Asha, Proposals, StopAll
from raytriever.cluster.tune_trial import Circumstances, run_trial
from raytriever.config.search_config import DEV_LOSS, SearchConfig
from raytriever.retrieval.sweep import FINISHED, STOPPED
from raytriever.tracking.steps import curve

# A trial whose process dies is begun again so often, and goes on from its checkpoint.
DEATHS = 3
_RAY_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # files of its own for every trial
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # of a state that nothing goes on from
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # the last report of a trial tells how it ended, not how far it is
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # which prints even where it is told not to
}


def run_trials(conductor: Conductor, plan: Plan, search: SearchConfig, material: SweepMaterial) -> None:
    """Run all trials that are left; an interruption stops them and comes back at once."""
    workers, stop = plan.base.training.workers[1], StopAll()
    nodes = sum(node["Alive"] for node in ray.nodes())
    for name, value in _RAY_TUNE.items():
        os.environ.setdefault(name, value)
    with listening(conductor.hear) as listener, TemporaryDirectory(prefix="raytriever-") as state:
        around = Circumstances(
            listener.mailbox,
            Workplace(),
            math.ceil(plan.at_once / nodes),
            watched_metric(plan.base, search),
            plan.metric != DEV_LOSS,
        )
        proposals = Proposals(conductor.next_job, conductor.ended)
        trainable = tune.with_parameters(run_trial, tables=material.tables, around=around)
        tuner = tune.Tuner(
            tune.with_resources(trainable, tune.PlacementGroupFactory([_bundle(workers)])),
            tune_config=tune.TuneConfig(
                search_alg=proposals,
                scheduler=_scheduler(conductor, search, around.reported) if around.reported else None,
                num_samples=conductor.left,
                max_concurrent_trials=plan.at_once,
                # A group's processes end with the trial's, so that none is left when it is stopped.
                reuse_actors=workers == 1,
                trial_name_creator=lambda trial: str(trial.trial_id),
                trial_dirname_creator=lambda trial: str(trial.trial_id),
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=state,
                stop=stop,
                failure_config=tune.FailureConfig(max_failures=DEATHS),
                verbose=0,
            ),
        )
        fit = FitThread(tuner.fit)
        fit.start()
        try:
            with activity(lambda seconds: f"{conductor.state()}: {seconds:.0f} s"):
                fit.wait(listener.broken)
        finally:
            conductor.leave()
            fit.end(stop.tell)
    if failure := fit.failure or proposals.failure:
        raise failure


def _bundle(workers: int) -> dict[str, float]:
    """What a trial's own process takes: all it trains on, or of several workers, who take it themselves, nothing."""
    if workers > 1:
        return {"node:__internal_head__": 0.001}
    return {"CPU": 1.0, "GPU": 1.0} if gpus() else {"CPU": 1.0}


def _scheduler(conductor: Conductor, search: SearchConfig, watched: str) -> Asha:
    def curve_of(number: int) -> list[tuple[int, float]]:
        return curve(conductor.folder_of(number), watched)

    over = [trial.number for trial in conductor.trials if trial.status in (FINISHED, STOPPED)]
    earlier = [curve_of(number) for number in over]
    return Asha(watched, watched != DEV_LOSS, search.asha_grace, search.asha_factor, earlier, curve_of)
