"""Records as Arrow columns: one schema for every Parquet file that is written, by a command or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .packages import require

if TYPE_CHECKING:
    import pyarrow


def record_fields() -> list[pyarrow.Field]:
    """The fields of a record, but its text.

    >>> [field.name for field in record_fields()]
    ['words', 'spans', 'rate', 'windows', 'reason']
    """
    arrow = require("pyarrow", "parquet")
    span_fields = [("start", arrow.int32()), ("end", arrow.int32()), ("probability", arrow.float32())]
    word = arrow.struct([("word", arrow.string()), *span_fields, ("selected", arrow.bool_())])
    span = arrow.struct([("text", arrow.string()), *span_fields])
    return [
        arrow.field("words", arrow.list_(word)),
        arrow.field("spans", arrow.list_(span)),
        arrow.field("rate", arrow.float64()),
        arrow.field("windows", arrow.int32()),
        arrow.field("reason", arrow.string()),
    ]
