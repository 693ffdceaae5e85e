"""Decoders as encoders: the end token for last-token pooling, and attention to later tokens.

In a decoder, the state of a token depends only on this and earlier tokens, so only the last state depends on the whole
text. Models such as Qwen3-Embedding and E5-Mistral are trained with an end token after every text, and pool its state.
If the tokenizer does not append this token, the state of the last word is silently pooled instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from raytriever.core.errors import ConfigError, ModelError, flag_of, setting
from raytriever.models.directory.model_files import log_once
from raytriever.models.tokenization import Template

_PROBE_TOKENS = 6


def append_end_token(tokenizer: Any, append_eos: str, pooling: str, directory: Path) -> None:
    """Make a tokenizer append its end token to every text, in place. Or warn that last-token pooling gets no end token.

    The change is made in the post-processor, which is stored in `tokenizer.json`. So in every library, the saved
    tokenizer appends the token. A tokenizer that already ends its texts with a special token does not change. Raise
    `ConfigError` if the tokenizer has no end token to append.

    Args:
        append_eos: `yes` appends the token; `auto` and `no` change nothing, and `auto` warns.
        pooling: pooling modes, joined by `+`.
    """
    if append_eos == "no" or (append_eos == "auto" and "last" not in pooling.split("+")):
        return
    template = Template.of(tokenizer)
    if template.after:
        return
    if append_eos == "auto":
        log_once(
            f"{directory}: last-token pooling reads the last word, because the tokenizer appends no end token. "
            f"Give {flag_of('append_eos')} yes if the model was trained with one, else {flag_of('append_eos')} no."
        )
        return
    if tokenizer.eos_token is None:
        remedy = 'set "eos_token" in tokenizer_config.json, or leave the flag out'
        raise ConfigError(f"the tokenizer of {directory} has no end token", setting("append_eos", "yes"), remedy)
    _set_template(tokenizer, [*tokenizer.convert_ids_to_tokens(list(template.before))], tokenizer.eos_token)


def _set_template(tokenizer: Any, before: list[str], end: str) -> None:
    """Replace the template in a tokenizer's post-processor. Keep its byte-level step, which sets offsets."""
    from tokenizers import processors

    backend = tokenizer.backend_tokenizer
    single = [*before, "$A", end]
    pair = [*single, *(f"{token}:1" for token in before), "$B:1", f"{end}:1"]
    template = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, backend.token_to_id(token)) for token in {*before, end}]
    )
    # With two templates in a sequence, the library would abort with a panic.
    present: Any = backend.post_processor
    is_sequence = isinstance(present, processors.Sequence)
    steps = list(present) if is_sequence else [present]
    offsets = [step for step in steps if isinstance(step, processors.ByteLevel)]
    backend.post_processor = processors.Sequence([*offsets, template]) if offsets else template


def set_bidirectional(backbone: Any, bidirectional: bool | None, directory: Path) -> None:
    """Let every token attend to later tokens, or only to earlier ones, in place.

    `config.is_causal` decides this in transformers 5, and it is saved in `config.json`. Raise `ModelError` if
    transformers ignores the setting for this model.

    Args:
        bidirectional: None leaves the model as its `config.json` says.
    """
    config = backbone.config
    is_set = getattr(config, "is_causal", None) is False or bool(getattr(config, "use_bidirectional_attention", False))
    if bidirectional is None or (bidirectional and is_set):
        return
    config.is_causal = not bidirectional
    if not bidirectional and hasattr(config, "is_decoder"):
        # In BERT-like models, `is_decoder` determines the mask. They use `is_causal` only in batches without padding.
        config.is_decoder = True
    if any(attends_to_later_tokens(backbone, padding) != bidirectional for padding in (0, 1)):
        flag, tokens = setting("bidirectional", bidirectional), "only to earlier" if bidirectional else "also to later"
        what = f"{type(backbone).__name__} attends {tokens} tokens, even with {flag}"
        raise ModelError(what, str(directory), f"leave out {flag}, or choose another model")


@torch.no_grad()
def attends_to_later_tokens(backbone: Any, padding: int = 0) -> bool:
    """Return True if later tokens affect the state of the first token. The model must be in evaluation mode.

    Args:
        padding: number of last tokens that are masked as padding.
    """
    embeddings = backbone.get_input_embeddings().weight
    tokens = torch.arange(2 * _PROBE_TOKENS, device=embeddings.device).view(2, -1) % len(embeddings)
    tokens[:, 0] = 0
    mask = (torch.arange(_PROBE_TOKENS, device=tokens.device) < _PROBE_TOKENS - padding).long().expand(2, -1)
    states = backbone(input_ids=tokens, attention_mask=mask).last_hidden_state[:, 0]
    rounding = 1e-5 if states.dtype == torch.float32 else 1e-2
    return bool((states[0] - states[1]).abs().max() > rounding * states.abs().max())


def disable_cache(config: Any) -> None:
    """Disable the key-value cache, which only generation needs, in a transformers configuration."""
    if hasattr(config, "use_cache"):
        config.use_cache = False
