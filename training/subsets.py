"""Subsets of a sentence's words, and what they are worth: how much of its embedding they keep and how much is lost without.

    value(S) = cos(embedding of S alone, embedding) + 1 - cos(embedding without S, embedding)

Encoding subsets is what the removal objective costs; `HardKumaModel.encode_subsets` leaves removed tokens out of the batch.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather
from torch import Tensor
from torch.nn.functional import cosine_similarity
from tqdm import tqdm

from ..common.files import open_atomically
from ..evaluation.faithfulness import RATES
from ..gate_head_hardkuma import count_at_rate
from ..modeling_hardkuma import HardKumaModel
from .words import Sentences, TokenWords

if TYPE_CHECKING:
    from .run import Run

BATCH = 512  # subsets that are encoded together
CHUNK = 4096  # subsets between two looks at the clock; what an interrupted run may have to measure again

Job = tuple[int, list[int]]  # number of a sentence, and the numbers of some of its words


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


@torch.inference_mode()
def encode_jobs(
    model: HardKumaModel, sentences: Sequence[TokenWords], jobs: Sequence[Job]
) -> Iterator[tuple[list[int], Tensor]]:
    """Embeddings of subsets, batch after batch: numbers of jobs, and (batch, 2, dim) on the CPU, of the words alone and of
    the sentence without them."""
    # Sentences of like length share a batch.
    order = sorted(range(len(jobs)), key=lambda job: len(sentences[jobs[job][0]].ids))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        length = max(len(sentences[jobs[job][0]].ids) for job in chosen)
        ids, mask = (torch.zeros(len(chosen), length, dtype=torch.long) for _ in range(2))
        kept = torch.zeros(len(chosen), 2, length)
        for row, job in enumerate(chosen):
            tokens, words = sentences[jobs[job][0]], jobs[job][1]
            inside = torch.from_numpy(np.isin(tokens.words, words))
            ids[row, : len(inside)] = torch.from_numpy(tokens.ids)
            mask[row, : len(inside)] = 1
            kept[row, :, : len(inside)] = torch.stack([inside, ~inside])
        yield chosen, model.encode_subsets(*(tensor.to(model.device) for tensor in (ids, mask, kept))).float().cpu()


def subset_cosines(model: HardKumaModel, sentences: Sequence[TokenWords], anchors: Tensor, jobs: Sequence[Job]) -> Tensor:
    """(jobs, 2) on the CPU: cosine to the sentence's embedding of the words alone, and of the sentence without them.

    Args:
        anchors: (sentences, dim) embeddings of the whole sentences.
    """
    result = torch.zeros(len(jobs), 2)
    for chosen, vectors in encode_jobs(model, sentences, jobs):
        whole = anchors[[jobs[job][0] for job in chosen]][:, None]
        result[chosen] = cosine_similarity(vectors, whole, dim=-1)
    return result


class ValueStore:
    """Cosines of subsets, measured by all processes together and kept on disk."""

    def __init__(self, run: Run, sentences: Sentences):
        self.run, self.accelerator, self.sentences = run, run.accelerator, sentences
        self.folder, self.fingerprint = run.store.folder / "removal", run.model.encoder_fingerprint()

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
            values[: len(own)] = subset_cosines(self.run.model, self.sentences.tokens, anchors, own)
        joined = gather(values.to(self.accelerator.device)).cpu()[: len(jobs)]
        if self.accelerator.is_main_process:
            with open_atomically(path) as file:
                np.save(file, joined.numpy())
        self.accelerator.wait_for_everyone()
        return joined
