"""What is random inside of a run without disturbing what is random around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, everything random follows from the seed; afterwards processor and device go on as if nothing had been drawn.

    >>> with seeded(3, torch.device("cpu")):
    ...     one = torch.rand(2)
    >>> with seeded(3, torch.device("cpu")):
    ...     print(torch.equal(one, torch.rand(2)))
    True
    """
    # torch.manual_seed seeds every device, and the run has this one alone.
    own = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(own, device_type=device.type):
        torch.manual_seed(seed)
        yield
