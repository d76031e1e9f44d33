"""Two training processes without a launcher, forked from a server that has imported torch once."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.process import BaseProcess
from pathlib import Path


def start_ranks(arguments: list[str], log: Path, world_size: int = 2) -> list[BaseProcess]:
    """Start `train.py` in so many processes that talk to each other; rank r writes what it says to `log`.r."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hardkuma.training.trainer", "hardkuma.train"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes: list[BaseProcess] = []
    for rank in range(world_size):
        process = context.Process(target=_train, args=(arguments, rank, world_size, port, f"{log}.{rank}"))
        process.start()
        processes.append(process)
    return processes


def _train(arguments: list[str], rank: int, world_size: int, port: int, log: str) -> None:
    import torch

    from hardkuma import train

    torch.set_num_threads(1)
    position = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in position.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1")
    with open(log, "w") as file, redirect_stdout(file), redirect_stderr(file):
        status = train.main(arguments)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    sys.exit(status)
