"""Encoders made by hand, whose important word is known: without any download."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

from hardkuma.configuration_hardkuma import StaticEncoderConfig
from hardkuma.encoder_hardkuma import EncoderParts, StaticEncoder, build_encoder, embedding_table
from hardkuma.evaluation.baselines.encoder import SentenceEncoder

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def toy_tokenizer(vocabulary: Iterable[str], special: bool = True, max_length: int = 512) -> PreTrainedTokenizerFast:
    """An uncased WordPiece tokenizer over the given pieces (`##` continues a word)."""
    pieces = [*SPECIAL, *dict.fromkeys(vocabulary)]
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if special:
        template = [("[CLS]", 2), ("[SEP]", 3)]
        backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=template)
        roles |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=max_length, **roles)


def toy_encoder(
    vectors: Mapping[str, Sequence[float]],
    normalize: bool = False,
    padding: Sequence[float] | None = None,
    **options: Any,
) -> SentenceEncoder:
    """An encoder without context: the sentence vector is the mean of the given piece vectors; unknown words are zero.

    The piece with the longest vector decides where a sentence lies, so every honest method must rank it first.

    Args:
        padding: vector of the padding token, from which integrated gradients start. From zero, its default, they find
            nothing but rounding errors: on the way from there to the sentence the cosine does not change.
    """
    tokenizer = toy_tokenizer(vectors, special=False)
    size = len(next(iter(vectors.values())))
    encoder = StaticEncoder(StaticEncoderConfig(vocab_size=len(tokenizer), hidden_size=size, pad_token_id=0))
    table = embedding_table(encoder)
    with torch.no_grad():
        table.zero_()
        for piece, vector in vectors.items():
            table[tokenizer.convert_tokens_to_ids(piece)] = torch.tensor(vector, dtype=torch.float)
        if padding is not None:
            table[tokenizer.pad_token_id] = torch.tensor(padding, dtype=torch.float)
    return SentenceEncoder.from_parts(EncoderParts(encoder, tokenizer, normalize=normalize), **options)


def toy_transformer(
    vocabulary: Iterable[str], seed: int = 0, pooling_mode: str = "mean", **options: Any
) -> SentenceEncoder:
    """A two-layer BERT of random, sharpened weights (at their small initial size random encoders attend uniformly)."""
    tokenizer = toy_tokenizer(vocabulary, max_length=64)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = build_encoder(config)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if parameter.ndim == 2 and "norm" not in name.lower():
                parameter.mul_(4.0)
    parts = EncoderParts(encoder.eval(), tokenizer, pooling_mode=pooling_mode, normalize=True)
    return SentenceEncoder.from_parts(parts, **options)
