"""Gates of more text than one machine reads: the same records, worked out by a cluster."""

from .columns import Outputs, add_gates
from .frames import pandas_gates, spark_schema
from .ray_engine import ray_gate_files, ray_gates

__all__ = ["Outputs", "add_gates", "pandas_gates", "ray_gate_files", "ray_gates", "spark_schema"]
