"""Names of what text may come in: formats, and standard input instead of a file."""

from __future__ import annotations

# Those whose rows have columns come last. `data.readers` reads them; command lines list them without importing it.
COLUMN_FORMATS = ("jsonl", "csv", "tsv", "parquet", "hub")
INPUT_FORMATS = ("text", "conll", "conllu", *COLUMN_FORMATS)
STANDARD_INPUT = "-"
