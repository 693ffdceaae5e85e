"""Dense retriever (bi-encoder). It encodes queries and passages into one vector space.

Both sides share one tower, or each side has its own tower as in DPR (Karpukhin et al., 2020, section 3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor, nn

from raytriever.core.errors import ConfigError, ModelError, setting
from raytriever.core.progress import activity
from raytriever.models import packed_attention
from raytriever.models.decoder import append_end_token, set_bidirectional
from raytriever.models.description import Description, describe, head_modules, prompt_table
from raytriever.models.directory.head import head_text, load_head
from raytriever.models.directory.model_files import check_tokens
from raytriever.models.directory.modules import Module
from raytriever.models.directory.transformer_settings import Transformer
from raytriever.models.encoder import Encoder, load_backbone
from raytriever.models.inference import BatchEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import Buckets, TokenBatch, fill_buckets, is_packed, join_sides, pack, spans
from raytriever.models.prompts import SIDES, TASK_TYPE, TITLE, Prompts, PromptTable, Side, check_length, fill_title
from raytriever.models.resolve_model import read_files
from raytriever.models.tokenization import Template, content_tokenizer_json, load_tokenizer

log = logging.getLogger(__name__)
# Maximum number of tokens per bucket in training on a CPU. For 12,288 tokens, forward and backward, MiniLM takes 1.5 to
# 1.7 times as long in one bucket as in 4 or 8. A GPU has no limit, because large buckets keep it busy.
CPU_BUCKET_TOKENS = 4_096

_INT8_MULTIPLE = 8  # in int8, padded lengths are multiples of this number of tokens


class Retriever(BatchEncoder):
    """Two towers and their tokenizer. If both sides share a tower, `query` and `passage` are the same module.

    Args:
        prompts: prompts by data set; by default those of the description.

    Attributes:
        packs: True if batches are packed instead of padded; see `choose_packing`.
        is_int8: True if linear layers multiply 8-bit integers; see `load_for_encoding`.
    """

    def __init__(
        self,
        query: Encoder,
        passage: Encoder,
        tokenizer: Any,
        description: Description,
        prompts: PromptTable | None = None,
    ) -> None:
        super().__init__()
        self.query = query
        self.passage = passage
        self.tokenizer = tokenizer
        self.template = Template.of(tokenizer)
        self.description = description
        self.prompts = prompts or prompt_table(description, ModelConfig())
        self.packs = False
        self.is_int8 = False

    def choose_packing(self, precision: str) -> None:
        """Pack batches on CUDA in bf16 if the towers can encode packed texts; else pad them. In fp32 and on a CPU there
        is no kernel for packed texts, so attention would be computed text by text."""
        self.packs = False
        if self.device.type != "cuda":
            return
        # The attention of cuDNN would prepare a plan for nearly every batch, because the shapes differ.
        torch.backends.cuda.enable_cudnn_sdp(False)
        obstacles = []
        for tower in (self.query, self.passage):
            packed_attention.use_repeatable_embeddings(tower.backbone)
            obstacle = packed_attention.packing_obstacle(tower.backbone)
            if obstacle is None:
                packed_attention.use_packed_attention(tower.backbone)
            else:
                obstacles.append(obstacle)
        if precision != "bf16":
            obstacles.append(f"{precision} has no kernel for packed texts")
        elif not torch.cuda.is_bf16_supported(including_emulation=False):
            obstacles.append("this GPU has no bf16")
        self.packs = not obstacles
        if obstacles:
            log.debug("Texts are padded: %s.", obstacles[0])

    def summary(self) -> str:
        """Describe in one line how the model encodes: pooling, head, similarity, lengths, prompts and precision."""
        first, *others = self.description.summary().split(", ")
        return ", ".join([first, *head_text(list(self.query.head)), *others, self.precision])

    @property
    def precision(self) -> str:
        """Precision of encoding: `int8`, or the precision of the weights, `fp32` or `bf16`."""
        dtype = {torch.float32: "fp32", torch.bfloat16: "bf16"}[next(self.parameters()).dtype]
        return "int8" if self.is_int8 else dtype

    def prompts_of(self, *names: str, task_type: str = TASK_TYPE) -> Prompts:
        """Return the prompts of a data set with these names; see `raytriever.models.prompts`."""
        prompts = self.prompts.of(*names, task_type=task_type)
        self.check_prompts(prompts)
        return prompts

    def check_prompts(self, prompts: Prompts) -> None:
        """Check that prompts fit the model and leave tokens for the text; raises `ModelError`."""
        if TITLE in prompts.passage and not self.description.pool_prompt:
            what = f"the model does not pool the prompt, but {TITLE} makes the prompts of passages differ"
            raise ModelError(what, setting("passage_prompt"), f"write {fill_title(prompts.passage)!r}")
        for side in SIDES:
            self.check_prompt(prompts[side], side)

    def check_prompt(self, prompt: str, side: Side) -> None:
        """Check that a prompt leaves tokens for the text; raises `ModelError`."""
        if prompt:
            [content] = self.contents([""], side, prompt)
            length = self.description.query_length if side == "query" else self.description.passage_length
            special = len(self.template.before) + len(self.template.after)
            check_length(prompt, len(content), length - special, side)

    def passes(self, queries: Buckets, passages: Buckets) -> list[tuple[Buckets, Side]]:
        """Return the passes that encode a batch: one for both sides if they are packed for one tower, else two. Queries
        come first, then passages."""
        if self.query is self.passage and is_packed(queries.buckets[0]) and is_packed(passages.buckets[0]):
            return [(join_sides(queries, passages), "passage")]
        return [(queries, "query"), (passages, "passage")]

    def contents(
        self, texts: Sequence[str], side: Side, prompt: str | Sequence[str] | None = None
    ) -> list[Int64[ndarray, " tokens"]]:
        """Return the token ids of each query or passage with its prompt, as prepared data sets store them.

        The token ids include no special tokens and are not truncated.

        Args:
            prompt: prompt of all texts, or a list with one for each; by default that of the side. If it is one prompt,
                `none` replaces its placeholder of the title.
        """
        if prompt is None:
            prompt = self.description.query_prompt if side == "query" else self.description.passage_prompt
        prompts = [fill_title(prompt)] * len(texts) if isinstance(prompt, str) else prompt
        encodings = self._content_tokenizer.encode_batch_fast(
            [prompt + text for prompt, text in zip(prompts, texts, strict=True)], add_special_tokens=False
        )
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def assemble(self, contents: Sequence[ndarray], side: Side) -> list[Int64[ndarray, " tokens"]]:
        """Truncate token ids to the maximum length of the side, and add special tokens. Do not pad."""
        length = self.description.query_length if side == "query" else self.description.passage_length
        return self.template.assemble(contents, length)

    def token_ids(self, texts: Sequence[str], side: Side, prompt: str | None = None) -> list[Int64[ndarray, " tokens"]]:
        """Tokenize and truncate texts with a prompt, by default the prompt of the side. Do not pad."""
        return self.assemble(self.contents(texts, side, prompt), side)

    def padded_length(self, tokens: int) -> int:
        """Return the length to which a text of this number of tokens is padded, in any batch.

        The rounding of attention depends on the padding, and in int8 the last bit of a state may change an integer. So
        an int8 batch has only texts of one padded length. Then no embedding depends on the other texts of its batch."""
        if not self.is_int8:
            return tokens
        most = max(self.description.query_length, self.description.passage_length)
        return max(tokens, min(-(-tokens // _INT8_MULTIPLE) * _INT8_MULTIPLE, most))

    def pad(self, token_ids: Sequence[ndarray], prompt_lengths: Sequence[int] | None = None) -> TokenBatch:
        """Pad texts to the longest one. Return `input_ids` and `attention_mask`, `[texts, tokens]` int64. With
        `prompt_lengths`, the result also has `left_out`; see `packing`."""
        tokens = self.template.pad(token_ids, self.padded_length(max(map(len, token_ids), default=0)))
        if prompt_lengths is not None:
            tokens["left_out"] = torch.tensor(prompt_lengths, dtype=torch.int64)
        return tokens

    def pack(self, token_ids: Sequence[ndarray], side: Side, prompt_lengths: Sequence[int] | None = None) -> TokenBatch:
        """Pack queries or passages without padding; see `packing`."""
        tower = self.query if side == "query" else self.passage
        return pack(token_ids, packed_attention.first_position(tower.backbone), prompt_lengths)

    def batch_of(
        self,
        contents: Sequence[ndarray],
        side: Side,
        prompt: str | Sequence[str] | None = None,
        tokens: int | None = None,
    ) -> Buckets:
        """Convert queries or passages to inputs of the encoder: packed, or in buckets of similar length.

        Args:
            contents: token ids of each text with its prompt and without special tokens, of any integer type.
            prompt: prompt with which all contents begin, or a list with one for each; by default that of the side.
            tokens: maximum number of tokens to encode at once, with padding; None for no limit.
        """
        on_cpu = self.device.type == "cpu"
        inputs, lengths = self.assemble(contents, side), self.prompt_lengths(prompt, side, len(contents))
        if self.packs:
            chunks = spans([len(ids) for ids in inputs], tokens)
            packed = [self.pack(inputs[texts], side, lengths and lengths[texts]) for texts in chunks]
            return Buckets(packed, torch.arange(len(inputs)))
        return fill_buckets(inputs, self.pad, CPU_BUCKET_TOKENS if on_cpu else None, lengths, tokens)

    def prompt_lengths(self, prompt: str | Sequence[str] | None, side: Side, texts: int) -> list[int] | None:
        """Return the number of first tokens of each text that are not pooled; None if prompts are pooled.

        Args:
            prompt: prompt of all texts, or a list with one for each; by default the prompt of the side.
        """
        if self.description.pool_prompt:
            return None
        if prompt is None:
            prompt = self.description.query_prompt if side == "query" else self.description.passage_prompt
        prompts = [prompt] * texts if isinstance(prompt, str) else prompt
        lengths = {prompt: self._prompt_tokens(prompt, side) for prompt in set(prompts)}
        return [lengths[prompt] for prompt in prompts]

    def tokenize(self, texts: Sequence[str], side: Side, tokens: int | None = None) -> Buckets:
        """Tokenize queries or passages, and return the result of `batch_of`."""
        return self.batch_of(self.contents(texts, side), side, tokens=tokens)

    @cached_property
    def _content_tokenizer(self) -> Any:
        """Copy of the tokenizer that computes contents. It never changes, so several threads can use it."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(content_tokenizer_json(self.tokenizer))

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        """Return the embeddings of queries or passages, `[texts, dim]`."""
        tower = self.query if side == "query" else self.passage
        inputs = dict(tokens)
        return tower(inputs, inputs.pop("left_out", self._left_out[side]))

    @cached_property
    def _left_out(self) -> dict[Side, int]:
        """For each side, the number of first tokens that are not pooled: those of the side's prompt, or 0."""
        return {side: (self.prompt_lengths(None, side, 1) or [0])[0] for side in SIDES}

    def _prompt_tokens(self, prompt: str, side: Side) -> int:
        """Return the number of tokens of a prompt, including special tokens except an end token."""
        if not prompt:
            return 0
        (ids,) = self.token_ids([""], side, prompt)
        return len(ids) - (int(ids[-1]) in self.tokenizer.all_special_ids)


