"""Every method by name: what it needs, what it costs, how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...common.arguments import find_named
from ...common.packages import available
from ...configuration_hardkuma import ENTITIES, MEANING
from .attention import attention_scores, rollout_scores
from .counts import idf_scores, information_gain_scores, self_information_scores
from .encoder import SentenceEncoder
from .gates import gate_scores
from .integrated_gradients import integrated_gradient_scores
from .keywords import keybert_scores, yake_scores
from .leave_one_out import leave_one_out_scores
from .shapley import shap_scores
from .spacy_entities import ner_packages, spacy_scores
from .states import cosine_scores, norm_scores
from .trivial import capital_scores, position_scores, random_scores
from .words import Span, WordScores

BASELINE, GATES, REFERENCE = "baseline", "gates", "reference"
# Gates are compared with labels of entities: rows that name no selector show that of entities, or the only one.
_OF_ENTITIES = {"default": ENTITIES}


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


_ALL = (
    Method("random", "random", random_scores, "0", seeded=True),
    Method("position", "position (first words)", position_scores, "0"),
    Method(
        "self_information",
        "self-information (wordfreq)",
        self_information_scores,
        "0",
        {"source": "wordfreq"},
        needs=("wordfreq",),
        extra="benchmark",
    ),
    Method(
        "self_information_corpus",
        "self-information (corpus)",
        self_information_scores,
        "0",
        {"source": "corpus"},
        counted=True,
    ),
    Method("idf", "inverse document frequency", idf_scores, "0", counted=True),
    Method("information_gain", "information gain", information_gain_scores, "0", counted=True),
    Method("yake", "YAKE", yake_scores, "0", needs=("yake",), extra="keywords"),
    Method("norm", "norm of the state (max)", norm_scores, "1"),
    Method("norm_sum", "norm of the state (sum)", norm_scores, "1", {"aggregate": "sum"}),
    Method("cosine", "cosine to the embedding", cosine_scores, "1"),
    Method("attention", "attention received (max)", attention_scores, "1"),
    Method("attention_sum", "attention received (sum)", attention_scores, "1", {"aggregate": "sum"}),
    Method("rollout", "attention rollout (max)", rollout_scores, "1"),
    Method("rollout_sum", "attention rollout (sum)", rollout_scores, "1", {"aggregate": "sum"}),
    Method("loo_pooled", "leave one token out, pooled", leave_one_out_scores, "1", {"reencode": False}),
    Method("loo_pooled_word", "leave one word out, pooled", leave_one_out_scores, "1", {"reencode": False, "unit": "word"}),
    Method(
        "keybert",
        "KeyBERT",
        keybert_scores,
        "1 + one short one per new word",
        needs=("keybert", "sklearn"),
        extra="keywords",
    ),
    Method("loo", "leave one token out, re-encoded", leave_one_out_scores, "1 + tokens", expensive=True),
    Method(
        "loo_word", "leave one word out, re-encoded", leave_one_out_scores, "1 + words", {"unit": "word"}, expensive=True
    ),
    Method(
        "integrated_gradients",
        "integrated gradients",
        integrated_gradient_scores,
        "5 + steps, and as many backward as steps",
        needs=("captum",),
        extra="benchmark",
        expensive=True,
    ),
    Method(
        "shap",
        "SHAP (permutation)",
        shap_scores,
        "3 + about 4 per word",
        needs=("shap",),
        extra="benchmark",
        expensive=True,
        seeded=True,
    ),
    Method("gates", "HardKuma gates (max)", gate_scores, "1", _OF_ENTITIES, role=GATES, lower=True),
    Method("gates_sum", "HardKuma gates (sum)", gate_scores, "1", {**_OF_ENTITIES, "aggregate": "sum"}, role=GATES),
    Method(
        "gates_surface",
        "HardKuma gates, surface view (max)",
        gate_scores,
        "1",
        {**_OF_ENTITIES, "use_surface": True},
        role=GATES,
        lower=True,
    ),
    Method(
        "gates_form",
        "HardKuma gates, form alone (max)",
        gate_scores,
        "1",
        {**_OF_ENTITIES, "form_alone": True},
        role=GATES,
        lower=True,
    ),
    Method("gates_meaning", "HardKuma gates, meaning (max)", gate_scores, "1", {"default": MEANING}, role=GATES),
    Method("capitals", "capital letters (reference)", capital_scores, "0", role=REFERENCE, lower=True),
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
            spacy_scores,
            "0",
            {"package": package},
            needs=("spacy",),
            extra="spacy",
            role=REFERENCE,
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
