"""The models that commands, spaCy and the demo work with: a checkpoint by name, or the released gate head."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..modeling_hardkuma import HardKumaModel

RELEASED = Path(__file__).parents[1] / "released"


def load_released() -> tuple[HardKumaModel, PreTrainedTokenizerBase]:
    """The released gate head on all-MiniLM-L6-v2, in eval mode, and its tokenizer.

    `model.save_pretrained(folder)` makes a complete Hub folder of it.

    >>> model, tokenizer = load_released()
    >>> out = model(**tokenizer(["Marie Curie moved to Paris."], return_tensors="pt"), selector="meaning")
    >>> out.gates.shape, model.training
    (torch.Size([1, 9]), False)
    """
    if not (RELEASED / "model.safetensors").is_file():
        raise FileNotFoundError(f"{RELEASED} has no model.safetensors: install the package again.")
    model = HardKumaModel.from_pretrained(RELEASED).eval()
    return model, model.tokenizer


def load_model(name: str | None = None, device: str | None = None) -> HardKumaModel:
    """A model in eval mode, quietly loaded.

    Args:
        name: checkpoint folder or Hub id; the released gate head where none is given.
        device: such as "cuda:1"; by default a GPU if there is one.

    >>> load_model(device="cpu").config.model_type
    'hardkuma'
    """
    logging.disable_progress_bar()
    if name is None:
        model = load_released()[0]
    else:
        if not Path(name).is_dir() and (not name or name[0] in "./~\\" or Path(name).is_absolute()):
            raise FileNotFoundError(f"--model {name!r}: no such folder; give the folder of a checkpoint or a Hub id.")
        model = HardKumaModel.from_pretrained(name).eval()
    try:
        if device == "meta":
            raise RuntimeError("it holds no values")
        target = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return model.to(target)  # type: ignore[arg-type]  # by transformers' decorator mypy takes this for the unbound method
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ValueError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}); leave it out.") from error