@activity("loading the encoder")
def load_retriever(config: ModelConfig, dtype: torch.dtype = torch.float32, weights: bool = True) -> Retriever:
    """Load the model that a configuration names, in evaluation mode. Raise `ModelError` if the model cannot be found,
    trusted or read. Raise `ConfigError` if `truncate_dim` exceeds the embedding dimension.

    Args:
        config: settings of the model.
        dtype: type of the transformers' weights.
        weights: if False, only the sizes of the weights are checked, and the towers are on the meta device.
    """
    files = read_files(config)
    directory, description = files.directory, describe(files, config)
    transformers = {side: pipeline.transformer for side, pipeline in files.sides.items()}
    has_one = transformers["query"] is transformers["passage"]
    if description.towers == "shared" and not has_one:
        raise ModelError("has two towers", str(directory), f"leave out {setting('towers', 'shared')}")
    tokenizer = load_tokenizer(transformers["query"])
    if not has_one:
        other = load_tokenizer(transformers["passage"])
        if any(read(tokenizer) != read(other) for read in (content_tokenizer_json, Template.of)):
            remedy = "use a model with one tokenizer for both sides"
            raise ModelError("has two different tokenizers", str(directory), remedy)
    append_end_token(tokenizer, description.append_eos, description.pooling, directory)
    heads = head_modules(files, description, config)
    query = _load_tower(transformers["query"], description, heads["query"], {}, dtype, weights)
    if description.towers == "separate":
        modules = {} if has_one else _loaded(heads["query"], query)
        passage = _load_tower(transformers["passage"], description, heads["passage"], modules, dtype, weights)
    elif heads["query"] == heads["passage"]:
        passage = query
    else:
        passage = _load_tower(
            query.backbone, description, heads["passage"], _loaded(heads["query"], query), dtype, weights
        )
    if query.dim != passage.dim:
        reason = f"embeds queries in {query.dim} dimensions, but passages in {passage.dim}"
        raise ModelError(reason, str(directory), "use a model with equal dimensions")
    if description.truncate_dim is not None and description.truncate_dim > query.full_dim:
        raise ConfigError(
            f"{description.truncate_dim} is out of range, "
            f"embeddings of {config.model} have {query.full_dim} components",
            setting("truncate_dim"),
            f"give at most {query.full_dim}",
        )
    for tower, length in ((query, description.query_length), (passage, description.passage_length)):
        check_tokens(tokenizer, tower.backbone, directory)
        _check_length(tower.backbone, length, directory)
        if _learned_positions(tower.backbone) is not None:
            # Learned positions begin at the first column. Padding on the left would shift the positions of a text, and
            # its embedding would depend on the other texts of a batch. The saved tokenizer also pads on the right.
            tokenizer.padding_side = "right"
    retriever = Retriever(query, passage, tokenizer, description, prompt_table(description, config)).eval()
    retriever.check_prompts(retriever.prompts.of())
    return retriever


