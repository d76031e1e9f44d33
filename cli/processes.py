"""The processes that share one run of a command, as `accelerate launch` and `torchrun` start them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ..common.packages import require

if TYPE_CHECKING:
    from accelerate import PartialState


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that share the work.

    Attributes:
        rank: its number, from 0; process 0 alone prints, begins and ends.
        size: how many there are.
        device: where its model goes; None: a GPU if there is one.
        state: accelerate's, by which they wait for each other; None where there is one process.

    >>> group = ProcessGroup()
    >>> group.wait()
    >>> group.rank, group.size
    (0, 1)
    """

    rank: int = 0
    size: int = 1
    device: str | None = None
    state: PartialState | None = None

    def wait(self) -> None:
        """Return when every process has come to this line."""
        if self.state is not None:
            self.state.wait_for_everyone()


def count_processes() -> int:
    """How many processes were started together; 1 where nothing says otherwise.

    >>> count_processes() >= 1
    True
    """
    return int(os.environ.get("WORLD_SIZE", "1"))


def join_process_group(device: str | None = None) -> ProcessGroup:
    """Meet the other processes, if there are any.

    Args:
        device: such as "cuda:1"; by default accelerate gives each process its own.

    >>> join_process_group("cpu").device
    'cpu'
    """
    if count_processes() == 1:
        return ProcessGroup(device=device)
    accelerate = require("accelerate", "train")
    import torch

    # The wait at the end lasts as long as the slowest process, which may be hours behind.
    state = accelerate.PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=30))
    if state.num_processes != count_processes():
        raise ValueError(
            f"{count_processes()} processes were started, but accelerate joined {state.num_processes}; check its setup."
        )
    return ProcessGroup(state.process_index, state.num_processes, device or str(state.device), state)
