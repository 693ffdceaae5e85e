"""Checkpoints are validated during the steps; the best one does not depend on delays or deaths."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from runs import Killed, Lives, assert_same, parameters
from safetensors.torch import load_file
from scripted import ScriptedEvaluator, validation_plan

from raytriever.core.errors import ConfigError, StorageError
from raytriever.training import background_jobs
from raytriever.training.dev_validation import Record, read_records, record_path, write_record
from raytriever.training.early_stopping import TrainerState, summarize
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.training_settings import TrainingConfig, ValidationConfig, check_validation, metric_name

STEPS = 12
NAN = float("nan")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits asks again at once: the scripted evaluator counts questions, not seconds."""
    monkeypatch.setattr(background_jobs, "POLL_SECONDS", 0.0005)


class Run(Lives):
    """Lives of a run that is validated."""

    def __init__(self, make: Callable, folder: Path) -> None:
        super().__init__(make, folder)
        self.evaluators: list[ScriptedEvaluator] = []
        self.checkpoint_sets: list[set[str]] = []

    @property
    def evaluations(self) -> Path:
        return self.folder / "evaluations"

    @property
    def checkpoints(self) -> set[str]:
        return {path.name for path in (self.folder / "checkpoints").glob("step-*")}

    def live(
        self,
        *,
        die_at: int = 0,
        die_at_evaluation: int = 0,
        behind: int = 2,
        metric: str = "ndcg_at_10",
        steps: int = STEPS,
        **more: object,
    ) -> tuple[TrainingSetup, TrainerState | None]:
        """Run until the end, or until a kill when a step or a validation is logged, before it is saved."""
        script = {name: more.pop(name) for name in ("values", "lag", "fails", "before") if name in more}
        evaluator = ScriptedEvaluator(self.evaluations, **script)
        self.evaluators.append(evaluator)
        settings = {"total_steps": steps, "eval_steps": 2, "dev_batches": 1, "warmup_steps": 1, "batch_size": 8}
        work, recorder = self.make(folder=self.folder / "checkpoints", **{**settings, "best_metric": metric, **more})
        logged = max(self.logged, default=0)

        def listen(step: int, metrics: Mapping[str, float]) -> None:
            self.remember(step, metrics)
            self.checkpoint_sets.append(self.checkpoints)
            if (step == die_at and "loss" in metrics) or (step == die_at_evaluation and "dev/weights" in metrics):
                raise Killed

        work = dataclasses.replace(
            work, on_metrics=listen, validation=validation_plan(evaluator, listen, behind, last_logged_step=logged)
        )
        return work, self.train(work, recorder, dies=bool(die_at or die_at_evaluation))


@pytest.fixture
def begin(make_assignment, tmp_path: Path) -> Callable[[str], Run]:
    return lambda name: Run(make_assignment, tmp_path / name)


def assert_left(work: TrainingSetup, run: Run, step: int) -> None:
    """The weights left in the retriever are those of the checkpoint, which has the trained ones."""
    saved = load_file(run.folder / "checkpoints" / f"step-{step}" / "weights-0-of-1.safetensors")
    for name, value in work.retriever.named_parameters():
        assert value.requires_grad == (f"retriever.{name}" in saved)
        assert not value.requires_grad or torch.equal(value, saved[f"retriever.{name}"]), name


VALUES = {2: 0.1, 4: 0.5, 6: 0.3, 8: 0.4, 10: 0.2, 12: 0.45}


@pytest.mark.fast_every(9)
@pytest.mark.parametrize(("lag", "behind"), [((3,), 2), ((99,), 9)])
def test_the_best_by_the_metric_is_kept_and_left_however_late_verdicts_come(
    begin: Callable[[str], Run], lag: tuple[int, ...], behind: int
) -> None:
    run = begin("run")
    work, trainer_state = run.live(values=VALUES, lag=lag, behind=behind)
    assert (trainer_state.step, trainer_state.best_step, trainer_state.stopped) == (STEPS, 4, False)
    assert_left(work, run, 4)
    assert run.evaluators[0].begun == [2, 4, 6, 8, 10, 12]
    assert run.curve("dev/ndcg_at_10") == VALUES
    assert run.checkpoints == {"step-4", "step-12"}
    assert sorted(run.curve("dev_loss")) == [2, 4, 6, 8, 10, 12]
    assert [record.step for record in read_records(run.evaluations)] == [2, 4, 6, 8, 10, 12]