def _load_tower(
    source: Transformer | nn.Module,
    description: Description,
    head: Sequence[Module],
    loaded: dict[Path, nn.Module],
    dtype: torch.dtype,
    weights: bool,
) -> Encoder:
    """Load one tower.

    Args:
        source: files of the transformer, or the loaded transformer of the other tower.
        loaded: modules of the other tower, by folder. This tower reuses them.
        dtype: type of the transformer's weights. Modules after the pooling are float32.
    """
    with nullcontext() if weights else torch.device("meta"):
        backbone = source if isinstance(source, nn.Module) else load_backbone(source, dtype, weights)
        if isinstance(source, Transformer):
            set_bidirectional(backbone, description.bidirectional, source.folder)
        tower = Encoder(backbone, description.pooling, description.similarity == "cosine", description.truncate_dim)
        tower.head = load_head(head, tower.pooled_dim, loaded, weights)
    return tower


def _loaded(modules: Sequence[Module], tower: Encoder) -> dict[Path, nn.Module]:
    return {module.folder: loaded for module, loaded in zip(modules, tower.head, strict=True)}


def _learned_positions(backbone: nn.Module) -> nn.Embedding | None:
    """Return the embedding of positions of a BERT- or GPT-2-like model; None for rotary or relative positions."""
    for name, module in backbone.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in ("position_embeddings", "wpe"):
            return module
    return None


def _check_length(backbone: nn.Module, length: int, directory: Path) -> None:
    table = _learned_positions(backbone)
    if table is None:
        return
    # In RoBERTa-like models, the positions of a text begin after the padding position.
    positions = table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    if length > positions:
        remedy = f"give {setting('query_length')} and {setting('passage_length')} of at most {positions}"
        raise ModelError(f"has {positions} positions, but texts may have {length} tokens", str(directory), remedy)
