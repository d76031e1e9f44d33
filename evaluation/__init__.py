"""Metrics with and without labels, baselines, the benchmark with its tables and report, encoders on the customary tasks.

>>> from hardkuma.evaluation import METRICS
>>> METRICS["average_precision"].compute(predictions=[[0.9, 0.1]], references=[[1, 0]])
{'average_precision': 1.0}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.packages import lazy_exports

if TYPE_CHECKING:  # for type checkers and editors, which do not follow __getattr__
    from .benchmark import Benchmark as Benchmark
    from .benchmark import run_benchmark as run_benchmark
    from .informativeness import correlate as correlate
    from .metrics import METRICS as METRICS
    from .metrics import WordMetric as WordMetric
    from .metrics import as_evaluate as as_evaluate
    from .report import write_report as write_report
    from .results import MethodResult as MethodResult

# Imported when first used: training takes one function from here and should not pay for reports, and `informativeness` is a
# command, which Python wants to import itself.
_EXPORTS = {
    "METRICS": "metrics",
    "WordMetric": "metrics",
    "as_evaluate": "metrics",
    "Benchmark": "benchmark",
    "MethodResult": "results",
    "run_benchmark": "benchmark",
    "write_report": "report",
    "correlate": "informativeness",
}
__all__ = list(_EXPORTS)
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
