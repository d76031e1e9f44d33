"""Gates of more text than one machine reads: the same records, worked out by a cluster."""

from .columns import Outputs, add_gates
from .ray_engine import ray_gates

__all__ = ["Outputs", "add_gates", "ray_gates"]
