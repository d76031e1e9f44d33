"""The removal objective: gates whose most probable words, at any rate, keep a sentence's embedding, and lose it if removed.

Subsets S of a sentence's words are encoded (training/subsets.py), and the gates' log-odds are fitted so that their sum over
S tells what S is worth. With z_w the log-odds of word w and v(S) the value of S,

    loss = mean over subsets of (SCALE * (sum_{w in S} z_w - mean over S' ~ S) - (v(S) - mean over S' ~ S of v(S')))^2

where S' ~ S are the measured subsets of the same sentence *and* size: what a larger subset is worth more says nothing about
which words to take. The sum of scores that fits random subsets best is an estimate of Shapley values. (Subsets that the
gates themselves would choose, in further rounds, brought nothing: docs/experiments.md.)

No label takes part. The encoder is frozen, so what the selector reads of each word is computed once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather
from torch import Tensor
from tqdm import tqdm

from ..common.files import open_atomically
from ..gates_hardkuma import make_gate
from ..modeling_hardkuma import HardKumaModel
from ..selectors_hardkuma import Selector
from .recipe import Recipe
from .store import StateStore
from .subsets import SubsetEncoder, TokenWords

RATES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the subsets' sizes
SCALE = 0.1  # what one unit of log-odds is worth; at .05 the best words come near the bound of the shapes
CHUNK = 4096  # subsets between two looks at the clock; what an interrupted run may have to measure again
BATCH = 64  # sentences of one step of the fit
INPUT_DROPOUT, HIDDEN_DROPOUT = 0.2, 0.3
MIN_WORDS = 4  # a sentence of fewer has no choice to make


@dataclass(frozen=True)
class Removal:
    """What happened, for the log and the card.

    Attributes:
        sentences, subsets: how many were used.
        unexplained: what share of the values' variance, within a sentence and a size, the sums of log-odds leave.
    """

    sentences: int
    subsets: int
    unexplained: float


def train_by_removal(
    model: HardKumaModel,
    store: StateStore,
    rows: np.ndarray,
    recipe: Recipe,
    *,
    selector: int = 0,
    accelerator: Accelerator | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    progress: bool = True,
) -> Removal | None:
    """Fit one selector by the removal objective; None, and nothing changed but what is on disk, if interrupted.

    What subsets are worth is kept beside the store: a run that is started again does not measure them again.

    Args:
        rows: numbers of the sentences to learn from; at most `removal_sentences` of them are used.
        recipe: its `removal_...` settings, learning rate and seed.
        selector: the number of the selector to fit.
        accelerator: of several processes that share the encoding.
        interrupted: asked between chunks of subsets whether to stop.
    """
    model.eval()
    accelerator = Accelerator() if accelerator is None else accelerator
    sentences = read_sentences(store, rows, recipe.removal_sentences, recipe.seed, model)
    reader = model.gate_head.selectors[selector]
    assert isinstance(reader, Selector)
    inputs = read_inputs(model, store, sentences, selector, progress)
    anchors = torch.from_numpy(np.asarray(store.anchors()[sentences.rows]))
    values = _ValueStore(store.folder / "removal", model, sentences, accelerator, interrupted, progress)
    jobs = random_subsets(sentences.counts, recipe.removal_subsets, np.random.default_rng(recipe.seed))
    measured = values.measure(anchors, jobs)
    if measured is None:
        return None
    targets = measured[:, 0] + (1 - measured[:, 1])
    unexplained = fit_sums(model, reader, inputs, sentences.counts, jobs, targets, recipe, progress)
    return Removal(len(sentences.rows), len(jobs), unexplained)


# ---- sentences and what the selector reads of their words ---------------------------------------------------------------


@dataclass(frozen=True)
class Sentences:
    """Sentences of a store by their words.

    Attributes:
        rows: (sentences,) their numbers in the store.
        tokens: of each.
        counts: (sentences,) how many words each has.
    """

    rows: np.ndarray
    tokens: list[TokenWords]
    counts: np.ndarray


def read_sentences(store: StateStore, rows: np.ndarray, most: int, seed: int, model: HardKumaModel) -> Sentences:
    """At most `most` of these sentences, a random choice of those with enough words to choose among."""
    kept, tokens = [], []
    for numbers in np.array_split(rows, math.ceil(len(rows) / 1024)):
        batch = store.read(numbers, model, states=False)
        starts = (batch.content & ~batch.inputs["continues"]).long()
        words = torch.where(batch.content, starts.cumsum(-1) - 1, -1).cpu().numpy()
        ids = batch.inputs["input_ids"].cpu().numpy()
        for row, number in enumerate(numbers.tolist()):
            length = int(store.lengths[number])
            sentence = TokenWords(ids[row, :length], words[row, :length])
            if sentence.number >= MIN_WORDS:
                kept.append(number)
                tokens.append(sentence)
    if not kept:
        raise ValueError(f"no sentence has {MIN_WORDS} words or more: training by removal has nothing to choose among.")
    order = np.sort(np.random.default_rng(seed).permutation(len(kept))[:most])
    chosen = [tokens[i] for i in order]
    return Sentences(np.array(kept)[order], chosen, np.array([sentence.number for sentence in chosen]))


@dataclass(frozen=True)
class WordInputs:
    """What a selector reads of all words: x (words, size) in half precision, and where each sentence's first word is."""

    x: Tensor
    firsts: np.ndarray

    def padded(self, numbers: np.ndarray, counts: np.ndarray) -> Tensor:
        """(sentences, most words, size) of these sentences, zeros behind the last word."""
        index = self.firsts[numbers][:, None] + np.arange(counts[numbers].max())
        inside = torch.from_numpy(np.arange(index.shape[1]) < counts[numbers][:, None])
        x = self.x[torch.from_numpy(np.minimum(index, len(self.x) - 1))].float()
        return x * inside[..., None]


