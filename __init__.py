"""HardKuma: which words carry this sentence's meaning? Learned token gates on sentence encoders, without labels."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Names are imported when first used: `import hardkuma` stays cheap, and tools that import this file under another name
# (pytest does, for a flat root) do not import everything twice.
_EXPORTS = {
    "HardKumaConfig": "configuration_hardkuma",
    "HardKumaModel": "modeling_hardkuma",
    "HardKumaForTokenClassification": "modeling_hardkuma",
    "HardKumaOutput": "modeling_hardkuma",
    "Kumaraswamy": "gates_hardkuma",
    "StretchedKumaraswamy": "gates_hardkuma",
    "ScoredText": "words_hardkuma",
    "TokenGatesPipeline": "pipeline_hardkuma",
    "GateClassificationPipeline": "pipeline_hardkuma",
    "explain_pair": "pairs_hardkuma",
    "gate_records": "words_hardkuma",
    "load_released": "common.models",
    "score_texts": "words_hardkuma",
    "surface_batch": "surface_hardkuma",
    "surface_ids": "surface_hardkuma",
}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'hardkuma' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
