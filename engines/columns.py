"""From a table with a column of texts to the same table with their gates: what every worker of a cluster does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..anchors_hardkuma import embed_texts
from ..checks_hardkuma import check_choice
from ..common.arrow import arrow_record, record_fields
from ..common.packages import require
from ..modeling_hardkuma import HardKumaModel
from ..records_hardkuma import ALL
from ..words_hardkuma import check_selection, encodable, gate_records

if TYPE_CHECKING:
    import pyarrow

KINDS = ("gates", "terms", "anchor", "rationale")
NO_TEXT = "the row has no text"


@dataclass(frozen=True)
class Outputs:
    """What is added to a table, and how words are selected.

    Attributes:
        column: the texts; a row without one gets empty gates and the reason, and no embedding.
        kinds: "gates" are the fields of a record (words, spans, rate, windows, reason), "terms" the texts of its spans;
            "anchor" and "rationale" are embeddings, of what of a text fits into the encoder.
        selector, rate, threshold: as of `gate_records`.
        batch_size: texts that the encoder runs on together.
    """

    column: str = "text"
    kinds: Sequence[str] = ("gates",)
    selector: str | None = None
    rate: float | None = None
    threshold: float | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        for kind in self.kinds:
            check_choice("kinds", kind, KINDS)
        check_selection(self.rate, self.threshold)

    def names(self) -> list[str]:
        """The columns that are added.

        >>> Outputs(kinds=["terms", "anchor"]).names()
        ['terms', 'anchor']
        """
        records = [field.name for field in record_fields(self.selector == ALL)]
        return [name for kind in self.kinds for name in (records if kind == "gates" else [kind])]


def add_gates(model: HardKumaModel, table: pyarrow.Table, outputs: Outputs | None = None) -> pyarrow.Table:
    """The table, row for row, with the columns of `outputs` behind its own.

    >>> import pyarrow
    >>> from hardkuma import load_released
    >>> table = pyarrow.table({"id": [7], "text": ["Our flight to Oslo was delayed."]})
    >>> add_gates(load_released()[0], table, Outputs(kinds=["terms"])).to_pylist()[0]["terms"]
    ['flight', 'Oslo', 'delayed']
    """
    outputs = outputs or Outputs()
    texts = _texts(table, outputs)
    given = [i for i, text in enumerate(texts) if text is not None]
    present = [encodable(text) for text in texts if text is not None]
    for name, column in _columns(model, present, outputs):
        empty: Any = NO_TEXT if name == "reason" else [] if name in ("words", "spans", "terms") else None
        rows = [empty] * len(texts)
        for i, value in zip(given, column.to_pylist(), strict=True):
            rows[i] = value
        table = table.append_column(name, require("pyarrow", "ray").array(rows, column.type))
    return table


def _texts(table: pyarrow.Table, outputs: Outputs) -> list[str | None]:
    arrow = require("pyarrow", "ray")
    if outputs.column not in table.column_names:
        raise ValueError(f"there is no column {outputs.column!r}; there are: {', '.join(table.column_names)}.")
    taken = [name for name in outputs.names() if name in table.column_names]
    if taken:
        raise ValueError(f"the input has a column {taken[0]!r} already, which would be written: rename it first.")
    column = table[outputs.column]
    if not (arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type)):
        raise ValueError(f"the column {outputs.column!r} holds {column.type}, not text.")
    return column.to_pylist()


def _columns(model: HardKumaModel, texts: Sequence[str], outputs: Outputs) -> Iterator[tuple[str, pyarrow.Array]]:
    """Each added column with a value for every text."""
    arrow = require("pyarrow", "ray")
    if {"gates", "terms"} & set(outputs.kinds):
        found = gate_records(
            model,
            texts,
            rate=outputs.rate,
            threshold=outputs.threshold,
            batch_size=outputs.batch_size,
            selector=outputs.selector,
        )
        records = [arrow_record(record) for record in found]
        if "gates" in outputs.kinds:
            for field in record_fields(outputs.selector == ALL):
                yield field.name, arrow.array([record.get(field.name) for record in records], field.type)
        if "terms" in outputs.kinds:
            terms = [[span["text"] for span in record["spans"]] for record in records]
            yield "terms", arrow.array(terms, arrow.list_(arrow.string()))
    for kind in outputs.kinds:
        if kind in ("anchor", "rationale"):
            options: Any = {} if kind == "anchor" else {"rate": outputs.rate, "selector": outputs.selector}
            rows = list(embed_texts(model, texts, kind, batch_size=outputs.batch_size, **options).numpy()) if texts else []
            yield kind, arrow.array(rows, arrow.list_(arrow.float32()))
