"""raytriever: train and evaluate dense retrievers on Ray.

    import raytriever as rt

    data = rt.load_dataset("path/to/scifact")
    model = rt.load_model("minilm")
    hard = rt.mine_hard_negatives(data, model, num_negatives=10)
    run = rt.train(data, model, loss="mw", hard_negatives=hard, max_steps=500, output="runs/mine")
    report = rt.evaluate(["bm25", model, run], data, split="test")
    index = rt.build_index(run.model, data)
    print(report, index.search(["a question"], top_k=5))

Heavy modules are imported only when a name is used, so `import raytriever` and `--help` are fast. Errors that a user
can correct are `UserError` and its subclasses. Progress lines go to standard error, as in the commands;
`contextlib.redirect_stderr` hides them. If the home folder is not writable, `HOME` is set to a folder that is
(`machine.ensure_home`). The order of the packages follows the data (docs/explanation/architecture.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raytriever.core.lazy_imports import lazy_names
from raytriever.core.machine import ensure_home, shorten_temporary_folder

if TYPE_CHECKING:
    from raytriever import losses, metrics
    from raytriever.api.datasets import Dataset, load_dataset
    from raytriever.api.evaluation import Report, compare, evaluate
    from raytriever.api.models import Model, Run, load_model
    from raytriever.api.search import Index, build_index
    from raytriever.api.training import HardNegatives, mine_hard_negatives, train
    from raytriever.core.errors import ConfigError, DataError, ModelError, StorageError, UserError
    from raytriever.retrieval.search.exact_search import Hit, Hits

shorten_temporary_folder()
ensure_home()
__version__ = "0.3.0"
__all__ = [
    "ConfigError", "DataError", "Dataset", "HardNegatives", "Hit", "Hits", "Index", "Model", "ModelError", "Report",
    "Run", "StorageError", "UserError", "build_index", "compare", "evaluate", "load_dataset", "load_model", "losses",
    "metrics", "mine_hard_negatives", "train",
]  # fmt: skip
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "raytriever.api.datasets": ("Dataset", "load_dataset"),
        "raytriever.api.evaluation": ("Report", "compare", "evaluate"),
        "raytriever.api.models": ("Model", "Run", "load_model"),
        "raytriever.api.search": ("Index", "build_index"),
        "raytriever.api.training": ("HardNegatives", "mine_hard_negatives", "train"),
        "raytriever.core.errors": ("ConfigError", "DataError", "ModelError", "StorageError", "UserError"),
        "raytriever.retrieval.search.exact_search": ("Hit", "Hits"),
    },
    submodules=("losses", "metrics"),
)
