"""Names of the formats that text may come in."""

from __future__ import annotations

# Those whose rows have columns come last. `corpora.readers` reads them; command lines list them without importing it.
COLUMN_FORMATS = ("jsonl", "csv", "tsv", "parquet", "hub")
INPUT_FORMATS = ("text", "conll", "conllu", *COLUMN_FORMATS)