@torch.inference_mode()
def read_inputs(model: HardKumaModel, store: StateStore, sentences: Sentences, selector: int, progress: bool) -> WordInputs:
    """Run or read the encoder once. The spread of what is measured is taken from the first sentences."""
    reader = model.gate_head.selectors[selector]
    assert isinstance(reader, Selector)
    firsts = np.concatenate([[0], np.cumsum(sentences.counts)])
    flat: Tensor | None = None
    order = np.argsort([len(tokens.ids) for tokens in sentences.tokens], kind="stable")
    if reader.num_measures:
        _standardise(model, reader, store, sentences.rows[:1024])
    bar = tqdm(total=len(order), desc="reading words", unit="sentence", disable=not progress, leave=False)
    for numbers in np.array_split(order, math.ceil(len(order) / BATCH)):
        batch = store.read(sentences.rows[numbers], model)
        x = model.selector_inputs(selector, **batch.inputs).cpu()
        if flat is None:
            flat = torch.zeros(int(firsts[-1]), x.shape[-1], dtype=torch.float16)
        for row, number in enumerate(numbers):
            words = sentences.tokens[number].words
            leading = np.flatnonzero((words >= 0) & (np.diff(words, prepend=-1) != 0))
            flat[firsts[number] : firsts[number + 1]] = x[row, leading].half()
        bar.update(len(numbers))
    bar.close()
    assert flat is not None
    return WordInputs(flat, firsts[:-1])


def _standardise(model: HardKumaModel, reader: Selector, store: StateStore, rows: np.ndarray) -> None:
    """Set mean and spread of the measures to those of the words of these sentences."""
    reader.center.zero_()
    reader.spread.fill_(1.0)
    selector = list(model.gate_head.selectors).index(reader)
    parts = []
    for batch in store.batches(rows, model):
        leading = batch.content & ~batch.inputs["continues"]
        x = model.selector_inputs(selector, **batch.inputs)
        parts.append(x[leading][:, -reader.num_measures :])
    measures = torch.cat(parts).sinh()  # with center 0 and spread 1, a selector reads asinh of them
    reader.center.copy_(measures.mean(0))
    reader.spread.copy_(measures.std(0).clamp_min(1e-6))


