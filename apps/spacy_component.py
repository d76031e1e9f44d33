"""`nlp.add_pipe("hardkuma")`: gates as spans and token extensions of spaCy documents (`pip install hardkuma[spacy]`).

    doc.spans["hardkuma"]   the spans of selected words; with `selector: all` a group for each selector, "hardkuma.NAME"
    span.label_             ENTITY for the selector `entities`, else the selector's name in capitals: MEANING
    doc.ents                with `set_ents: true` the spans of `entities` too, where no other entity is yet
    doc._.gate_reason       why there are none, where there are none; else None
    token._.gate            selection probability of the token's word; 0.0 for punctuation and white space
    token._.rationale       whether the token belongs to a selected word
    span._.gate             the largest gate of a span's tokens, for any span

With `selector: all` a token's gate is the largest of all selectors', and it belongs to the rationale of any of them.

Words are those of `find_words`, so that documents get the same decisions as in every other place; they meet spaCy's tokens
by character offsets. A token that touches several words takes the largest probability, and is part of the rationale if any
of them is; a span that begins or ends inside of a token takes the whole token, and spans that share one are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, Span, Token
from spacy.util import minibatch

from ..common.models import load_released
from ..configuration_hardkuma import ENTITIES
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import ALL, Record, check_count, check_selection, check_selector, gate_records, split_record

SPANS_KEY = "hardkuma"


def _register_extensions() -> None:
    for name, default in (("gate", 0.0), ("rationale", False)):
        if not Token.has_extension(name):
            Token.set_extension(name, default=default)
        elif any(Token.get_extension(name)[1:]):  # a method, getter or setter of somebody else's
            raise ValueError(f"Token._.{name} is an extension with a getter or method already; remove it for hardkuma.")
    if not Doc.has_extension("gate_reason"):
        Doc.set_extension("gate_reason", default=None)
    if not Span.has_extension("gate"):
        Span.set_extension("gate", getter=lambda span: max((token._.gate for token in span), default=0.0))


@Language.factory(
    "hardkuma",
    assigns=["doc.spans", "doc.ents", "doc._.gate_reason", "token._.gate", "token._.rationale"],
    default_config={
        "model": None,
        "rate": None,
        "threshold": None,
        "batch_size": 32,
        "use_surface": True,
        "selector": None,
        "spans_key": SPANS_KEY,
        "set_ents": False,
    },
)
def create(
    nlp: Language,
    name: str,
    model: str | None,
    rate: float | None,
    threshold: float | None,
    batch_size: int,
    use_surface: bool,
    selector: str | None,
    spans_key: str,
    set_ents: bool,
) -> HardKumaComponent:
    """The factory that spaCy calls.

    Args:
        model: checkpoint folder or Hub id; by default the released model for all-MiniLM-L6-v2.
        rate, threshold, batch_size, use_surface, selector: as in `gate_records`.
        spans_key: where in `doc.spans` the spans go.
        set_ents: let the selector `entities` add to `doc.ents`; what another component has found there stays.
    """
    check_selection(rate, threshold)
    check_count("batch_size", batch_size)
    loaded = load_released()[0] if model is None else HardKumaModel.from_pretrained(model).eval()
    check_selector(loaded.config, selector)
    options = {"rate": rate, "threshold": threshold, "use_surface": use_surface, "selector": selector}
    return HardKumaComponent(loaded, spans_key=spans_key, set_ents=set_ents, batch_size=batch_size, **options)


class HardKumaComponent:
    """Sets spans and extensions on documents; made by `nlp.add_pipe("hardkuma", config={...})`.

    >>> import spacy
    >>> nlp = spacy.blank("en")
    >>> _ = nlp.add_pipe("hardkuma", config={"selector": "entities", "set_ents": True})
    >>> doc = nlp("Marie Curie moved to Paris.")
    >>> [(span.text, span.label_) for span in doc.spans["hardkuma"]], doc[5].text, doc[5]._.gate
    ([('Marie Curie', 'ENTITY'), ('Paris', 'ENTITY')], '.', 0.0)
    >>> doc.ents
    (Marie Curie, Paris)
    """

    def __init__(self, model: HardKumaModel, spans_key: str = SPANS_KEY, set_ents: bool = False, **options: Any):
        _register_extensions()
        self.model, self.spans_key, self.options = model, spans_key, options
        asked, names = options.get("selector"), model.config.names
        self.shown = names if asked == ALL else [names[model.config.find_selector(asked)]]
        self.set_ents = set_ents
        if set_ents and ENTITIES not in self.shown:
            raise ValueError(
                f"set_ents needs the selector {ENTITIES!r}, got {self.shown[0]!r}; add selector: {ENTITIES}, or {ALL}."
            )

    def __call__(self, doc: Doc) -> Doc:
        """Annotate one document."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Annotate documents as they come, `batch_size` of them read ahead; what `nlp.pipe` calls."""
        _register_extensions()  # somebody may have removed them since
        for docs in minibatch(stream, batch_size):
            records = gate_records(self.model, [doc.text for doc in docs], **self.options)
            for doc, record in zip(docs, records, strict=True):
                self._annotate(doc, record)
                yield doc

    def _annotate(self, doc: Doc, record: Record) -> None:
        for token in doc:
            token._.gate, token._.rationale = 0.0, False
        parts = split_record(record) if "rates" in record else {self.shown[0]: record}
        for name, part in parts.items():
            for word in part["words"]:
                for token in _expand(doc, word):
                    token._.gate = max(token._.gate, word["probability"])
                    token._.rationale = token._.rationale or word["selected"]
            label = "ENTITY" if name == ENTITIES else name.upper()
            spans = _disjoint(doc, [_expand(doc, span, label) for span in part["spans"]])
            doc.spans[f"{self.spans_key}.{name}" if len(parts) > 1 else self.spans_key] = spans
            if self.set_ents and name == ENTITIES:
                _add_ents(doc, spans)
        doc._.gate_reason = record.get("reason")


def _disjoint(doc: Doc, spans: Iterable[Span]) -> list[Span]:
    """Spans, in their order, of which those that share a token are one."""
    result: list[Span] = []
    for span in spans:
        if result and span.start < result[-1].end:
            span = Span(doc, result.pop().start, span.end, span.label)
        result.append(span)
    return result


def _add_ents(doc: Doc, spans: Iterable[Span]) -> None:
    """Entities may not overlap: those that are there stay, and of ours the first."""
    kept = list(doc.ents)
    taken = {token.i for span in kept for token in span}
    for span in spans:
        if taken.isdisjoint(range(span.start, span.end)):
            kept.append(span)
            taken.update(range(span.start, span.end))
    doc.ents = kept


def _expand(doc: Doc, piece: Record, label: str = "") -> Span:
    """The tokens that a word or span of a record touches."""
    span = doc.char_span(piece["start"], piece["end"], label=label, alignment_mode="expand")
    assert span is not None  # it is with "expand", for offsets inside of the text
    return span
