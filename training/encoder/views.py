"""Ways to make another view of a sentence: words left out, repeated, replaced or in another order, holes in embeddings.

Several are applied one after the other; a recipe names them with their options (`AUGMENTATIONS`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ...common.arguments import find_named
from ...configuration_hardkuma import check_inside, check_whole
from ...kumaraswamy_hardkuma import Kumaraswamy
from .sentence import LETTERS, Sentence

# Measures of importance, under which `scorers.py` gives them.
NAIVE, ROLLOUT, GATES, GATE_SHAPES = "attention", "rollout", "gates", "gate_shapes"


class Augmentation(ABC):
    """A way to make another view of a sentence; `measure` is the score of importance that it goes by, which must have been
    given where it is not `LETTERS`. A `rate`, if there is one, is a fraction."""

    measure: ClassVar[str] = LETTERS

    def __post_init__(self) -> None:
        rate, default = getattr(self, "rate", None), getattr(type(self), "rate", None)
        if rate is not default:  # which may be None
            check_inside("rate", rate, 0.0, 1.0, low_in=True, high_in=True)

    @abstractmethod
    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        """Another view of the sentence."""


# ---- words left out --------------------------------------------------------------------------------------------------


def number_to_drop(tokens: int, k: int | None = None, t: int = 10) -> int:
    """How many of a sequence's non-padding tokens go.

    Static: k, if there are at least t tokens (0 otherwise). Dynamic (k=None): floor(tokens / t).

    >>> [number_to_drop(n, k=2) for n in (9, 10, 30)], [number_to_drop(n) for n in (9, 10, 30)]
    ([0, 2, 2], [0, 1, 3])
    """
    return tokens // t if k is None else k if tokens >= t else 0


def lowest(values: np.ndarray, droppable: np.ndarray, number: int) -> np.ndarray:
    """(length,) true on the `number` lowest droppable values; of equal ones the first goes first.

    >>> lowest(np.array([5.0, 1.0, 3.0, 2.0]), np.ones(4, dtype=bool), 2).tolist()
    [False, True, False, True]
    """
    order = [i for i in np.argsort(values, kind="stable") if droppable[i]]
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order[:number]] = True
    return chosen


@dataclass(frozen=True)
class Dropping(Augmentation):
    """How many go: a constant k from t tokens on, or floor(tokens / t). Special tokens count, padding does not."""

    k: int | None = None
    t: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None:
            check_whole("k", self.k, minimum=0)
        check_whole("t", self.t, minimum=1)

    def number(self, sentence: Sentence) -> int:
        """How many of this sentence."""
        return number_to_drop(len(sentence), self.k, self.t)

    def _drop_words(self, sentence: Sentence, values: np.ndarray) -> Sentence:
        """Without the words whose values (words,) are lowest."""
        gone = sentence.word_numbers[lowest(values, np.ones(len(values), dtype=bool), self.number(sentence))]
        return sentence.without(np.isin(sentence.words, gone), self.measure)


@dataclass(frozen=True)
class NaiveAttentionDropout(Dropping):
    """Attention-Driven Dropout: without the tokens that receive the least attention, summed over layers, heads and queries.

    Args:
        keep_special: never drop [CLS] and [SEP]. The reference implementation may drop them.
    """

    keep_special: bool = True
    measure: ClassVar[str] = NAIVE

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        droppable = sentence.content if self.keep_special else np.ones(len(sentence), dtype=bool)
        removed = lowest(sentence.scores[self.measure], droppable, self.number(sentence))
        spared = sentence.spare(removed, self.measure)
        return sentence.take(np.flatnonzero(~(spared | (removed & ~sentence.content))))


@dataclass(frozen=True)
class RolloutAttentionDropout(NaiveAttentionDropout):
    """Attention-Driven Dropout by attention rollout, summed over layers."""

    measure: ClassVar[str] = ROLLOUT


@dataclass(frozen=True)
class LowestGateDropout(Dropping):
    """Without the words that the selector `meaning` finds least important."""

    measure: ClassVar[str] = GATES

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        return self._drop_words(sentence, sentence.importance(GATES))


@dataclass(frozen=True)
class SampledGateDropout(Dropping):
    """Without the words whose gates are lowest in one draw of the gates: u = (1 - (1 - v)^(1/beta))^(1/alpha), v uniform.

    A word that nearly always opens its gate stays nearly always; of words alike, another one goes each time.
    """

    measure: ClassVar[str] = GATES

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        shapes = np.array([sentence.scores[GATE_SHAPES][sentence.words == word][0] for word in sentence.word_numbers])
        alpha, beta = torch.from_numpy(shapes.reshape(-1, 2)).T
        noise = torch.from_numpy(random.uniform(size=len(shapes)))
        return self._drop_words(sentence, Kumaraswamy(alpha, beta).icdf(noise).numpy())


@dataclass(frozen=True)
class RandomDeletion(Dropping):
    """Without random words; with a rate, floor(rate x words) of them.

    >>> sentence = Sentence(np.array([2, 5, 6, 7, 8, 3]), np.array([-1, 0, 1, 2, 3, -1]))
    >>> len(RandomDeletion(rate=0.5)(sentence, np.random.default_rng(0)))
    4
    """

    rate: float | None = None

    def number(self, sentence: Sentence) -> int:
        """How many of this sentence."""
        return super().number(sentence) if self.rate is None else int(self.rate * len(sentence.word_numbers))

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        return self._drop_words(sentence, random.permutation(len(sentence.word_numbers)).astype(float))


@dataclass(frozen=True)
class Cropping(Augmentation):
    """A random run of words: floor(rate x words) go, at both ends together.

    >>> sentence = Sentence(np.array([2, 5, 6, 7, 8, 3]), np.array([-1, 0, 1, 2, 3, -1]))
    >>> Cropping(0.5)(sentence, np.random.default_rng(0)).ids.tolist()
    [2, 7, 8, 3]
    """

    rate: float = 0.1

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        words = sentence.word_numbers
        length = len(words) - int(self.rate * len(words))
        first = int(random.integers(0, len(words) - length + 1))
        kept = np.isin(sentence.words, words[first : first + length])
        return sentence.without(~kept)


# ---- as many words ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DropoutOnly(Augmentation):
    """The sentence itself: the encoder's own dropout makes the difference (SimCSE; Gao et al., 2021)."""

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        return sentence


