"""HardKuma: which words carry this sentence's meaning? Learned token gates on sentence encoders, without labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors, which do not follow __getattr__
    from .apps.diff import compare_texts as compare_texts
    from .apps.differences import find_differences as find_differences
    from .apps.export.backends import choose_backend as choose_backend
    from .apps.keywords import KeyphraseExtractor as KeyphraseExtractor
    from .apps.pairs import explain_pair as explain_pair
    from .apps.reading import chance_similarity as chance_similarity
    from .apps.search import SearchIndex as SearchIndex
    from .apps.terms import find_terms as find_terms
    from .apps.terms import stream_terms as stream_terms
    from .common.models import highlight as highlight
    from .common.models import load_released as load_released
    from .configuration_hardkuma import HardKumaConfig as HardKumaConfig
    from .kumaraswamy_hardkuma import Kumaraswamy as Kumaraswamy
    from .kumaraswamy_hardkuma import StretchedKumaraswamy as StretchedKumaraswamy
    from .modeling_hardkuma import HardKumaForSequenceClassification as HardKumaForSequenceClassification
    from .modeling_hardkuma import HardKumaForTokenClassification as HardKumaForTokenClassification
    from .modeling_hardkuma import HardKumaModel as HardKumaModel
    from .modeling_hardkuma import HardKumaOutput as HardKumaOutput
    from .pipeline_hardkuma import GateClassificationPipeline as GateClassificationPipeline
    from .pipeline_hardkuma import TokenGatesPipeline as TokenGatesPipeline
    from .scoring_hardkuma import ScoredText as ScoredText
    from .scoring_hardkuma import gate_records as gate_records
    from .scoring_hardkuma import score_texts as score_texts
    from .words_hardkuma import continues_batch as continues_batch
    from .words_hardkuma import surface_batch as surface_batch
    from .words_hardkuma import surface_ids as surface_ids

__version__ = "0.2.0"

# Names are imported when first used: `import hardkuma` stays cheap, and tools that import this file under another name
# (pytest does, for a flat root) do not import everything twice.
_EXPORTS = {
    "HardKumaConfig": "configuration_hardkuma",
    "HardKumaModel": "modeling_hardkuma",
    "HardKumaForSequenceClassification": "modeling_hardkuma",
    "HardKumaForTokenClassification": "modeling_hardkuma",
    "HardKumaOutput": "modeling_hardkuma",
    "KeyphraseExtractor": "apps.keywords",
    "Kumaraswamy": "kumaraswamy_hardkuma",
    "StretchedKumaraswamy": "kumaraswamy_hardkuma",
    "ScoredText": "scoring_hardkuma",
    "SearchIndex": "apps.search",
    "TokenGatesPipeline": "pipeline_hardkuma",
    "GateClassificationPipeline": "pipeline_hardkuma",
    "chance_similarity": "apps.reading",
    "choose_backend": "apps.export.backends",
    "compare_texts": "apps.diff",
    "continues_batch": "words_hardkuma",
    "explain_pair": "apps.pairs",
    "find_differences": "apps.differences",
    "find_terms": "apps.terms",
    "gate_records": "scoring_hardkuma",
    "highlight": "common.models",
    "load_released": "common.models",
    "score_texts": "scoring_hardkuma",
    "stream_terms": "apps.terms",
    "surface_batch": "words_hardkuma",
    "surface_ids": "words_hardkuma",
}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'hardkuma' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
