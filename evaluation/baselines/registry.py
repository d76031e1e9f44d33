"""Every method by name: what it needs, what it costs, how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from ...common.arguments import find_named
from ...common.packages import available
from ...configuration_hardkuma import ENTITIES, MEANING
from .attention import received, rolled
from .counts import count_scores, rarity
from .encoder import SentenceEncoder, score_tokens
from .gates import gate_scores
from .integrated_gradients import attributions
from .keywords import keybert_scores, yake_words
from .leave_one_out import leave_one_out_scores
from .shapley import shap_scores
from .spacy_entities import ner_packages, spacy_scores
from .states import cosines, norms
from .trivial import capitals, chance, position
from .words import Span, WordScores, score_words

BASELINE, GATES, REFERENCE = "baseline", "gates", "reference"


@dataclass(frozen=True)
class Method:
    """One way to score words.

    Attributes:
        name: under which it is asked for and stored.
        title: for tables.
        function: (encoder, texts, words, **options) -> word scores.
        cost: forward passes per sentence, in words.
        options: keyword arguments of the function.
        needs: packages beyond torch and transformers, by import name.
        extra: which extra of this package brings them.
        role: "baseline", "gates" (needs a HardKuma model) or "reference" (a line to compare with, not a competitor).
        expensive: more passes than one per sentence; benchmarks give it a smaller sample.
        seeded: depends on a seed; benchmarks run it with several.
        counted: uses word counts of a corpus (`counts`).
        ranked: its scores rank words; False where it decides and no more.
        lower: benchmarks measure its decisions on lower-cased text too.
    """

    name: str
    title: str
    function: Callable[..., list[WordScores]]
    cost: str
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    extra: str = ""
    role: str = BASELINE
    expensive: bool = False
    seeded: bool = False
    counted: bool = False
    ranked: bool = True
    lower: bool = False

    @property
    def missing(self) -> list[str]:
        """Packages that it needs and that are not installed."""
        return [name for name in self.needs if not available(name)]

    def scores(
        self,
        encoder: SentenceEncoder | None,
        texts: Sequence[str],
        words: Sequence[Sequence[Span]] | None = None,
        **options: Any,
    ) -> list[WordScores]:
        """Word scores of every text; `options` override the method's own.

        >>> METHODS["position"].scores(None, ["one two"])[0].scores
        [1.0, 0.5]
        """
        return self.function(encoder, texts, words, **{**self.options, **options})


def _of_tokens(function: Callable[..., Tensor]) -> Callable[..., list[WordScores]]:
    return partial(score_tokens, function)


def _of_words(function: Callable[..., WordScores]) -> Callable[..., list[WordScores]]:
    return partial(score_words, function)


def _by_counts(name: str, title: str, measure: str) -> Method:
    return Method(name, title, count_scores, "0", {"measure": measure}, counted=True)


def _leave_one_out(name: str, unit: str, reencode: bool) -> Method:
    cost, how = (f"1 + {unit}s", "re-encoded") if reencode else ("1", "pooled")
    options = {"unit": unit, "reencode": reencode}
    return Method(name, f"leave one {unit} out, {how}", leave_one_out_scores, cost, options, expensive=reencode)


def _gates(name: str, title: str, lower: bool = True, **options: Any) -> Method:
    # Compared with labels of entities: rows that name no selector show that of entities, or the only one.
    options = {"default": ENTITIES} | options
    return Method(name, f"HardKuma gates{title}", gate_scores, "1", options, role=GATES, lower=lower)


_ALL = (
    Method("random", "random", _of_words(chance), "0", seeded=True),
    Method("position", "position (first words)", _of_words(position), "0"),
    Method(
        "self_information", "self-information (wordfreq)", _of_words(rarity), "0", needs=("wordfreq",), extra="benchmark"
    ),
    _by_counts("self_information_corpus", "self-information (corpus)", "self_information"),
    _by_counts("idf", "inverse document frequency", "inverse_document_frequency"),
    _by_counts("information_gain", "information gain", "information_gain"),
    Method("yake", "YAKE", _of_words(yake_words), "0", needs=("yake",), extra="keywords"),
    Method("norm", "norm of the state (max)", _of_tokens(norms), "1"),
    Method("norm_sum", "norm of the state (sum)", _of_tokens(norms), "1", {"aggregate": "sum"}),
    Method("cosine", "cosine to the embedding", _of_tokens(cosines), "1"),
    Method("attention", "attention received (max)", _of_tokens(received), "1"),
    Method("attention_sum", "attention received (sum)", _of_tokens(received), "1", {"aggregate": "sum"}),
    Method("rollout", "attention rollout (max)", _of_tokens(rolled), "1"),
    Method("rollout_sum", "attention rollout (sum)", _of_tokens(rolled), "1", {"aggregate": "sum"}),
    _leave_one_out("loo_pooled", "token", reencode=False),
    _leave_one_out("loo_pooled_word", "word", reencode=False),
    Method(
        "keybert",
        "KeyBERT",
        keybert_scores,
        "1 + one short one per new word",
        needs=("keybert", "sklearn"),
        extra="keywords",
    ),
    _leave_one_out("loo", "token", reencode=True),
    _leave_one_out("loo_word", "word", reencode=True),
    Method(
        "integrated_gradients",
        "integrated gradients",
        _of_tokens(attributions),
        "5 + steps, and as many backward as steps",
        {"aggregate": "sum"},
        needs=("captum",),
        expensive=True,
        extra="benchmark",
    ),
    Method(
        "shap",
        "SHAP (permutation)",
        shap_scores,
        "3 + about 4 per word",
        needs=("shap",),
        expensive=True,
        seeded=True,
        extra="benchmark",
    ),
    _gates("gates", " (max)"),
    _gates("gates_sum", " (sum)", lower=False, aggregate="sum"),
    _gates("gates_surface", ", surface view (max)", use_surface=True),
    _gates("gates_form", ", form alone (max)", form_alone=True),
    _gates("gates_meaning", ", meaning (max)", lower=False, default=MEANING),
    Method("capitals", "capital letters (reference)", _of_words(capitals), "0", role=REFERENCE, lower=True),
)


def spacy_methods() -> list[Method]:
    """One for every installed spaCy pipeline that finds entities."""
    options: Any = {"needs": ("spacy",), "extra": "spacy", "role": REFERENCE, "ranked": False, "lower": True}
    return [
        Method(f"spacy_{name}", f"spaCy {name} {version} (reference)", spacy_scores, "0", {"package": name}, **options)
        for name, version in ner_packages().items()
    ]


METHODS: dict[str, Method] = {method.name: method for method in (*_ALL, *spacy_methods())}


def find_method(name: str) -> Method:
    """The method of that name, or an error that lists them.

    >>> find_method("norm").cost
    '1'
    """
    return find_named("method", name, METHODS)