# ---- subsets ------------------------------------------------------------------------------------------------------------

Job = tuple[int, list[int]]


def subset_sizes(words: int) -> list[int]:
    """How many words the subsets of a sentence have: those that a rate of `RATES` would take, each size once.

    >>> subset_sizes(10), subset_sizes(4)
    ([1, 2, 3, 4, 5], [1, 2])
    """
    return sorted({math.ceil(rate * words - 1e-9) for rate in RATES})


def random_subsets(counts: np.ndarray, number: int, generator: np.random.Generator) -> list[Job]:
    """`number` random subsets of each sentence, two and two of one size, since they are compared within a size.

    >>> random_subsets(np.array([8]), 2, np.random.default_rng(0))
    [(0, [0, 1, 7]), (0, [4, 6, 7])]
    """
    jobs = []
    for sentence, words in enumerate(counts.tolist()):
        sizes = generator.permutation(subset_sizes(words))
        for pair in range(math.ceil(number / 2)):
            for _ in range(2):
                chosen = generator.choice(words, sizes[pair % len(sizes)], replace=False)
                jobs.append((sentence, sorted(chosen.tolist())))
    return jobs


class _ValueStore:
    """Values of subsets, measured by all processes together and kept on disk."""

    def __init__(
        self,
        folder: Path,
        model: HardKumaModel,
        sentences: Sentences,
        accelerator: Accelerator,
        interrupted: Callable[[], bool],
        progress: bool,
    ):
        self.folder, self.sentences, self.accelerator = folder, sentences, accelerator
        self.interrupted, self.progress = interrupted, progress
        self.encoder = SubsetEncoder(model)
        self.fingerprint = str(model.config.encoder_fingerprint)

    def measure(self, anchors: Tensor, jobs: Sequence[Job]) -> Tensor | None:
        """(jobs, 2) cosines of the words alone and of the rest, in the order of the jobs; None if interrupted."""
        parts = []
        main = self.accelerator.is_main_process
        with tqdm(total=len(jobs), desc="removing words", unit="subset", disable=not (main and self.progress)) as bar:
            for first in range(0, len(jobs), CHUNK):
                chunk = jobs[first : first + CHUNK]
                parts.append(self._chunk(chunk, anchors))
                bar.update(len(chunk))
                if self.interrupted():
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


# ---- the fit ------------------------------------------------------------------------------------------------------------


def _gate_log_odds(model: HardKumaModel, reader: Selector, x: Tensor) -> Tensor:
    config = model.config
    alpha, beta = reader(x)
    gate = make_gate(alpha, beta, config.sampler, config.stretch_low, config.stretch_high)
    return gate.selection_log_odds(config.gate_threshold)


