"""Gates of pandas frames, as Spark's `DataFrame.mapInPandas` wants a function: frames in, frames out.

    outputs = Outputs(kinds=["terms"])
    schema = f"id bigint, text string, {spark_schema(outputs)}"
    frame.mapInPandas(partial(pandas_gates, outputs=outputs), schema)

Spark starts the processes, and starts them again where they die; each loads its model when its first frame comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from ...common.models import load_model
from ...common.packages import require
from ...modeling_hardkuma import HardKumaModel
from .columns import Outputs, add_gates

if TYPE_CHECKING:
    import pandas
    import pyarrow


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
    >>> next(pandas_gates(iter(frames), Outputs(kinds=["terms"]))).loc[0, "terms"].tolist()
    ['Oslo', 'delayed']
    """
    arrow, pd = require("pyarrow", "ray"), require("pandas", "ray")
    outputs = outputs or Outputs()
    for frame in frames:
        if outputs.column not in frame:
            raise ValueError(f"there is no column {outputs.column!r}; there are: {', '.join(map(str, frame.columns))}.")
        # The frame's own columns stay as they are: on the way through Arrow pandas may change their types.
        texts = arrow.table({outputs.column: arrow.array(frame[outputs.column], from_pandas=True)})
        added = add_gates(_worker_model(model), texts, outputs).drop_columns([outputs.column])
        columns = added.to_pandas(maps_as_pydicts="strict").set_axis(frame.index)
        yield pd.concat([frame, columns], axis=1, verify_integrity=True)


def spark_schema(outputs: Outputs) -> str:
    """The columns that are added, in the words of Spark's schemas.

    >>> spark_schema(Outputs(kinds=["terms", "anchor"]))
    'terms array<string>, anchor array<float>'
    """
    return ", ".join(f"{field.name} {_spark_type(field.type)}" for field in outputs.fields())


def _spark_type(kind: pyarrow.DataType) -> str:
    types = require("pyarrow", "ray").types
    if types.is_list(kind):
        return f"array<{_spark_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{_spark_type(kind.key_type)},{_spark_type(kind.item_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{_spark_type(field.type)}' for field in kind)}>"
    return {"int32": "int", "bool": "boolean"}.get(str(kind), str(kind))
