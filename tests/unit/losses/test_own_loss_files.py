"""Losses in files of a user, sums of losses, and what a loss refuses: in one line, before data is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import ConfigError
from raytriever.experiments.run.run_directory import RunDirectory
from raytriever.experiments.run.start_run import default_run_name, pin_sources
from raytriever.experiments.tuning.space import parse_space
from raytriever.losses.build_loss import build_loss
from raytriever.losses.loss_settings import LossConfig, terms_of
from raytriever.losses.user_loss_file import loss_setting
from raytriever.training.run_config import Config, check_config, from_dict

FILE = """
import torch
from raytriever.losses.row_losses import RowLoss

def good(scores, positives, margin=1.0): return (margin - scores[positives]).relu().mean()
def made(config): return RowLoss("maximum", lambda n, p, m: (n - p[:, 0] + config.margin).relu())
def nothing(config): return None
def vector(scores, positives): return scores.mean(1)
def number(scores, positives): return 1.0
def nan(scores, positives): return scores.sqrt().mean()
def constant(scores, positives): return scores.argmax().float()
def steep(scores, positives): return (scores - scores).abs().sqrt().mean()
def fails(scores, positives):
    return scores[99].mean()
def asks(scores, positives, weights): return scores.mean()
def bare(): return 0
def no_gradient(scores, positives):
    return Broken.apply(scores)
class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores): return scores.sum()
    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("two\\nlines")
value = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_losses.py"
    path.write_text(FILE)
    return path


def _build(loss: str) -> None:
    config = LossConfig(loss=loss)
    check_config(Config(loss=config))
    build_loss(config)


@pytest.mark.parametrize("name", ["good", "made"])
def test_a_function_and_a_loss_by_row_are_losses(file: Path, name: str) -> None:
    _build(f"{file}:{name}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vector", "FILE:vector: returns a tensor of shape [4]; return a scalar"),
        ("number", "FILE:number: returns float; return a scalar"),
        ("nan", "FILE:nan: returns nan for a batch"),
        ("constant", "FILE:constant: has no gradient"),
        ("steep", "FILE:steep: has a gradient that is not finite"),
        ("fails", "FILE:14: IndexError: index 99"),
        ("no_gradient", "FILE:24: RuntimeError: two lines"),
        ("asks", "FILE:asks: has the argument weights, which raytriever does not pass to a loss; use only scores,"),
        ("bare", "FILE:bare: has the arguments (); begin with 'def bare(scores, positives'"),
        ("value", "FILE:value: is int; give a function"),
        ("nothing", "FILE:nothing: returns NoneType; return a RowLoss"),
        ("Broken", "FILE:Broken: is FunctionMeta; give a function"),
        ("goood", "FILE: defines no 'goood'; did you mean 'good'?"),
    ],
)
def test_what_is_no_loss_is_refused_in_one_line(file: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        _build(f"{file}:{name}")
    assert words in str(error.value).replace(str(file), "FILE")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"def f(:\n", "FILE:1: SyntaxError: invalid syntax"),
        (b"def f(scores, positives): return 1\n\nimport no_such_module\n", "FILE:3: ModuleNotFoundError"),
        (b"def f(scores, positives): '\xff'\n", "FILE: is not UTF-8"),
        (None, "FILE: no such file on "),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_in_one_line(tmp_path: Path, text: bytes | None, words: str) -> None:
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError) as error:
        _build(f"{path}:f")
    assert words in str(error.value).replace(str(path), "FILE")


def test_a_changed_file_neither_continues_a_run_nor_trains_on_a_worker(file: Path, tmp_path: Path) -> None:
    settings = Config(loss=LossConfig(loss=f"{file}:good"))
    run = tmp_path / "run"
    pinned = pin_sources(settings, run, fresh=False)
    RunDirectory.open(run, {"loss": {"loss": pinned.loss.loss}}, fresh=False).begin(
        f"loss:\n  loss: {pinned.loss.loss}\n", [pinned.loss]
    )
    assert (run / "losses" / "my_losses.py").read_text() == FILE
    RunDirectory.open(run, {"loss": {"loss": pin_sources(settings, run, fresh=False).loss.loss}}, fresh=False)
    file.write_text(FILE + "# changed\n")
    with pytest.raises(ConfigError, match="other settings"):
        RunDirectory.open(run, {"loss": {"loss": pin_sources(settings, run, fresh=False).loss.loss}}, fresh=False)
    with pytest.raises(ConfigError, match="has changed on"):
        build_loss(pinned.loss)


def test_a_loss_of_a_file_has_its_name_in_the_run_and_may_read_a_teacher(file: Path) -> None:
    config = from_dict({"loss": {"loss": f"{file}:good"}}, "settings.yaml")
    assert default_run_name(config).split("-")[-2] == "good"
    assert not config.loss.needs_teacher
    file.write_text("def good(scores, positives, teacher_scores): return scores.mean()\n")
    with pytest.raises(ConfigError, match="loss good needs the scores of a teacher"):
        check_config(config)


