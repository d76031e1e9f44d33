"""HardKuma: which words carry this sentence's meaning? Learned token gates on sentence encoders, without labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors, which do not follow __getattr__
    from .anchors_hardkuma import chance_similarity as chance_similarity
    from .backends_hardkuma import choose_backend as choose_backend
    from .common.models import load_released as load_released
    from .configuration_hardkuma import HardKumaConfig as HardKumaConfig
    from .gates_hardkuma import Kumaraswamy as Kumaraswamy
    from .gates_hardkuma import StretchedKumaraswamy as StretchedKumaraswamy
    from .modeling_hardkuma import HardKumaForTokenClassification as HardKumaForTokenClassification
    from .modeling_hardkuma import HardKumaModel as HardKumaModel
    from .outputs_hardkuma import HardKumaOutput as HardKumaOutput
    from .pairs_hardkuma import explain_pair as explain_pair
    from .pipeline_hardkuma import GateClassificationPipeline as GateClassificationPipeline
    from .pipeline_hardkuma import TokenGatesPipeline as TokenGatesPipeline
    from .search.index import SearchIndex as SearchIndex
    from .search.terms import find_terms as find_terms
    from .surface_hardkuma import continues_batch as continues_batch
    from .surface_hardkuma import surface_batch as surface_batch
    from .surface_hardkuma import surface_ids as surface_ids
    from .words_hardkuma import ScoredText as ScoredText
    from .words_hardkuma import gate_records as gate_records
    from .words_hardkuma import score_texts as score_texts

__version__ = "0.2.0.dev0"

# Names are imported when first used: `import hardkuma` stays cheap, and tools that import this file under another name
# (pytest does, for a flat root) do not import everything twice.
_EXPORTS = {
    "HardKumaConfig": "configuration_hardkuma",
    "HardKumaModel": "modeling_hardkuma",
    "HardKumaForTokenClassification": "modeling_hardkuma",
    "HardKumaOutput": "outputs_hardkuma",
    "Kumaraswamy": "gates_hardkuma",
    "StretchedKumaraswamy": "gates_hardkuma",
    "ScoredText": "words_hardkuma",
    "SearchIndex": "search.index",
    "TokenGatesPipeline": "pipeline_hardkuma",
    "GateClassificationPipeline": "pipeline_hardkuma",
    "chance_similarity": "anchors_hardkuma",
    "choose_backend": "backends_hardkuma",
    "continues_batch": "surface_hardkuma",
    "explain_pair": "pairs_hardkuma",
    "find_terms": "search.terms",
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