@pytest.mark.fast_every(9)
@pytest.mark.parametrize(("behind", "furthest"), [(9, 8), (1, 4)])
def test_a_step_waits_only_where_too_many_are_waited_for(
    begin: Callable[[str], Run], behind: int, furthest: int
) -> None:
    run = begin("run")
    reached: dict[int, int] = {}
    there: dict[int, set[str]] = {}

    def answered(step: int) -> None:
        reached[step] = max(run.curve("loss"))
        there[step] = run.checkpoints

    # The first answer is a hundred questions late: more than there are steps.
    run.live(values=VALUES, lag=(100, 0), behind=behind, steps=8, before=answered)
    assert reached[2] == furthest
    # What is waited for is not removed.
    assert {f"step-{step}" for step in range(2, furthest, 2)} <= there[2]
    assert all(len(checkpoints) <= behind + 3 for checkpoints in run.checkpoint_sets)


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("lag", [(0,), (99,)])
def test_patience_ends_training_and_later_verdicts_count_for_nothing(
    begin: Callable[[str], Run], lag: tuple[int, ...]
) -> None:
    run = begin("run")
    values = {2: 0.1, 4: 0.5, 6: 0.3, 8: 0.4, 10: 0.9, 12: 0.95}
    work, trainer_state = run.live(values=values, lag=lag, behind=3, patience=2)
    assert trainer_state.best_step == 4
    assert_left(work, run, 4)
    # Those after the eighth step are never evaluated, though lag may have let training get there.
    assert run.evaluators[0].begun == [2, 4, 6, 8]
    assert read_records(run.evaluations)[-1].step == 8 <= trainer_state.step <= STEPS
    assert max(run.curve("loss")) == trainer_state.step
    assert run.checkpoints == {"step-4", f"step-{trainer_state.step}"}
    assert [line for line in run.notices if "not improved since step 4" in line]


