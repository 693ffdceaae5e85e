"""MTEB's `EncoderProtocol` for our encoders, with the description of the model, as `mteb.evaluate` needs them.

Prompts are chosen in the order of MTEB's `abs_encoder`: task and side, task, type of task and side, type of task, side
(`raytriever.models.prompts`). Tasks without queries and passages, such as classification, use no prompt of a side."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import Side, names_of_task

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float32
    from mteb.models.model_meta import ModelMeta
    from numpy import ndarray

    from raytriever.models.retriever import Retriever

# Method of an encoder -> similarity -> function of MTEB that computes it.
_FUNCTIONS = {
    "similarity": {"cosine": "cos_sim", "dot": "dot_score"},
    "similarity_pairwise": {"cosine": "pairwise_cos_sim", "dot": "pairwise_dot_score"},
}


class MtebEncoder:
    """Encoder with the methods that `mteb.evaluate` calls. `label` names a local model in MTEB's results; by default it
    is the name of its directory."""

    config: ModelConfig
    retriever: Retriever
    label: str | None = None

    @cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """Description of the model for MTEB. Its name and revision are the folders of the results.

        The revision of a hub model is its commit. That of a local model is a digest of its weights and of how it reads
        texts. Settings that the user changed, and bf16, are `experiment_kwargs`; MTEB makes a subfolder for them."""
        require_mteb("mteb_model_meta")
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        about = self.retriever.description
        is_cosine = about.similarity == "cosine"
        parameters, size = self._stored_size()
        return ModelMeta.create_empty(
            {
                "name": self._published_name(),
                "revision": self._revision(),
                "n_parameters": parameters,
                "memory_usage_mb": size / 2**20,
                "max_tokens": about.passage_length,
                "embed_dim": self.retriever.dim,
                "framework": ["PyTorch"],
                "similarity_fn_name": ScoringFunction.COSINE if is_cosine else ScoringFunction.DOT_PRODUCT,
                "use_instructions": bool(about.query_prompt or about.passage_prompt or about.prompts),
                "experiment_kwargs": self._changed_settings() or None,
            }
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> Float32[ndarray, "texts dim"]:
        """Encode the texts of batches, as MTEB's `EncoderProtocol` describes.

        Args:
            inputs: batches with the list `text`.
            task_metadata: metadata of the task; its name and type choose the prompt.
            hf_split: split of the task, which is not used.
            hf_subset: subset of the task, which is not used.
            prompt_type: `PromptType.query`, `PromptType.document`, or None for tasks without sides.
            kwargs: settings of other encoders, which are not used.

        Returns:
            Embeddings, float32 `[texts, dim]`.

        Raises:
            ModelError: an embedding is not finite, or a prompt leaves no token for the text.
        """
        from raytriever.retrieval.encoding.encode_texts import encode_texts

        names = names_of_task(task_metadata.name)
        texts = [text for batch in inputs for text in batch["text"]]
        side: Side = "query" if getattr(prompt_type, "value", prompt_type) == "query" else "passage"
        if prompt_type is None:
            prompt = self.retriever.prompts.of_texts(*names, task_type=task_metadata.type)
        else:
            prompt = self.retriever.prompts.of(*names, task_type=task_metadata.type)[side]
        self.retriever.check_prompt(prompt, side)
        tower = self.retriever.query if side == "query" else self.retriever.passage
        is_scaled = tower.normalize
        # For search, normalize the embeddings, because scores are cosines. Classifiers need the original lengths.
        tower.normalize = is_scaled and (prompt_type is not None or self._has_length_one)
        try:
            return encode_texts(self.retriever, texts, side, task_metadata.name, prompt)
        finally:
            tower.normalize = is_scaled

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the similarity of each pair of embeddings, `[first, second]`."""
        return self._function("similarity")(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the similarity of the embeddings in the same row, `[rows]`."""
        return self._function("similarity_pairwise")(embeddings1, embeddings2)

    def _function(self, name: str) -> Any:
        from mteb import similarity_functions

        return getattr(similarity_functions, _FUNCTIONS[name][self.retriever.description.similarity])

    @cached_property
    def _has_length_one(self) -> bool:
        """True if the model has a module that normalizes embeddings, or no sentence-transformers modules at all."""
        from raytriever.models.directory.modules import NORMALIZE
        from raytriever.models.resolve_model import read_files

        files = read_files(self.config)
        return not files.has_modules or any(module.kind == NORMALIZE for module in files.sides["passage"].head)

    def _stored_size(self) -> tuple[int, int]:
        """Return the number of parameters in the files of the model, and the bytes of these files.

        The encoder itself is not counted, because on a CPU it packs its weights and then has fewer parameters."""
        from raytriever.core.store.disk import files_below
        from raytriever.models.directory.model_files import FLOATS, stored_tensors
        from raytriever.models.resolve_model import resolve_model

        directory = resolve_model(self.config.model, self.config.revision)
        files = [file for file in files_below(directory) if file.suffix == ".safetensors"]
        tensors = [tensors for folder in {file.parent for file in files} for tensors in stored_tensors(folder).values()]
        parameters = sum(math.prod(tensor.shape) for tensor in tensors if tensor.kind in FLOATS)
        return parameters, sum(file.stat().st_size for file in files)

    def _published_name(self) -> str:
        from raytriever.evaluation.evaluated_datasets import distinct_names
        from raytriever.models.directory.hub_or_local import PUBLISHED
        from raytriever.models.resolve_model import commit_of

        name = self.config.model
        if name in PUBLISHED or commit_of(name, self.config.revision) is not None:
            return PUBLISHED.get(name, name)
        return self.label or distinct_names([name])[0]

    def _revision(self) -> str:
        from raytriever.models.description import stored_description
        from raytriever.models.resolve_model import commit_of, read_files

        commit = commit_of(self.config.model, self.config.revision)
        if commit is not None:
            return commit
        sides: tuple[Side, ...] = ("query", "passage")
        weights = [self.retriever.digest(self.config, side) for side in sides]
        # Leave out the settings of the user: they are `experiment_kwargs`.
        plain = ModelConfig(model=self.config.model)
        reading = stored_description(read_files(plain), plain)
        return hashlib.sha256(json.dumps([weights, asdict(reading)], sort_keys=True).encode()).hexdigest()[:40]

    def _changed_settings(self) -> dict[str, Any]:
        default, settings = asdict(type(self.config)()), asdict(self.config)
        changed = [name for name in settings if name not in ("model", "revision") and settings[name] != default[name]]
        precision = self.retriever.summary().rsplit(", ", 1)[-1]
        return {name: settings[name] for name in changed} | ({} if precision == "fp32" else {"precision": precision})


def require_mteb(where: str) -> None:
    """Raise `ConfigError` if MTEB is not installed."""
    from importlib.util import find_spec

    from raytriever.core.errors import ConfigError

    if find_spec("mteb") is None:
        raise ConfigError("requires the package mteb", where, "install it: pip install 'raytriever[mteb]'")
