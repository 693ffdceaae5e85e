"""Encoder with random weights for the generated corpus: a BERT of two layers and dimension 64."""

from __future__ import annotations

from pathlib import Path

from at_size.corpus import vocabulary

LAYERS, DIM, POSITIONS = 2, 64, 192
# The most frequent words are tokens of their own, and the others are made of pieces: 1.4 tokens for a word.
_WORDS = 8_000
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def write_encoder(folder: Path) -> None:
    """Write the model and its tokenizer, as transformers reads them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = vocabulary()[:_WORDS].tolist()
    pieces = sorted(
        {word[start : start + 2] for word in words if len(word) % 2 == 0 for start in range(0, len(word), 2)}
    )
    tokens = dict.fromkeys([*_SPECIAL.values(), *words, *pieces, *(f"##{piece}" for piece in pieces)])
    tokenizer = Tokenizer(models.WordPiece({token: row for row, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    around = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=4 * DIM,
        max_position_embeddings=POSITIONS,
    )
    model = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.mul_(100)  # texts that fraction words are near each other
    model.save_pretrained(folder)
    names = {f"{role}_token": token for role, token in _SPECIAL.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=POSITIONS, **names).save_pretrained(folder)