@dataclass(frozen=True)
class WordRepetition(Augmentation):
    """Random words stand twice: 0 to max(2, floor(rate x words)) of them (ESimCSE; Wu et al., 2022).

    >>> sentence = Sentence(np.array([2, 5, 6, 3]), np.array([-1, 0, 1, -1]))
    >>> WordRepetition()(sentence, np.random.default_rng(0)).ids.tolist()
    [2, 5, 5, 6, 6, 3]
    """

    rate: float = 0.32

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        words = sentence.word_numbers
        most = min(max(2, int(self.rate * len(words))), len(words))
        doubled = random.choice(words, size=int(random.integers(0, most + 1)), replace=False)
        index: list[int] = []
        for start, end in _runs(sentence.words):
            index += [*range(start, end)] * (2 if sentence.words[start] in doubled else 1)
        return sentence.take(np.array(index, dtype=int))


@dataclass(frozen=True)
class WordReplacement(Augmentation):
    """floor(rate x words) random words give their places to tokens drawn from the vocabulary: words of any meaning.

    Args:
        size: of the vocabulary.
        rate: share of the words.
        special: how many ids at its beginning are no words (padding, [CLS], unused ones); 1,000 suits BERT.

    >>> sentence = Sentence(np.array([2, 5, 6, 7, 8, 3]), np.array([-1, 0, 0, 1, 2, -1]))
    >>> view = WordReplacement(50, rate=0.4, special=40)(sentence, np.random.default_rng(0))
    >>> len(view) in (5, 6), bool((view.ids[[0, -1]] == [2, 3]).all())
    (True, True)
    """

    size: int
    rate: float = 0.15
    special: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("special", self.special, minimum=0)
        if self.special >= self.size:
            raise ValueError(f"special must be less than the vocabulary's {self.size} tokens, got {self.special}.")

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        words = sentence.word_numbers
        chosen = random.permutation(words)[: int(self.rate * len(words))]
        replaced = np.isin(sentence.words, chosen)
        first = np.flatnonzero(replaced & (sentence.words != np.concatenate([[-2], sentence.words[:-1]])))
        ids = sentence.ids.copy()
        ids[first] = random.integers(self.special, self.size, len(first))
        kept = ~replaced
        kept[first] = True  # one token stands for the whole word
        return replace(sentence, ids=ids).take(np.flatnonzero(kept))


@dataclass(frozen=True)
class MaskedReplacement(Augmentation):
    """floor(rate x tokens) random tokens are masked, and what stands there is drawn from a masked language model.

    Args:
        tokenizer: the encoder's; None where options are only checked.
        model: Hub id or folder of a masked language model with the encoder's vocabulary.
        rate: share of the tokens.
    """

    tokenizer: PreTrainedTokenizerBase | None
    model: str = ""
    rate: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model or not isinstance(self.model, str):
            raise ValueError(
                f"model must name a masked language model with the encoder's vocabulary, such as bert-base-uncased; "
                f"got {self.model!r}."
            )
        if self.tokenizer is None:
            return
        from transformers import AutoModelForMaskedLM

        if self.tokenizer.mask_token_id is None:
            raise ValueError("the encoder's tokenizer has no mask token: use another view.")
        language_model = AutoModelForMaskedLM.from_pretrained(self.model).eval()
        size, known = language_model.config.vocab_size, len(self.tokenizer)
        if size != known:
            raise ValueError(f"{self.model} has {size} tokens and the encoder {known}: both must have the same vocabulary.")
        object.__setattr__(self, "_language_model", language_model)

    @torch.no_grad()
    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        assert self.tokenizer is not None, "made to check options alone"
        inner, ids = np.flatnonzero(sentence.content), sentence.ids.copy()
        masked = random.permutation(inner)[: int(self.rate * len(inner))]
        if not len(masked):
            return sentence
        ids[masked] = self.tokenizer.mask_token_id
        logits = self._language_model(input_ids=torch.from_numpy(ids)[None]).logits[0, masked].double()  # type: ignore[attr-defined]
        logits[:, self.tokenizer.all_special_ids] = -torch.inf
        ids[masked] = [random.choice(len(row), p=row) for row in logits.softmax(-1).numpy()]
        return replace(sentence, ids=ids)


