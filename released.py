"""The released gate head for all-MiniLM-L6-v2, in the folder `released` of this package."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from .modeling_hardkuma import HardKumaModel

RELEASED = Path(__file__).parent / "released"


def load_released() -> tuple[HardKumaModel, PreTrainedTokenizerBase]:
    """The model that `hardkuma gates` uses when no other is named, in eval mode, and its tokenizer.

    `model.save_pretrained(folder)` makes a complete Hub folder of it.

    >>> model, tokenizer = load_released()
    >>> out = model(**tokenizer(["Marie Curie moved to Paris."], return_tensors="pt"))
    >>> out.gates.shape, model.training
    (torch.Size([1, 8]), False)
    """
    if not (RELEASED / "model.safetensors").is_file():
        raise FileNotFoundError(f"{RELEASED} has no model.safetensors: install the package again.")
    model = HardKumaModel.from_pretrained(RELEASED).eval()
    return model, model.tokenizer
