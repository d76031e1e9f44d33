"""What subsets of a sentence's words are worth: how much of its embedding they keep, and how much is lost without them.

    value(S) = cos(embedding of S alone, embedding) + 1 - cos(embedding without S, embedding)

Encoding millions of subsets is what training by removal costs, so removed tokens are left out of the batch, and those that
stay keep their positions: the same embeddings as under an attention mask, at the price of the tokens that are left.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..modeling_hardkuma import HardKumaModel
from ..pooling_hardkuma import pool, sentence_embedding

TOKENS = 6144  # of one batch, with padding
TOLERANCE = 1e-4


@dataclass(frozen=True)
class TokenWords:
    """The tokens of a sentence, and which word each belongs to.

    Attributes:
        ids: (length,) token ids.
        words: (length,) number of each token's word, -1 for special tokens, which are never removed.
    """

    ids: np.ndarray
    words: np.ndarray

    @property
    def number(self) -> int:
        """How many words there are."""
        return int(self.words.max(initial=-1)) + 1


class SubsetEncoder:
    """Runs a model's encoder over parts of sentences.

    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> ids = np.array(model.tokenizer("Marie Curie moved.")["input_ids"])
    >>> encoder = SubsetEncoder(model)
    >>> whole, part = encoder.embed([(ids, np.ones(len(ids), dtype=bool)), (ids, ids != ids[3])])
    >>> bool(torch.allclose(whole, model(input_ids=torch.tensor(ids)[None]).anchor_embedding[0], atol=1e-5))
    True
    """

    def __init__(self, model: HardKumaModel):
        self.model = model
        # The first position, where the encoder takes positions from outside; None where tokens must stay in place.
        self.first_position: int | None = None
        self.first_position = self._find_first_position()

    @torch.inference_mode()
    def embed(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Tensor:
        """Embeddings, (rows, dim) on the CPU, of (token ids, which of them are kept)."""
        lengths = [int(kept.sum()) if self.first_position is not None else len(ids) for ids, kept in rows]
        order = sorted(range(len(rows)), key=lengths.__getitem__, reverse=True)
        vectors: list[Tensor] = []
        start = 0
        while start < len(order):
            size = max(1, TOKENS // max(1, lengths[order[start]]))
            vectors.append(self._embed_batch([rows[i] for i in order[start : start + size]]).float().cpu())
            start += size
        result = torch.empty(len(rows), vectors[0].shape[1])
        result[order] = torch.cat(vectors)
        return result

    def values(self, sentences: Sequence[TokenWords], anchors: Tensor, jobs: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
        """(jobs, 2): cosine to the sentence's embedding of the words alone, and of the sentence without them.

        Args:
            anchors: (sentences, dim) embeddings of the whole sentences.
            jobs: number of a sentence, and the numbers of some of its words.
        """
        rows = []
        for number, words in jobs:
            tokens = sentences[number]
            inside, special = np.isin(tokens.words, np.asarray(words)), tokens.words < 0
            rows += [(tokens.ids, inside | special), (tokens.ids, ~inside)]
        vectors = self.embed(rows).unflatten(0, (-1, 2))
        of_jobs = anchors[[number for number, _ in jobs]][:, None]
        return cosine_similarity(vectors, of_jobs, dim=-1)

    def _embed_batch(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Tensor:
        model, first = self.model, self.first_position
        packed = first is not None
        length = max(int(kept.sum()) if packed else len(ids) for ids, kept in rows)
        ids = np.zeros((len(rows), max(length, 1)), dtype=np.int64)
        mask, positions = np.zeros_like(ids), np.zeros_like(ids)
        for row, (tokens, kept) in enumerate(rows):
            places = np.flatnonzero(kept) if packed else np.arange(len(tokens))
            ids[row, : len(places)], positions[row, : len(places)] = tokens[places], places
            mask[row, : len(places)] = kept[places]
        tensors = [torch.from_numpy(array).to(model.device) for array in (ids, mask, positions)]
        extra = {} if first is None else {"position_ids": tensors[2] + first}
        states = model.encoder(input_ids=tensors[0], attention_mask=tensors[1], **extra).last_hidden_state
        pooled = pool(states, tensors[1][:, None], model.config.pooling_modes)
        return sentence_embedding(model, pooled)[:, 0]

    def _find_first_position(self) -> int | None:
        """Tried out: families count positions from 0 or from behind the padding's, or do not take any from outside."""
        model = self.model
        if "position_ids" not in inspect.signature(model.encoder.forward).parameters:
            return None
        vocabulary = model.config.vocab_size
        ids = np.arange(9) * (vocabulary // 9)
        kept = np.arange(9) % 3 != 1
        probe = [(ids, kept), (ids[:7], kept[:7])]
        expected = self._embed_batch(probe)
        for first in (0, (model.encoder.config.pad_token_id or 0) + 1):
            self.first_position = first
            try:
                found = self._embed_batch(probe)
            except (IndexError, RuntimeError, ValueError):
                continue
            if bool(torch.allclose(found, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max()))):
                return first
        return None