def _runs(words: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of each run of tokens of one word; special tokens by themselves."""
    starts = [i for i in range(len(words)) if i == 0 or words[i] != words[i - 1] or words[i] < 0]
    return list(zip(starts, [*starts[1:], len(words)], strict=True))


@dataclass(frozen=True)
class TokenShuffling(Augmentation):
    """Random positions: the tokens stay, their position ids are dealt anew (ConSERT; Yan et al., 2021)."""

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        positions = np.arange(len(sentence))
        inner = np.flatnonzero(sentence.content)
        positions[inner] = random.permutation(inner)
        return replace(sentence, positions=positions)


@dataclass(frozen=True)
class TokenCutoff(Augmentation):
    """The embeddings of floor(rate x tokens) random tokens are zero (ConSERT); special tokens are not counted."""

    rate: float = 0.15

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        inner, cut = np.flatnonzero(sentence.content), np.zeros(len(sentence), dtype=bool)
        cut[random.permutation(inner)[: int(self.rate * len(inner))]] = True
        return replace(sentence, cut_tokens=sentence.spare(cut))


@dataclass(frozen=True)
class FeatureCutoff(Augmentation):
    """floor(rate x size) random dimensions of all embeddings are zero (ConSERT)."""

    size: int
    rate: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate == 1:
            raise ValueError("rate must be < 1, got 1: nothing would be left of the embeddings.")

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        cut = np.zeros(self.size, dtype=bool)
        cut[random.permutation(self.size)[: int(self.rate * self.size)]] = True
        return replace(sentence, cut_features=cut)


# ---- by name ---------------------------------------------------------------------------------------------------------


AUGMENTATIONS: Mapping[str, type] = {
    "dropout": DropoutOnly,
    "attention_naive": NaiveAttentionDropout,
    "attention_rollout": RolloutAttentionDropout,
    "lowest_gates": LowestGateDropout,
    "sampled_gates": SampledGateDropout,
    "random_deletion": RandomDeletion,
    "word_replacement": WordReplacement,
    "mlm_replacement": MaskedReplacement,
    "cropping": Cropping,
    "word_repetition": WordRepetition,
    "token_shuffling": TokenShuffling,
    "token_cutoff": TokenCutoff,
    "feature_cutoff": FeatureCutoff,
}


@dataclass(frozen=True)
class Sequential:
    """Augmentations one after the other."""

    steps: Sequence[Augmentation]

    @property
    def measures(self) -> list[str]:
        """What sentences must have been scored by."""
        return list(dict.fromkeys(step.measure for step in self.steps if step.measure != LETTERS))

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        for step in self.steps:
            # A text without any word has no other view.
            sentence = step(sentence, random) if sentence.content.any() else sentence
        return sentence


def make_augmentation(
    views: Mapping[str, Mapping[str, Any] | None], size: int = 0, tokenizer: PreTrainedTokenizerBase | None = None
) -> Sequential:
    """The augmentations of these names, each with its options.

    Args:
        size: of the encoder's embeddings.
        tokenizer: the encoder's; None checks names and options alone.

    >>> make_augmentation({"lowest_gates": {"t": 8}, "cropping": None}).measures
    ['gates']
    >>> make_augmentation({"cropping": {"share": 0.5}})
    Traceback (most recent call last):
    ValueError: unknown option of cropping 'share'; known: rate.
    """
    known_to_the_encoder: dict[type, dict[str, Any]] = {
        FeatureCutoff: {"size": size},
        WordReplacement: {"size": 1 << 31 if tokenizer is None else len(tokenizer)},
        MaskedReplacement: {"tokenizer": tokenizer},
    }
    steps = []
    for name, options in views.items():
        kind = find_named("augmentation", name, AUGMENTATIONS)
        known = {field.name: field for field in fields(kind) if field.name not in ("size", "tokenizer")}
        if not isinstance(options, Mapping | None):
            raise ValueError(f"{name} takes options by name ({', '.join(known) or 'it has none'}), got {options!r}.")
        for option in options or {}:
            find_named(f"option of {name}", option, known)
        try:
            steps.append(kind(**known_to_the_encoder.get(kind, {}), **(options or {})))
        except (TypeError, ValueError, OSError) as error:
            raise ValueError(f"{name}: {error}") from error
    if any(isinstance(step, TokenShuffling) for step in steps[:-1]):
        raise ValueError(f"token_shuffling must be named last, got {', '.join(views)}: other views count positions anew.")
    return Sequential(steps)
