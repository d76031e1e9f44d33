"""`nlp.add_pipe("hardkuma")`: gates as spans and token extensions of spaCy documents (`pip install hardkuma[spacy]`).

    doc.spans["hardkuma"]   the spans of selected words; with `selector: all` a group for each selector, "hardkuma.NAME"
    doc._.gate_reason       why there are none, where there are none; else None
    token._.gate            selection probability of the token's word; 0.0 for punctuation and white space
    token._.rationale       whether the token belongs to a selected word
    span._.gate             the largest gate of a span's tokens, for any span

With `selector: all` a token's gate is the largest of all selectors', and it belongs to the rationale of any of them.

Words are those of `find_words`, so that documents get the same decisions as in every other place; they meet spaCy's tokens
by character offsets. A token that touches several words takes the largest probability, and is part of the rationale if any
of them is; a span that begins or ends inside of a token takes the whole token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, Span, Token
from spacy.util import minibatch

from ..common.models import load_released
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import Record, check_count, check_selection, check_selector, gate_records, split_record

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
    assigns=["doc.spans", "doc._.gate_reason", "token._.gate", "token._.rationale"],
    default_config={
        "model": None,
        "rate": None,
        "threshold": None,
        "batch_size": 32,
        "use_surface": True,
        "selector": None,
        "spans_key": SPANS_KEY,
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
) -> HardKumaComponent:
    """The factory that spaCy calls.

    Args:
        model: checkpoint folder or Hub id; by default the released model for all-MiniLM-L6-v2.
        rate, threshold, batch_size, use_surface, selector: as in `gate_records`.
        spans_key: where in `doc.spans` the spans go.
    """
    check_selection(rate, threshold)
    check_count("batch_size", batch_size)
    loaded = load_released()[0] if model is None else HardKumaModel.from_pretrained(model).eval()
    check_selector(loaded.config, selector)
    options = {"rate": rate, "threshold": threshold, "use_surface": use_surface, "selector": selector}
    return HardKumaComponent(loaded, spans_key=spans_key, batch_size=batch_size, **options)


class HardKumaComponent:
    """Sets spans and extensions on documents; made by `nlp.add_pipe("hardkuma", config={...})`.

    >>> import spacy
    >>> nlp = spacy.blank("en")
    >>> _ = nlp.add_pipe("hardkuma", config={"rate": 0.4})
    >>> doc = nlp("Marie Curie moved to Paris.")
    >>> sum(token._.rationale for token in doc), doc[5].text, doc[5]._.gate
    (2, '.', 0.0)
    """

    def __init__(self, model: HardKumaModel, spans_key: str = SPANS_KEY, **options: Any):
        _register_extensions()
        self.model, self.spans_key, self.options = model, spans_key, options

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
        several = "rates" in record
        groups = {f"{self.spans_key}.{name}": part for name, part in split_record(record).items()} if several else {}
        for key, part in (groups or {self.spans_key: record}).items():
            for word in part["words"]:
                for token in _expand(doc, word):
                    token._.gate = max(token._.gate, word["probability"])
                    token._.rationale = token._.rationale or word["selected"]
            spans = [_expand(doc, span) for span in part["spans"]]
            # Two spans inside of one token are one.
            doc.spans[key] = list({(span.start, span.end): span for span in spans}.values())
        doc._.gate_reason = record.get("reason")


def _expand(doc: Doc, piece: Record) -> Span:
    """The tokens that a word or span of a record touches."""
    span = doc.char_span(piece["start"], piece["end"], alignment_mode="expand")
    assert span is not None  # it is with "expand", for offsets inside of the text
    return span
