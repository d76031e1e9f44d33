"""What computes the gates of a model: torch, onnxruntime, or whichever is faster on this machine.

A backend takes tokens and gives probabilities. How a text is cut into tokens, and what is made of the probabilities, is the
same for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from ...configuration_hardkuma import check_choice
from ...modeling_hardkuma import HardKumaModel
from ...scoring_hardkuma import ALL, GateModel
from .onnx_gates import BATCH_TOKENS, OnnxGates

logger = logging.get_logger(__name__)

BACKENDS = ("torch", "onnx", "auto")
TRIAL_SECONDS = 0.5  # for each backend
TRIAL_LENGTH = 32  # tokens, those of a longish sentence


class Backend(NamedTuple):
    """A backend that has been chosen.

    Attributes:
        name: "torch" or "onnx".
        precision: of its arithmetic: that of the model's weights, or "int8".
        gates: the model, or what stands for it in `score_texts`, `gate_records` and others.
    """

    name: str
    precision: str
    gates: GateModel


def choose_backend(
    model: HardKumaModel,
    name: str = "torch",
    selector: str | None = None,
    log: Callable[[str], None] | None = None,
    make: bool = True,
) -> Backend:
    """A backend by its name.

    Args:
        model: in eval mode.
        name: "torch"; "onnx" (an error where it cannot be had); or "auto": both are tried for a moment, and the faster one
            is taken, or torch where there is no other.
        selector: the one that will be asked for first; "meaning" by default, or the first; "all" for all of them.
        log: called with a sentence when something takes time, and with what "auto" has chosen.
        make: with "auto", export the model if that has not been done yet, which takes a while; else it is torch then.

    >>> from hardkuma import load_released
    >>> choose_backend(load_released()[0]).name
    'torch'
    >>> choose_backend(load_released()[0], "jax")
    Traceback (most recent call last):
    ValueError: backend must be one of torch, onnx, auto; got 'jax'.
    """
    check_choice("backend", name, BACKENDS)
    own = Backend("torch", str(model.dtype).removeprefix("torch."), model)
    if name == "torch":
        return own
    config = model.config
    wanted = None if selector == ALL and config.num_selectors > 1 else config.names[_number(model, selector)]
    if name == "onnx":
        onnx = OnnxGates(model, log=log)
        return Backend("onnx", onnx.prepare(wanted), onnx)
    say = log or logger.warning
    try:
        onnx = OnnxGates(model, log=log)
        if not make and not onnx.is_at_hand(wanted):
            raise ValueError("it is not exported yet, and for so little it is not worth while")
        other = Backend("onnx", onnx.prepare(wanted), onnx)
    except (ImportError, ValueError, OSError) as error:
        say(f"backend torch, since onnx cannot be had: {error}")
        return own
    speeds = {backend.name: measure_speed(backend.gates, wanted) for backend in (own, other)}
    best = own if speeds["torch"] >= speeds["onnx"] else other
    measured = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
    say(f"backend {best.name} ({best.precision}); sentences of {TRIAL_LENGTH} tokens a second: {measured}")
    return best


def _number(model: HardKumaModel, selector: str | None) -> int:
    return model.config.find_selector(None if selector == ALL else selector)


def measure_speed(gates: GateModel, selector: str | None = None, seconds: float = TRIAL_SECONDS) -> float:
    """Sentences a second, measured over about this time with tokens of no meaning.

    >>> from hardkuma import load_released
    >>> measure_speed(load_released()[0], "entities", seconds=0.01) > 0
    True
    """
    seeded = torch.Generator().manual_seed(0)  # of its own: the caller's random numbers stay what they were
    ids = torch.randint(gates.config.vocab_size, (BATCH_TOKENS // TRIAL_LENGTH, TRIAL_LENGTH), generator=seeded)
    batch: dict[str, Tensor] = {"input_ids": ids.to(gates.device), "attention_mask": torch.ones_like(ids).to(gates.device)}
    next(gates.gate_batches([batch], selector))  # the first one is slow
    start = time.perf_counter()

    def until_then() -> Iterator[dict[str, Tensor]]:
        for item in repeat(batch):
            yield item
            if time.perf_counter() - start > seconds:
                return

    rows = sum(len(probabilities) for probabilities in gates.gate_batches(until_then(), selector))
    return rows / (time.perf_counter() - start)
