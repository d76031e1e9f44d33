"""From a table with a column of texts to the same table with their gates: what every worker of a cluster does.

For Spark, `pandas_gates` is a function as `DataFrame.mapInPandas` wants it, frames in and frames out:

    outputs = Outputs(add=["terms"])
    schema = f"id bigint, text string, {spark_schema(outputs)}"
    frame.mapInPandas(partial(pandas_gates, outputs=outputs), schema)

Spark starts the processes, and starts them again where they die; each loads its model when its first frame comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from ...common.arrow import arrow_record, record_fields
from ...common.models import load_model
from ...common.packages import require
from ...configuration_hardkuma import check_choice
from ...modeling_hardkuma import HardKumaModel
from ...scoring_hardkuma import ALL, check_selection, encodable, gate_records
from ..reading import embed_texts

if TYPE_CHECKING:
    import pandas
    import pyarrow

ADDED = ("gates", "terms", "anchor", "rationale")
NO_TEXT = "the row has no text"
Table = TypeVar("Table", "pyarrow.Table", "pandas.DataFrame")


@dataclass(frozen=True)
class Outputs:
    """What is added to a table, and how words are selected.

    Attributes:
        column: the texts; a row without one gets empty gates and the reason, and no embedding.
        add: "gates" are the fields of a record (words, spans, rate, ...), "terms" the texts of its spans;
            "anchor" and "rationale" are embeddings, of what of a text fits into the encoder.
        selector, rate, threshold, keep, phrases: as of `gate_records`.
        batch_size: texts that the encoder runs on together.
    """

    column: str = "text"
    add: Sequence[str] = ("gates",)
    selector: str | None = None
    rate: float | None = None
    threshold: float | None = None
    keep: float | None = None
    phrases: bool = False
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in self.add:
            check_choice("add", name, ADDED)
        check_selection(self.rate, self.threshold, self.keep)
        if "rationale" in self.add and self.selector == ALL:
            raise ValueError(f"rationale embeddings are those of one selector, got selector={ALL!r}: name it.")

    def fields(self) -> list[pyarrow.Field]:
        """The columns that are added.

        >>> [field.name for field in Outputs(add=["terms", "anchor"]).fields()]
        ['terms', 'anchor']
        """
        arrow = require("pyarrow", "ray")
        fields = {
            "gates": record_fields(self.selector == ALL),
            "terms": [arrow.field("terms", arrow.list_(arrow.string()))],
            "anchor": [arrow.field("anchor", arrow.list_(arrow.float32()))],
            "rationale": [arrow.field("rationale", arrow.list_(arrow.float32()))],
        }
        return [field for name in self.add for field in fields[name]]


def add_gates(model: HardKumaModel, table: Table, outputs: Outputs | None = None) -> Table:
    """The table, row for row, with the columns of `outputs` behind its own.

    Args:
        model: in eval mode, with its tokenizer.
        table: a pyarrow.Table or a pandas.DataFrame with a column of texts, which `outputs.column` names.
        outputs: what is added; by default the gates of the column "text".

    >>> import pyarrow
    >>> from hardkuma import load_released
    >>> table = pyarrow.table({"id": [7], "text": ["Our flight to Oslo was delayed."]})
    >>> add_gates(load_released()[0], table, Outputs(add=["terms"])).to_pylist()[0]["terms"]
    ['Oslo', 'delayed']
    """
    outputs = outputs or Outputs()
    arrow = require("pyarrow", "ray")
    if isinstance(table, arrow.Table):
        added = _added_columns(model, _texts(table, outputs), outputs)
        for field in added.schema:
            table = table.append_column(field, added[field.name])
        return table
    if not hasattr(table, "iloc"):
        raise ValueError(f"add_gates takes a pyarrow.Table or a pandas.DataFrame, got a {type(table).__name__}.")
    _check_columns([str(name) for name in table.columns], outputs)
    # The frame's own columns stay as they are: on the way through Arrow pandas may change their types.
    texts = arrow.table({outputs.column: arrow.array(table[outputs.column], from_pandas=True)})
    added = _added_columns(model, _texts(texts, outputs), outputs)
    frame = added.to_pandas(maps_as_pydicts="strict").set_axis(table.index)
    return require("pandas", "ray").concat([table, frame], axis=1)


def _added_columns(model: HardKumaModel, texts: list[str | None], outputs: Outputs) -> pyarrow.Table:
    """The columns that are added, a row for each text."""
    arrow = require("pyarrow", "ray")
    given = [i for i, text in enumerate(texts) if text is not None]
    values = _values(model, [encodable(text) for text in texts if text is not None], outputs)
    columns = []
    for field in outputs.fields():
        empty: Any = NO_TEXT if field.name == "reason" else [] if field.name in ("words", "spans", "terms") else None
        rows = [empty] * len(texts)
        for i, value in zip(given, values[field.name], strict=True):
            rows[i] = value
        columns.append(arrow.array(rows, field.type))
    return arrow.table(columns, schema=arrow.schema(outputs.fields()))


def _check_columns(names: Sequence[str], outputs: Outputs) -> None:
    if outputs.column not in names:
        raise ValueError(
            f"there is no column {outputs.column!r}; there are: {', '.join(names)}. Name the one of the texts: "
            "Outputs(column=...), --field."
        )
    taken = [field.name for field in outputs.fields() if field.name in names]
    if taken:
        raise ValueError(f"the input has a column {taken[0]!r} already, which would be written: rename it first.")


def _texts(table: pyarrow.Table, outputs: Outputs) -> list[str | None]:
    arrow = require("pyarrow", "ray")
    _check_columns(table.column_names, outputs)
    column = table[outputs.column]
    if arrow.types.is_null(column.type):  # no row has a text
        return [None] * table.num_rows
    if not (arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type)):
        raise ValueError(f"the column {outputs.column!r} holds {column.type}, not text.")
    return column.to_pylist()


def _values(model: HardKumaModel, texts: Sequence[str], outputs: Outputs) -> dict[str, list[Any]]:
    """By the name of each added column, a value for every text."""
    values: dict[str, list[Any]] = {}
    if {"gates", "terms"} & set(outputs.add):
        names = ("selector", "rate", "threshold", "keep", "phrases", "batch_size")
        found = gate_records(model, texts, **{name: getattr(outputs, name) for name in names})
        records = [arrow_record(record) for record in found]
        fields = [field.name for field in record_fields(outputs.selector == ALL)]
        values |= {name: [record.get(name) for record in records] for name in fields}
        values["terms"] = [[span["text"] for span in record["spans"]] for record in records]
    for name in outputs.add:
        if name in ("anchor", "rationale"):
            options: Any = {} if name == "anchor" else {"rate": outputs.rate, "selector": outputs.selector}
            size = outputs.batch_size
            values[name] = list(embed_texts(model, texts, name, batch_size=size, **options).numpy()) if texts else []
    return values


@lru_cache(1)
def _worker_model(name: str | None) -> HardKumaModel:
    """Spark uses a process for one partition after the other."""
    return load_model(name)


def pandas_gates(
    frames: Iterator[pandas.DataFrame], outputs: Outputs | None = None, *, model: str | None = None
) -> Iterator[pandas.DataFrame]:
    """Each frame with the columns of `outputs` behind its own, row for row.

    Args:
        frames: with a column of texts each.
        outputs, model: as of `ray_gates`.

    >>> import pandas
    >>> frames = [pandas.DataFrame({"id": [7], "text": ["Our flight to Oslo was delayed."]})]
    >>> next(pandas_gates(iter(frames), Outputs(add=["terms"]))).loc[0, "terms"].tolist()
    ['Oslo', 'delayed']
    """
    for frame in frames:
        yield add_gates(_worker_model(model), frame, outputs)


def spark_schema(outputs: Outputs) -> str:
    """The columns that are added, in the words of Spark's schemas.

    >>> spark_schema(Outputs(add=["terms", "anchor"]))
    'terms array<string>, anchor array<float>'
    """
    return ", ".join(f"{field.name} {_spark_type(field.type)}" for field in outputs.fields())


def _spark_type(arrow_type: pyarrow.DataType) -> str:
    types = require("pyarrow", "ray").types
    if types.is_list(arrow_type):
        return f"array<{_spark_type(arrow_type.value_type)}>"
    if types.is_map(arrow_type):
        return f"map<{_spark_type(arrow_type.key_type)},{_spark_type(arrow_type.item_type)}>"
    if types.is_struct(arrow_type):
        return f"struct<{','.join(f'{field.name}:{_spark_type(field.type)}' for field in arrow_type)}>"
    return {"int32": "int", "bool": "boolean"}.get(str(arrow_type), str(arrow_type))
