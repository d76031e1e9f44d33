"""Gates of more text than one machine reads: the same records, worked out by a cluster."""

from .cluster import list_shards, ray_gate_files, ray_gates, waiting_shards
from .tables import Outputs, add_gates, pandas_gates, spark_schema

__all__ = [
    "Outputs",
    "add_gates",
    "list_shards",
    "pandas_gates",
    "ray_gate_files",
    "ray_gates",
    "spark_schema",
    "waiting_shards",
]
