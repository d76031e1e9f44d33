"""Code that is run twice, on the CPU and on a device that is none (pretend_device.py), in one process for all cases."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.forks import ForkServer

ROOT = Path(__file__).resolve().parents[1]
# A case is given a device and a folder of its own, and returns what is to be the same on every device.
Case = Callable[[torch.device, Path], Any]

CODE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import tests.pretend_device
from tests.device_cases import run_here
run_here(*sys.argv[1:])
"""


def run_cases(forks: ForkServer, module: str, folder: Path, *arguments: object) -> dict[str, str]:
    """What went wrong, by case, "" where nothing did."""
    fork = forks.start(CODE, module, folder, *arguments)
    assert fork.wait(1200) == 0, fork.stderr[-3000:]
    return json.loads((folder / "outcomes.json").read_text())


def run_here(module: str, folder: str, *arguments: str) -> None:
    from tests.pretend_device import DEVICE

    outcomes = {}
    cases: Mapping[str, Case] = import_module(module).make_cases(*arguments)
    for name, case in cases.items():
        try:
            results = []
            for place, device in (("cpu", torch.device("cpu")), ("device", DEVICE)):
                torch.manual_seed(0)
                results.append(case(device, Path(folder) / name.replace("/", "-") / place))
            check_same(*results)
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()[-4000:]
            print(f"{name}: {outcomes[name]}", file=sys.stderr)
    (Path(folder) / "outcomes.json").write_text(json.dumps(outcomes))


def check_same(first: Any, second: Any, where: str = "") -> None:
    """Raise AssertionError where they differ; tensors of the second may be on the device."""
    if isinstance(first, Tensor):
        a, b = first.detach().float(), second.detach().cpu().float()
        assert a.shape == b.shape, f"{where}: {tuple(a.shape)} and {tuple(b.shape)}"
        # The device takes another way through attention, and training carries what that rounds differently along.
        assert torch.allclose(a, b, atol=1e-4, rtol=1e-3), f"{where} differs by {float((a - b).abs().max()):.2g}"
    elif isinstance(first, Mapping):
        assert first.keys() == second.keys(), where
        for key in first:
            check_same(first[key], second[key], f"{where}.{key}")
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second), where
        for number, pair in enumerate(zip(first, second, strict=True)):
            check_same(*pair, f"{where}[{number}]")
    elif isinstance(first, float):
        assert abs(first - second) < 1e-4, f"{where}: {first} and {second}"
    else:
        assert first == second, f"{where}: {first} and {second}"
