"""A sentence encoder as the baselines use it: tokenise, run, pool exactly as the encoder does, and count the passes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file, logging

from ...batch_hardkuma import TokenBatch
from ...configuration_hardkuma import HardKumaConfig, position_limit
from ...encoder_hardkuma import (
    EncoderParts,
    Projection,
    encode,
    encode_kept,
    load_encoder,
    resolve_encoder,
    special_token_ids,
)
from ...modeling_hardkuma import HardKumaModel
from ...pooling_hardkuma import normalize, pool
from .words import Span, WordScores, combine_tokens, text_words, tokens_of_words

logger = logging.get_logger(__name__)

Value = Callable[[Tensor, Tensor], Tensor]


def similarity(vectors: Tensor, whole: Tensor) -> Tensor:
    """(n,) cosines of embeddings (n, dim) to those of their texts, (n, dim) or (dim,): what baselines explain, unless they
    are given another `value` of these two."""
    return (normalize(vectors) * normalize(whole)).sum(-1)


@dataclass
class Tokens:
    """One tokenised text.

    Attributes:
        ids, offsets, content: (length,) token ids, character offsets, and whether a token is content (not special).
        types: (length,) token types, where the tokenizer has them.
    """

    text: str
    ids: list[int]
    offsets: list[Span]
    content: list[bool]
    types: list[int] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Passes:
    """How many sequences went through the encoder, forwards and backwards."""

    forward: int = 0
    backward: int = 0


class SentenceEncoder:
    """An encoder with its tokenizer and its own pooling; `passes` counts every sequence that it runs.

    Make one with `from_model`, `from_parts` or `load`.

    Attributes:
        encoder, tokenizer: the transformers objects.
        model: the HardKumaModel that it came from, or None; the `gates` method needs one.
        passes: sequences run so far.
        token_budget: tokens (with padding) per batch.
    """

    def __init__(
        self,
        encoder: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        pooling_modes: Sequence[str] = ("mean",),
        project: Callable[[Tensor], Tensor] | None = None,
        special_ids: Iterable[int] | None = None,
        max_length: int | None = None,
        model: HardKumaModel | None = None,
        token_budget: int = 4096,
    ):
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} is a slow tokenizer without character offsets; load it with use_fast=True."
            )
        self.encoder, self.tokenizer, self.model = encoder.eval(), tokenizer, model
        self.pooling_modes = list(pooling_modes)
        self.project = project or (lambda vectors: vectors)
        self.special_ids = frozenset(special_token_ids(tokenizer) if special_ids is None else special_ids)
        self.max_length = max_length
        self.token_budget = token_budget
        self.passes = Passes()

    # ---- making one -------------------------------------------------------------------------------------------------

    @classmethod
    def from_model(cls, model: HardKumaModel, **options: Any) -> SentenceEncoder:
        """The encoder under a HardKumaModel; embeddings equal its `anchor_embedding`."""
        config = model.config
        return cls(
            model.encoder,
            model.tokenizer,
            pooling_modes=config.pooling_modes,
            project=model.embed_pooled,
            special_ids=config.special_token_ids,
            max_length=_max_length(config.max_seq_length, model.tokenizer, config.encoder_config),
            model=model.eval(),
            **options,
        )

    @classmethod
    def from_parts(cls, parts: EncoderParts, **options: Any) -> SentenceEncoder:
        """An encoder as `load_encoder` returns it."""
        projections = [Projection(spec).eval().requires_grad_(False) for spec in parts.projections]
        for projection, weights in zip(projections, parts.projection_weights, strict=True):
            projection.linear.load_state_dict(weights)
            projection.to(parts.encoder.device)

        def project(vectors: Tensor) -> Tensor:
            for projection in projections:
                vectors = projection(vectors)
            return normalize(vectors) if parts.normalize else vectors

        modes = [parts.pooling_mode] if isinstance(parts.pooling_mode, str) else parts.pooling_mode
        length = _max_length(parts.max_seq_length, parts.tokenizer, parts.encoder.config)
        parts.encoder.requires_grad_(False)
        return cls(parts.encoder, parts.tokenizer, modes, project, max_length=length, **options)

    @classmethod
    def load(cls, name_or_path: str | Path, **options: Any) -> SentenceEncoder:
        """A HardKuma checkpoint, a sentence-transformers folder, a transformers folder or a Hub id."""
        if _model_type(name_or_path) == HardKumaConfig.model_type:
            return cls.from_model(HardKumaModel.from_pretrained(name_or_path), **options)
        return cls.from_parts(load_encoder(name_or_path), **options)

    @property
    def device(self) -> torch.device:
        return self.encoder.device

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokens with offsets, cut at the encoder's length; a warning says how many texts were cut."""
        if not texts:
            return []
        limit = {} if self.max_length is None else {"truncation": True, "max_length": self.max_length}
        coded = self.tokenizer(list(texts), return_offsets_mapping=True, **limit)
        tokens = []
        for i, text in enumerate(texts):
            ids = coded["input_ids"][i]
            types = coded["token_type_ids"][i] if "token_type_ids" in coded else None
            offsets = [(int(start), int(end)) for start, end in coded["offset_mapping"][i]]
            content = [token not in self.special_ids for token in ids]
            tokens.append(Tokens(text, ids, offsets, content, types))
        cut = sum(bool(encoding.overflowing) for encoding in coded.encodings)
        if cut:
            logger.warning(
                "%d of %d texts are longer than %d tokens and were cut; words beyond have no score of their own.",
                cut,
                len(tokens),
                self.max_length,
            )
        return tokens

    def batches(self, tokens: Sequence[Tokens], progress: bool = False) -> Iterator[tuple[list[int], TokenBatch]]:
        """Batches of similar length, longest first (so that memory runs out at once or never), and whose rows they are."""
        order = sorted((i for i in range(len(tokens)) if len(tokens[i])), key=lambda i: -len(tokens[i]))
        with tracker(len(order), progress, "") as bar:
            while order:
                size = max(1, self.token_budget // len(tokens[order[0]]))
                index, order = order[:size], order[size:]
                yield index, self._pad([tokens[i] for i in index])
                bar.update(len(index))

    def _pad(self, rows: list[Tokens]) -> TokenBatch:
        length = max(len(row) for row in rows)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([row.ids + [pad] * (length - len(row)) for row in rows], device=self.device)
        mask = torch.tensor([[True] * len(row) + [False] * (length - len(row)) for row in rows], device=self.device)
        content = torch.tensor([row.content + [False] * (length - len(row)) for row in rows], device=self.device)
        types = None
        if rows[0].types is not None:
            known = [[*(row.types or []), *[0] * (length - len(row))] for row in rows]
            types = torch.tensor(known, device=self.device)
        return TokenBatch(ids, None, mask, content, types, None, torch.zeros_like(content))

    # ---- running and pooling ----------------------------------------------------------------------------------------

    def states(self, batch: TokenBatch) -> Tensor:
        """Token states (batch, length, hidden) of one encoder call; counted. Gradients follow the caller's mode."""
        self.passes.forward += len(batch.mask)
        return encode(self.encoder, batch).states

    def pooled(self, states: Tensor, weights: Tensor) -> Tensor:
        """Sentence vectors of sets of tokens: (batch, length, hidden), (batch, sets, length) -> (batch, sets, dim)."""
        return self.project(pool(states, weights, self.pooling_modes))

    @torch.no_grad()
    def embed(
        self, tokens: Sequence[Tokens], kept: Sequence[Sequence[bool]] | None = None, progress: bool = False
    ) -> Tensor:
        """Sentence vectors (texts, dim), on the CPU.

        Args:
            kept: for each text, (length,) which tokens are there, at their own positions; the encoder sees no other.
                Special tokens stay in any case.
        """
        nothing = torch.zeros(1, 1, self.encoder.config.hidden_size, dtype=self.encoder.dtype, device=self.device)
        empty = self.pooled(nothing, nothing[..., :1])[0].cpu()  # of a text without any token, not even special ones
        vectors = empty.repeat(len(tokens), 1)
        for index, batch in self.batches(tokens, progress):
            mask = batch.mask
            if kept is not None:
                rows = [list(kept[i]) + [False] * (mask.shape[1] - len(kept[i])) for i in index]
                mask = mask & (torch.tensor(rows, dtype=torch.bool, device=mask.device) | ~batch.content)
            self.passes.forward += len(index)
            pooled = encode_kept(self.encoder, batch, mask[:, None], self.pooling_modes)
            vectors[index] = self.project(pooled)[:, 0].to(vectors)
        return vectors

    def encode(self, texts: Sequence[str], progress: bool = False) -> Tensor:
        """Sentence vectors (texts, dim): what `SentenceTransformer.encode` gives for the same encoder."""
        return self.embed(self.tokenize(texts), progress=progress)

    # ---- counting ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def counting(self) -> Iterator[Passes]:
        """What the block inside runs, by itself; the running total goes on."""
        used, before = Passes(), Passes(self.passes.forward, self.passes.backward)
        try:
            yield used
        finally:
            used.forward = self.passes.forward - before.forward
            used.backward = self.passes.backward - before.backward


def score_tokens(
    function: Callable[..., Tensor],
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    aggregate: str = "max",
    **options: Any,
) -> list[WordScores]:
    """Word scores of a method that scores tokens: function(encoder, batch, **options) -> (batch, length)."""
    spans, tokens = text_words(texts, words), encoder.tokenize(texts)
    values: list[list[float]] = [[0.0] * len(item) for item in tokens]
    for index, batch in encoder.batches(tokens):
        rows = function(encoder, batch, **options).float().cpu().tolist()
        for row, i in zip(rows, index, strict=True):
            values[i] = row[: len(tokens[i])]
    return [
        combine_tokens(item.text, spans[i], tokens_of_words(item.offsets, item.content, spans[i]), values[i], aggregate)
        for i, item in enumerate(tokens)
    ]


def tracker(total: int, progress: bool, label: str) -> Any:
    """A progress bar to be used in a `with`; silent unless asked for."""
    from tqdm.auto import tqdm

    return tqdm(total=total, desc=label or None, disable=not progress, leave=False)


def _model_type(name_or_path: str | Path) -> str | None:
    """What the checkpoint's config.json says it is; None where there is none (other errors are for the loader)."""
    try:
        path = cached_file(resolve_encoder(name_or_path), "config.json", _raise_exceptions_for_missing_entries=False)
        return None if path is None else json.loads(Path(path).read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError):
        return None


def _max_length(length: int | None, tokenizer: PreTrainedTokenizerBase, config: Any) -> int | None:
    known = [length, position_limit(config)]
    known += [tokenizer.model_max_length] if tokenizer.model_max_length < 1_000_000 else []
    return min((value for value in known if value is not None), default=None)
