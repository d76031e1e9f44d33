"""The model that a command works with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """`--model`, by default the released gate head."""
    parser.add_argument("--model", metavar="FOLDER", help="checkpoint folder or Hub id (default: the released gate head)")


def load_model(name: str | None, device: str | None = None) -> Any:
    """A HardKumaModel in eval mode, quietly loaded; the released one where no name is given.

    Args:
        device: such as "cuda:1"; by default a GPU if there is one.

    >>> load_model(None, "cpu").config.model_type
    'hardkuma'
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if name is not None and not Path(name).is_dir() and (not name or name[0] in "./~\\" or Path(name).is_absolute()):
        raise FileNotFoundError(f"--model {name!r}: no such folder; give the folder of a checkpoint or a Hub id.")
    if name is None:
        from ..released import load_released

        model = load_released()[0]
    else:
        from ..modeling_hardkuma import HardKumaModel

        model = HardKumaModel.from_pretrained(name).eval()
    try:
        if device == "meta":
            raise RuntimeError("it holds no values")
        return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ValueError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}); leave it out.") from error
