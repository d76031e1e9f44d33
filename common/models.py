"""The models that commands, spaCy and the demo work with: a checkpoint by name, or the released gate head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import Highlight

CONFIG = "config.json"
RELEASED = Path(__file__).parents[1]  # the package's own folder is a Hub model repository


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
    with no_progress_bar():
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
    if name is None:
        model = load_released()[0]
    else:
        _check_name(name)
        with no_progress_bar():
            model = HardKumaModel.from_pretrained(name).eval()
    try:
        if device == "meta":
            raise RuntimeError("it holds no values")
        target = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return model.to(target)  # type: ignore[arg-type]  # by transformers' decorator mypy takes this for the unbound method
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ValueError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}); leave it out.") from error


def highlight(texts: str | list[str], model: HardKumaModel | None = None, **options: Any) -> Highlight:
    """The words that carry texts, marked: shown by a notebook, `print`, `.to_html()` or `.save("page.html")`.

    Args:
        texts: one, or several.
        model: the released head where none is given.
        options: of `gate_records`, such as `rate=0.2`, `keep=0.8` or `selector="entities"`.

    >>> print(highlight("Our flight to Oslo was delayed by heavy snow.", keep=0.8))
    Our flight to [Oslo] was [delayed] by heavy [snow].
    """
    return (load_released()[0] if model is None else model).highlight(texts, **options)


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Without transformers' bars: for a file that is here and small they say nothing.

    >>> with no_progress_bar():
    ...     logging.is_progress_bar_enabled()
    False
    """
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _check_name(name: str) -> None:
    """Say at once, and in one sentence, that there is no such model: transformers tries for half a minute."""
    if Path(name).is_dir():
        if not (Path(name) / CONFIG).is_file():
            inside = Path(name) / "model"  # where `hardkuma train` puts it
            fix = f"did you mean {inside}?" if (inside / CONFIG).is_file() else "give the folder of a checkpoint."
            raise FileNotFoundError(f"--model {name}: this folder has no {CONFIG}; {fix}")
        return
    if Path(name).is_file():
        raise NotADirectoryError(f"--model {name}: this is a file; give the folder of a checkpoint.")
    if not name or name[0] in "./~\\" or Path(name).is_absolute():
        raise FileNotFoundError(f"--model {name!r}: no such folder; give the folder of a checkpoint or a Hub id.")
    try:
        if isinstance(huggingface_hub.try_to_load_from_cache(name, CONFIG), str):
            return
        if huggingface_hub.is_offline_mode():
            raise OSError("HF_HUB_OFFLINE is set, and it is not in the cache")
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(name, CONFIG))
    except Exception as error:  # the Hub's, or those of the network library that it happens to use
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(f"--model {name!r}: no such folder, and not to be had from the Hub ({reason}).") from error