@pytest.mark.slow
@pytest.mark.parametrize("patience", [2, pytest.param(9, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "deaths",
    [(5, 8), *(pytest.param(item, marks=pytest.mark.slow) for item in ((3, 6, 9), (1, 12), (7,), (12,), (9, 10, 11)))],
)
def test_killed_and_continued_it_is_as_in_peace(
    begin: Callable[[str], Run], deaths: tuple[int, ...], patience: int
) -> None:
    peace, interrupted = begin("peace"), begin("interrupted")
    in_peace, expected = peace.live(values=VALUES, lag=(3,), patience=patience)
    for number, step in enumerate(deaths):
        values = {record.step: record.value for record in read_records(interrupted.evaluations)}
        if not summarize(values, patience).stopped or step < max(interrupted.logged):
            interrupted.live(values=VALUES, lag=(number + 1, 5), patience=patience, die_at=step)
    work, actual = interrupted.live(values=VALUES, lag=(2,), patience=patience)
    assert expected is not None
    assert actual is not None
    assert actual.best_step == expected.best_step == 4
    assert_same(parameters(in_peace.retriever), parameters(work.retriever))
    # The same figures, also of the weights they were measured with.
    for name in ("dev/ndcg_at_10", "dev/weights"):
        assert interrupted.curve(name) == peace.curve(name)
    both = peace.curve("loss").keys() & interrupted.curve("loss").keys()
    assert {step: peace.curve("loss")[step] for step in both} == {
        step: interrupted.curve("loss")[step] for step in both
    }
    assert max(interrupted.curve("loss")) == actual.step
    evaluated = [step for evaluator in interrupted.evaluators for step in evaluator.begun]
    assert set(evaluated) == set(peace.curve("dev/weights"))


@pytest.mark.slow
def test_where_a_killed_run_was_to_stop_the_continued_one_stops(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    values = {2: 0.5, 4: 0.4, 6: 0.3}
    # Killed when the value that ends patience is recorded, before the checkpoint of the last step is written.
    run.live(values=values, lag=(0, 0, 5), patience=2, die_at_evaluation=6)
    last = max(run.curve("loss"))
    assert read_records(run.evaluations)[-1].step == 6 < last
    shutil.rmtree(run.folder / "checkpoints" / f"step-{last}", ignore_errors=True)
    work, trainer_state = run.live(values=values, lag=(0,), patience=2)
    assert (trainer_state.step, trainer_state.best_step, trainer_state.stopped) == (last, 2, True)
    assert sorted(run.curve("loss")) == list(range(1, last + 1))
    assert_left(work, run, 2)
    assert not run.evaluators[1].begun


def test_a_decision_that_was_not_written_ends_training_at_its_logged_step(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    values = {2: 0.5, 4: 0.4, 6: 0.3}
    run.live(values=values, lag=(0, 0, 99), patience=2, die_at=7)  # the sixth is saved, and being evaluated
    for step, value in values.items():  # and it was, when the run was killed
        write_record(run.evaluations, Record(step, value, {"dev/ndcg_at_10": value}))
    _, trainer_state = run.live(values=values, patience=2)
    assert (trainer_state.step, trainer_state.best_step) == (7, 2)
    assert max(run.curve("loss")) == 7


@pytest.mark.slow
def test_a_failed_validation_is_logged_and_training_continues(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    _, trainer_state = run.live(values=VALUES, fails=(4, 12))
    assert (trainer_state.step, trainer_state.best_step) == (STEPS, 8)
    assert run.notices.count("The validation of step 4 failed (it is gone). Training continues without it.") == 1
    assert sorted(run.curve("dev/ndcg_at_10")) == [2, 6, 8, 10]


def test_where_every_evaluation_fails_the_last_weights_are_left(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    work, trainer_state = run.live(fails=tuple(VALUES), steps=4)
    assert trainer_state.best_step == 0
    assert_left(work, run, 4)


@pytest.mark.slow
def test_with_the_dev_loss_validations_are_logged_and_decide_nothing(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    _, trainer_state = run.live(values=VALUES, metric="dev_loss", lag=(1,), patience=99)
    losses = run.curve("dev_loss")
    assert trainer_state.best_step == min(losses, key=losses.__getitem__)
    assert run.curve("dev/ndcg_at_10") == VALUES
    assert {f"step-{trainer_state.best_step}", f"step-{STEPS}"} <= run.checkpoints
    assert len(run.checkpoints) == 2


@pytest.mark.slow
def test_a_best_checkpoint_that_is_damaged_gives_way(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    run.live(values=VALUES, die_at=9)
    file = run.folder / "checkpoints" / "step-4" / "weights-0-of-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    _, trainer_state = run.live(values=VALUES)
    assert trainer_state.best_step == 12
    assert [line for line in run.notices if "step-4" in line and "best checkpoint will be chosen from the" in line]


@pytest.mark.slow
def test_a_broken_checkpoint_of_a_later_step_is_not_evaluated(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    run.live(values=VALUES, die_at=7, lag=(99,))
    state = run.folder / "checkpoints" / "step-6" / "state.json"
    state.write_text(state.read_text() + " ")
    _, trainer_state = run.live(values=VALUES)
    assert trainer_state.best_step == 4
    assert not [line for line in run.notices if "failed" in line]
    assert run.curve("dev/ndcg_at_10") == VALUES


def test_other_dev_data_and_a_damaged_record_are_refused(begin: Callable[[str], Run]) -> None:
    run = begin("run")
    work, _ = run.live(values=VALUES, steps=4)
    assert work.validation is not None
    other = dataclasses.replace(work, validation=dataclasses.replace(work.validation, digest="others"))
    with pytest.raises(StorageError, match="was made with dev data 'letters', but this run has 'others'"):
        train(other)
    record_path(run.evaluations, 2).write_text("{")
    with pytest.raises(StorageError, match=r"step-2.json: is damaged or changed"):
        train(work)


@pytest.mark.parametrize(
    ("values", "patience", "best", "without", "decided"),
    [
        ({}, 1, 0, 0, None),
        ({1: 0.1, 2: 0.2}, 1, 2, 0, None),
        ({1: 0.2, 2: 0.2}, 2, 1, 1, None),  # of equal ones the first
        ({2: 0.1, 1: 0.2, 3: 0.3}, 1, 1, 1, 2),  # in the order of steps; what is later counts for nothing
        ({1: NAN, 2: NAN}, 2, 0, 2, 2),
        ({1: NAN, 2: 0.1, 3: NAN}, 2, 2, 1, None),
        ({1: -5.0, 2: -4.0}, 1, 2, 0, None),
    ],
)
def test_verdicts(values: dict[int, float], patience: int, best: int, without: int, decided: int | None) -> None:
    result = summarize(values, patience)
    assert (result.best_step, result.validations_without) == (best, without)
    assert (result.step if result.stopped else None) == decided


def test_settings_that_have_no_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no effect with best_metric dev_loss and without eval_datasets"):
        check_validation(ValidationConfig(eval_corpus=100), TrainingConfig())
    with pytest.raises(ConfigError, match="names no data set"):
        check_validation(ValidationConfig(eval_datasets=" , "), TrainingConfig())
    check_validation(ValidationConfig(eval_corpus=100), TrainingConfig(best_metric="auc"))
    both = ValidationConfig(eval_datasets="own, ../scifact#test")
    assert both.sources("dev_loss", "dev") == (("own", "dev"), ("../scifact", "test"))
    assert ValidationConfig().sources("auc", "validation") == (("own", "validation"),)
    assert ValidationConfig().sources("dev_loss", "dev") == ()
    assert metric_name(" nDCG@10 ") == "ndcg_at_10"
    with pytest.raises(ValueError, match="give dev_loss"):
        metric_name("")
