"""The trackers that `--tracker` accepts, by name, and checks of their packages, keys and addresses.

`check_trackers` finds a missing package, a missing key or a wrong address before any long work. It connects to no
server, except to an MLflow server."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from raytriever.core.errors import ConfigError, setting
from raytriever.core.unknown_names import check_known
from raytriever.tracking.mlflow_tracker import MlflowServer, check_uri, tracking_uri
from raytriever.tracking.tracker import TrackerClient

TITLES = {"mlflow": "MLflow", "wandb": "W&B", "tensorboard": "TensorBoard", "trackio": "Trackio"}
NONE = "none"
DEFAULT_TRACKERS = ("mlflow",)
_OLDEST = {"wandb": "0.19.10", "tensorboard": "2.18", "trackio": "0.43"}


def read_trackers(text: str) -> tuple[str, ...]:
    """Return the names in a list such as `mlflow,wandb`. For `none`, return no names."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        check_known("tracker", name, (*TITLES, NONE), setting("tracker"))
    if NONE in names and len(names) > 1:
        what = f"{text!r} has both {NONE!r} and names of trackers"
        raise ConfigError(what, setting("tracker"), f"give {NONE} alone, or only names of trackers")
    return () if names == [NONE] else tuple(names)


def check_trackers(names: Sequence[str]) -> None:
    """Check that trackers can be used. This connects to no server except an MLflow server."""
    for name in names:
        if name in _OLDEST:
            _check_package(name)
        if name == "mlflow":
            check_uri(tracking_uri())
        elif name == "wandb":
            from raytriever.tracking.wandb_tracker import read_settings

            read_settings()
        elif name == "tensorboard":
            from raytriever.tracking.tensorboard_tracker import check_folder

            check_folder()


def open_trackers(names: Sequence[str]) -> list[TrackerClient]:
    """Return trackers by name. Raise the errors of `check_trackers`, and `ConfigError` if MLflow does not answer."""
    check_trackers(names)
    return [_open(name) for name in names]


def _open(name: str) -> TrackerClient:
    if name == "wandb":
        from raytriever.tracking.wandb_tracker import WandbClient

        return WandbClient()
    if name == "tensorboard":
        from raytriever.tracking.tensorboard_tracker import TensorboardClient

        return TensorboardClient()
    if name == "trackio":
        from raytriever.tracking.trackio_tracker import TrackioClient

        return TrackioClient()
    return MlflowServer(tracking_uri())


def _check_package(name: str) -> None:
    remedy = f"run `pip install 'raytriever[{name}]'`, or leave {name} out"
    try:
        installed = version(name)
    except PackageNotFoundError as error:
        raise ConfigError(f"{TITLES[name]} needs the package {name}", setting("tracker", name), remedy) from error
    numbers = [[int(part) for part in text.split(".")[:3] if part.isdecimal()] for text in (installed, _OLDEST[name])]
    if numbers[0] < numbers[1]:
        raise ConfigError(f"{name} {installed} is older than {_OLDEST[name]}", setting("tracker", name), remedy)
