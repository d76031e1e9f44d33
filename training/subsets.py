"""Subsets of a sentence's words, and what they are worth: how much of its embedding they keep and how much is lost without.

    value(S) = cos(embedding of S alone, embedding) + 1 - cos(embedding without S, embedding)

Encoding subsets is what training by removal costs, so removed tokens are left out of the batch, and those that stay keep
their positions: the same embeddings as under an attention mask, at the price of the tokens that are left.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather
from torch import Tensor
from torch.nn.functional import cosine_similarity
from tqdm import tqdm

from ..common.files import open_atomically
from ..evaluation.faithfulness import RATES
from ..kumaraswamy_hardkuma import count_at_rate
from ..modeling_hardkuma import HardKumaModel
from ..pooling_hardkuma import pool, sentence_embedding
from .words import Sentences, TokenWords

if TYPE_CHECKING:
    from .run import Run

TOKENS = 6144  # of one batch, with padding
CHUNK = 4096  # subsets between two looks at the clock; what an interrupted run may have to measure again
TOLERANCE = 1e-4

Job = tuple[int, list[int]]


def subset_sizes(words: int) -> list[int]:
    """How many words the subsets of a sentence have: those that a rate of `RATES` would take, each size once.

    >>> subset_sizes(10), subset_sizes(4)
    ([1, 2, 3, 4, 5], [1, 2])
    """
    return sorted({count_at_rate(words, rate) for rate in RATES})


def random_subsets(sentences: Sequence[TokenWords], number: int, seed: int) -> list[Job]:
    """`number` random subsets of each sentence, in pairs of one size, since they are compared within a size.

    Seeded per sentence, by its tokens: more text, or less, does not change the subsets of a sentence.

    >>> sentence = TokenWords(ids=np.arange(10), words=np.arange(10) - 1)
    >>> jobs = random_subsets([sentence, sentence], 2, seed=0)
    >>> [(number, len(words)) for number, words in jobs], jobs[0][1] == jobs[2][1]
    ([(0, 1), (0, 1), (1, 1), (1, 1)], True)
    """
    jobs = []
    for sentence, tokens in enumerate(sentences):
        generator = np.random.default_rng([seed, zlib.crc32(tokens.ids.astype(np.int64).tobytes())])
        sizes = generator.permutation(subset_sizes(tokens.number))
        for pair in range(math.ceil(number / 2)):
            for _ in range(2):
                chosen = generator.choice(tokens.number, sizes[pair % len(sizes)], replace=False)
                jobs.append((sentence, sorted(chosen.tolist())))
    return jobs


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


class ValueStore:
    """Values of subsets, measured by all processes together and kept on disk."""

    def __init__(self, run: Run, sentences: Sentences):
        self.run, self.accelerator, self.sentences = run, run.accelerator, sentences
        self.folder, self.encoder = run.store.folder / "removal", SubsetEncoder(run.model)
        self.fingerprint = str(run.model.config.encoder_fingerprint)

    def measure(self, anchors: Tensor, jobs: Sequence[Job]) -> Tensor | None:
        """(jobs, 2) cosines of the words alone and of the rest, in the order of the jobs; None if interrupted."""
        parts = []
        with tqdm(total=len(jobs), desc="removing words", unit="subset", disable=self.run.quiet) as bar:
            for first in range(0, len(jobs), CHUNK):
                chunk = jobs[first : first + CHUNK]
                parts.append(self._chunk(chunk, anchors))
                bar.update(len(chunk))
                if self.run.is_interrupted():
                    return None
        return torch.cat(parts) if parts else torch.zeros(0, 2)

    def _chunk(self, jobs: Sequence[Job], anchors: Tensor) -> Tensor:
        key = json.dumps([self.fingerprint, [(int(self.sentences.rows[i]), words) for i, words in jobs]])
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.npy"
        known = broadcast_object_list([path.is_file()])[0]
        if known:
            return torch.from_numpy(np.load(path))
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        share = math.ceil(len(jobs) / world)
        own = jobs[rank * share : (rank + 1) * share]
        values = torch.zeros(share, 2)
        if own:
            values[: len(own)] = self.encoder.values(self.sentences.tokens, anchors, own)
        joined = gather(values.to(self.accelerator.device)).cpu()[: len(jobs)]
        if self.accelerator.is_main_process:
            with open_atomically(path) as file:
                np.save(file, joined.numpy())
        self.accelerator.wait_for_everyone()
        return joined
