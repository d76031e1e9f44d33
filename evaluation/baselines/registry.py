"""Every method by name: what it needs, what it costs, how it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...common.arguments import find_named
from ...common.packages import available
from ...configuration_hardkuma import ENTITIES, MEANING
from .encoder import SentenceEncoder
from .spacy_entities import ner_packages
from .words import Span, WordScores

# Gates are compared with labels of entities: rows that name no selector show that of entities, or the only one.
_OF_ENTITIES = {"default": ENTITIES}


@dataclass(frozen=True)
class Method:
    """One way to score words.

    Attributes:
        name: under which it is asked for and stored.
        title: for tables.
        module: of this package; its `scores` does the work.
        cost: forward passes per sentence, in words.
        options: keyword arguments of `scores`.
        needs: packages beyond torch and transformers, by import name.
        extra: which extra of this package brings them.
        kind: "peer", "gates" (needs a HardKuma model) or "reference" (a line to compare with, not a method).
        expensive: more passes than one per sentence; benchmarks give it a smaller sample.
        seeded: depends on a seed; benchmarks run it with several.
        counted: uses word counts of a corpus (`counts`).
        ranked: its scores rank words; False where it decides and no more.
        lower: benchmarks measure its decisions on lower-cased text too.
    """

    name: str
    title: str
    module: str
    cost: str
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    extra: str = ""
    kind: str = "peer"
    expensive: bool = False
    seeded: bool = False
    counted: bool = False
    ranked: bool = True
    lower: bool = False

    @property
    def function(self) -> Callable[..., list[WordScores]]:
        """The module's `scores`, imported when first used."""
        return importlib.import_module(f".{self.module}", __package__).scores

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


_ALL = (
    Method("random", "random", "chance", "0", seeded=True),
    Method("position", "position (first words)", "position", "0"),
    Method(
        "self_information",
        "self-information (wordfreq)",
        "self_information",
        "0",
        {"source": "wordfreq"},
        needs=("wordfreq",),
        extra="benchmark",
    ),
    Method(
        "self_information_corpus",
        "self-information (corpus)",
        "self_information",
        "0",
        {"source": "corpus"},
        counted=True,
    ),
    Method("idf", "inverse document frequency", "inverse_document_frequency", "0", counted=True),
    Method("information_gain", "information gain", "information_gain", "0", counted=True),
    Method("yake", "YAKE", "yake_keywords", "0", needs=("yake",), extra="keywords"),
    Method("norm", "norm of the state (max)", "norm", "1"),
    Method("norm_sum", "norm of the state (sum)", "norm", "1", {"aggregate": "sum"}),
    Method("cosine", "cosine to the embedding", "cosine", "1"),
    Method("attention", "attention received (max)", "attention", "1"),
    Method("attention_sum", "attention received (sum)", "attention", "1", {"aggregate": "sum"}),
    Method("rollout", "attention rollout (max)", "rollout", "1"),
    Method("rollout_sum", "attention rollout (sum)", "rollout", "1", {"aggregate": "sum"}),
    Method("loo_pooled", "leave one token out, pooled", "leave_one_out", "1", {"reencode": False}),
    Method("loo_pooled_word", "leave one word out, pooled", "leave_one_out", "1", {"reencode": False, "unit": "word"}),
    Method(
        "keybert",
        "KeyBERT",
        "keybert_keywords",
        "1 + one short one per new word",
        needs=("keybert", "sklearn"),
        extra="keywords",
    ),
    Method("loo", "leave one token out, re-encoded", "leave_one_out", "1 + tokens", expensive=True),
    Method("loo_word", "leave one word out, re-encoded", "leave_one_out", "1 + words", {"unit": "word"}, expensive=True),
    Method(
        "integrated_gradients",
        "integrated gradients",
        "integrated_gradients",
        "5 + steps, and as many backward as steps",
        needs=("captum",),
        extra="benchmark",
        expensive=True,
    ),
    Method(
        "shap",
        "SHAP (permutation)",
        "shapley",
        "3 + about 4 per word",
        needs=("shap",),
        extra="benchmark",
        expensive=True,
        seeded=True,
    ),
    Method("gates", "HardKuma gates (max)", "gates", "1", _OF_ENTITIES, kind="gates", lower=True),
    Method("gates_sum", "HardKuma gates (sum)", "gates", "1", {**_OF_ENTITIES, "aggregate": "sum"}, kind="gates"),
    Method(
        "gates_surface",
        "HardKuma gates, surface view (max)",
        "gates",
        "1",
        {**_OF_ENTITIES, "use_surface": True},
        kind="gates",
        lower=True,
    ),
    Method(
        "gates_form",
        "HardKuma gates, form alone (max)",
        "gates",
        "1",
        {**_OF_ENTITIES, "form_alone": True},
        kind="gates",
        lower=True,
    ),
    Method("gates_meaning", "HardKuma gates, meaning (max)", "gates", "1", {"default": MEANING}, kind="gates"),
    Method("capitals", "capital letters (reference)", "capitals", "0", kind="reference", lower=True),
)


def spacy_methods() -> list[Method]:
    """One for every installed spaCy pipeline that finds entities.

    >>> [method.name for method in spacy_methods()] == [f"spacy_{package}" for package in ner_packages()]
    True
    """
    return [
        Method(
            f"spacy_{package}",
            f"spaCy {package} {version} (reference)",
            "spacy_entities",
            "0",
            {"package": package},
            needs=("spacy",),
            extra="spacy",
            kind="reference",
            ranked=False,
            lower=True,
        )
        for package, version in ner_packages().items()
    ]


METHODS: dict[str, Method] = {method.name: method for method in (*_ALL, *spacy_methods())}


def find_method(name: str) -> Method:
    """The method of that name, or an error that lists them.

    >>> find_method("norm").cost
    '1'
    """
    return find_named("method", name, METHODS)
