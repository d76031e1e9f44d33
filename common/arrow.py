"""Records as Arrow columns: one schema for every Parquet file that is written, by a command or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .packages import require

if TYPE_CHECKING:
    import pyarrow

    from ..scoring_hardkuma import Record


def record_fields(joined: bool = False) -> list[pyarrow.Field]:
    """The fields of a record but its text; `joined` for records that have the gates of several selectors.

    >>> [field.name for field in record_fields()]
    ['words', 'spans', 'rate', 'windows', 'reason', 'note', 'kept', 'lost']
    """
    arrow = require("pyarrow", "parquet")
    span_fields = [("start", arrow.int32()), ("end", arrow.int32()), ("probability", arrow.float32())]
    numbers = arrow.map_(arrow.string(), arrow.float64())
    word = arrow.struct([("word", arrow.string()), *span_fields, ("selected", arrow.bool_())])
    span = arrow.struct([("text", arrow.string()), *span_fields])
    if joined:
        chosen = [("probabilities", numbers), ("selected", arrow.list_(arrow.string()))]
        word = arrow.struct([("word", arrow.string()), *span_fields[:2], *chosen])
        span = arrow.struct([("text", arrow.string()), *span_fields, ("selector", arrow.string())])
    return [
        arrow.field("words", arrow.list_(word)),
        arrow.field("spans", arrow.list_(span)),
        arrow.field("rates", numbers) if joined else arrow.field("rate", arrow.float64()),
        arrow.field("windows", arrow.int32()),
        arrow.field("reason", arrow.string()),
        arrow.field("note", arrow.string()),
        *([] if joined else [arrow.field("kept", arrow.float64()), arrow.field("lost", arrow.float64())]),
    ]


def arrow_record(record: Record) -> Record:
    """The record as Arrow takes it: names with their numbers as pairs.

    >>> arrow_record({"words": [], "rates": {"meaning": 0.25}})["rates"]
    [('meaning', 0.25)]
    """
    if "rates" not in record:
        return record
    words = [{**word, "probabilities": list(word["probabilities"].items())} for word in record["words"]]
    return {**record, "words": words, "rates": list(record["rates"].items())}