class _SubsetTable:
    """Subsets of all sentences as padded arrays: a batch of sentences is one matrix product."""

    def __init__(self, jobs: Sequence[Job], targets: Tensor, counts: np.ndarray):
        per_sentence = np.bincount([sentence for sentence, _ in jobs], minlength=len(counts))
        slots = int(per_sentence.max())
        self.members = torch.zeros(len(counts), slots, int(counts.max()), dtype=torch.uint8)
        self.targets = torch.zeros(len(counts), slots)
        self.sizes = torch.zeros(len(counts), slots, dtype=torch.long)  # 0 marks an empty slot
        self.counts = torch.from_numpy(counts)
        filled = np.zeros(len(counts), dtype=np.int64)
        for (sentence, words), target in zip(jobs, targets.tolist(), strict=True):
            slot = filled[sentence]
            self.members[sentence, slot, words] = 1
            self.targets[sentence, slot] = target
            self.sizes[sentence, slot] = len(words)
            filled[sentence] += 1
        self.sentences = np.flatnonzero(per_sentence)

    def batch(self, numbers: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """members (batch, slots, words), targets and sizes (batch, slots), counts (batch, 1)."""
        words = int(self.counts[numbers].max())
        parts = (self.members[numbers, :, :words].float(), self.targets[numbers], self.sizes[numbers])
        members, targets, sizes = (part.to(device) for part in parts)
        return members, targets, sizes, self.counts[numbers][:, None].to(device)


def _centred(values: Tensor, sizes: Tensor) -> Tensor:
    """(batch, slots) values minus the mean of those of the same row and size; 0 in empty slots."""
    same = (sizes[:, :, None] == sizes[:, None, :]).float()
    return (values - (same @ values[..., None])[..., 0] / same.sum(-1)) * (sizes > 0)


def _drop(x: Tensor, measures: int) -> Tensor:
    """Dropout of what the selector reads, but for the measures: they are few, and reach the gate directly."""
    vectors = F.dropout(x[..., : x.shape[-1] - measures], INPUT_DROPOUT)
    return torch.cat([vectors, x[..., x.shape[-1] - measures :]], dim=-1)


def fit_sums(
    model: HardKumaModel,
    reader: Selector,
    inputs: WordInputs,
    counts: np.ndarray,
    jobs: Sequence[Job],
    targets: Tensor,
    recipe: Recipe,
    progress: bool,
) -> float:
    """Fit the selector, from random weights, so that sums of log-odds tell the values; returns the unexplained share.

    A word is worth less in a larger subset and in a longer sentence. How much less is a factor of its own for each sum,
    exp(a log size + b log words + c size / words), which is fitted along and then forgotten: it orders no words.
    """
    table = _SubsetTable(jobs, targets, counts)
    torch.manual_seed(recipe.seed)
    for layer in reader.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.reset_parameters()
    with torch.no_grad():  # the measures speak first
        reader.shapes.weight.zero_()
        reader.shapes.bias.zero_()
    factors = torch.nn.Parameter(torch.zeros(3, device=model.device))
    parameters = [*reader.parameters(), factors]
    rate = recipe.removal_learning_rate
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1)
    generator = np.random.default_rng(recipe.seed)
    total, step = recipe.removal_epochs * math.ceil(len(table.sentences) / BATCH), 0
    errors, spread = 0.0, 0.0
    reader.train()
    reader.dropout, dropout = HIDDEN_DROPOUT, reader.dropout
    with tqdm(total=total, desc="fitting gates", unit="step", disable=not progress, leave=False) as bar:
        for epoch in range(recipe.removal_epochs):
            lengths = counts[table.sentences] + 4 * generator.random(len(table.sentences))
            order = table.sentences[np.argsort(lengths, kind="stable")]
            batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
            generator.shuffle(batches)
            for numbers in batches:
                optimizer.param_groups[0]["lr"] = rate * (1 - step / total)
                members, wanted, sizes, words = table.batch(numbers, model.device)
                x = _drop(inputs.padded(numbers, counts).to(model.device), reader.num_measures)
                sums = SCALE * (members @ _gate_log_odds(model, reader, x)[..., None])[..., 0]
                size = sizes.clamp_min(1)
                exponent = torch.stack([size.log(), (words.log() - 3).expand_as(wanted), size / words], dim=-1)
                difference = _centred(sums * (exponent @ factors).exp(), sizes) - _centred(wanted, sizes)
                loss = difference.square().sum() / (sizes > 0).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if epoch == recipe.removal_epochs - 1:
                    errors += float(difference.detach().square().sum())
                    spread += float(_centred(wanted, sizes).square().sum())
                step += 1
                bar.update()
    reader.dropout = dropout
    reader.eval()
    return errors / max(spread, 1e-12)