def test_a_function_of_an_imported_file_is_a_setting_and_another_one_is_refused() -> None:
    def inner(scores, positives):
        return scores.mean()

    assert loss_setting(_module_loss) == f"{__file__}:_module_loss"
    assert loss_setting("mw+infonce") == "mw+infonce"
    notebook = {"__name__": "__main__"}
    exec("def mine(scores, positives): return scores.mean()", notebook)
    for function in (inner, notebook["mine"]):
        with pytest.raises(ConfigError, match=r"loss: .* is not a function of an imported file.*%%writefile"):
            loss_setting(function)
    with pytest.raises(ConfigError, match="loss: is int"):
        loss_setting(3)  # type: ignore[arg-type]


def _module_loss(scores, positives):
    return scores.mean()


@pytest.mark.parametrize(
    ("loss", "terms"),
    [
        ("mw", ("mw",)),
        ("mw+infonce", ("mw", "infonce")),
        ("c++/own.py:f", ("c++/own.py:f",)),
        ("mw+c++/own.py:f+joint", ("mw", "c++/own.py:f", "joint")),
        ("own.py:f@0123456789abcdef+mw", ("own.py:f@0123456789abcdef", "mw")),
        ("unknown+mw", ("unknown", "mw")),
    ],
)
def test_a_sum_is_split_into_its_losses(loss: str, terms: tuple[str, ...]) -> None:
    assert terms_of(loss) == terms


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "mw+infonse"}, "loss: unknown loss 'infonse'; did you mean 'infonce'?"),
        ({"loss": "mw+"}, "loss: unknown value 'mw+'"),
        ({"loss": "mw+mw"}, "loss: 'mw+mw' has 'mw' twice; give each loss once"),
        ({"loss": "mw+infonce", "loss_weights": "1"}, "loss_weights: has 1 weights, but mw+infonce has 2 losses"),
        ({"loss": "mw", "loss_weights": "2"}, "loss_weights: has no effect with loss mw; leave it out, or give a"),
        (
            {"loss": "mw+infonce", "loss_weights": "1,-1"},
            "loss_weights: '1,-1' is invalid; give a number of at least 0",
        ),
        ({"loss": "mw+infonce", "loss_weights": "0,0"}, "give a number of at least 0 for each loss, not all 0"),
        ({"loss": "mw+infonce", "loss_weights": "1,nan"}, "give a number of at least 0 for each loss"),
        ({"loss": "infonce+joint", "reduction": "sum"}, "reduction: has no effect with loss infonce+joint"),
        ({"loss": "mw+no.py:f"}, "no.py: no such file on "),
        ({"loss": "bce", "threshold": float("nan")}, "threshold: nan is out of range"),
        ({"loss": "bce", "positive_weight": 0.0}, "positive_weight: 0.0 is out of range"),
        ({"loss": "mw", "positive_weight": 2.0}, "positive_weight: has no effect with loss mw"),
        ({"loss": "mw+cosent", "threshold": 0.2}, "threshold: has no effect with loss mw+cosent"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_config(Config(loss=LossConfig(**settings)))  # type: ignore[arg-type]
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_setting_of_one_loss_of_the_sum_is_used() -> None:
    check_config(Config(loss=LossConfig("triplet+mw", margin=0.2, reduction="sum", learn_temperature=True)))
    with pytest.raises(ConfigError, match=r"teacher: mw\+kl needs the scores|loss mw\+kl needs the scores"):
        check_config(Config(loss=LossConfig("mw+kl")))


def test_a_run_stores_the_digest_of_each_file_and_is_named_without_paths(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def half(scores, positives): return -scores[positives].mean() / 2\n")
    config = LossConfig(f"mw+{file}:half", loss_weights="1,0.5")
    stored = config.pinned()
    assert stored.terms == ("mw", config.files[0].pinned())
    assert stored.pinned() == stored
    assert default_run_name(Config(loss=stored)).endswith("mw-half-seed0")
    file.write_text("def half(scores, positives): return -scores[positives].mean() / 3\n")
    with pytest.raises(ConfigError, match="has changed on"):
        check_config(Config(loss=stored))


def test_weights_are_searched_as_a_list() -> None:
    space = parse_space({"loss": {"loss_weights": ["1,0.30", [1, 1]]}}, "space.yaml")
    assert space.dimensions[0].values == ("1,0.3", "1,1")
    with pytest.raises(ConfigError, match="cannot have a range"):
        parse_space({"loss": {"loss_weights": {"low": 0, "high": 1}}}, "space.yaml")
