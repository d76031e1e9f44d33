"""The training text on disk: token ids, word shapes, sentence embeddings and, for a frozen encoder, its token states.

One flat file per kind, read through memory maps that are opened for one batch and closed again: resident memory does not
grow with the corpus, and an epoch over stored states costs the gate head alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..common.files import write_atomically
from ..inputs_hardkuma import content_mask
from ..modeling_hardkuma import HardKumaModel
from ..surface_hardkuma import surface_ids

CHUNK = 2048  # sentences tokenised, sorted by length and encoded at a time
RESERVE = 1 << 30  # bytes of disk that are left alone
_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class StateStore:
    """Sentences by number. Built once by `build_store`, then opened by every process.

    Files: ids (int32), shapes (uint8), [states and, where the selector reads an inner layer, layer_states (cache_type,
    hidden)], [attention (float32, 2)] per token;
    anchors (float32, dim) per sentence; meta.json last, so that a store without it is unfinished.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        meta = json.loads((self.folder / "meta.json").read_text())
        self.offsets = np.load(self.folder / "offsets.npy")
        self.cache_type: str | None = meta["cache_type"]
        self.hidden, self.dim, self.pad = meta["hidden"], meta["dim"], meta["pad"]
        self.has_attention: bool = meta["attention"]
        self.has_layer: bool = meta["layer"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence."""
        return np.diff(self.offsets)

    @contextmanager
    def _open(self, name: str, dtype: Any, width: int | None = None) -> Iterator[np.ndarray]:
        shape = None if width is None else (-1, width)
        flat = np.memmap(self.folder / name, dtype=dtype, mode="r")
        yield flat if shape is None else flat.reshape(shape)
        flat._mmap.close()

    def anchors(self) -> np.ndarray:
        """(sentences, dim) sentence embeddings, memory-mapped."""
        return np.memmap(self.folder / "anchors", dtype=np.float32, mode="r").reshape(-1, self.dim)

    def fetch(self, rows: Sequence[int] | np.ndarray, shapes: bool = False) -> dict[str, Any]:
        """A right-padded batch of model inputs, with `encoded` where states are stored, with `surface_ids` if asked."""
        starts, ends = self.offsets[np.asarray(rows)], self.offsets[np.asarray(rows) + 1]
        shape = (len(starts), int((ends - starts).max()))
        mask = torch.zeros(shape, dtype=torch.long)
        for row, length in enumerate(ends - starts):
            mask[row, :length] = 1
        batch: dict[str, Any] = {
            "input_ids": self._gather("ids", np.int32, starts, ends, shape, self.pad).long(),
            "attention_mask": mask,
        }
        if shapes:
            batch["surface_ids"] = self._gather("shapes", np.uint8, starts, ends, shape, 0).long()
        if self.cache_type is not None:
            batch["encoded"] = {"states": self._states("states", starts, ends, shape)}
            if self.has_layer:
                batch["encoded"]["layer_states"] = self._states("layer_states", starts, ends, shape)
            if self.has_attention:
                batch["encoded"]["attention"] = self._gather("attention", np.float32, starts, ends, (*shape, 2), 0)
        return batch

    def _gather(
        self, name: str, dtype: Any, starts: np.ndarray, ends: np.ndarray, shape: tuple[int, ...], fill: int
    ) -> Tensor:
        out = np.full(shape, fill, dtype=dtype)
        with self._open(name, dtype, None if len(shape) == 2 else shape[2]) as flat:
            for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
                out[row, : end - start] = flat[start:end]
        return torch.from_numpy(out)

    def _states(self, name: str, starts: np.ndarray, ends: np.ndarray, shape: tuple[int, int]) -> Tensor:
        # numpy knows no bfloat16: the bits are moved as integers.
        dtype = _TYPES[self.cache_type]
        bits = np.int32 if dtype == torch.float32 else np.int16
        return self._gather(name, bits, starts, ends, (*shape, self.hidden), 0).view(dtype)


def store_key(model: HardKumaModel, digest: str, cache_type: str | None) -> str:
    """What a store depends on; a store with another key is built again."""
    config = model.config
    parts: list[Any] = [
        config.encoder_fingerprint,
        digest,
        cache_type,
        config.max_seq_length,
        config.pooling_mode,
        config.projections,
    ]
    parts += ["attention" in config.selector_inputs, config.attention_layers, config.frequency_filter]
    parts += [config.frequency_low, config.frequency_high, config.normalize, config.selector_layer]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def texts_digest(texts: Sequence[str]) -> str:
    """SHA-256 over the texts, in order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def build_store(
    model: HardKumaModel,
    texts: Sequence[str],
    folder: str | Path,
    cache_type: str | None,
    say: Callable[[str], None] = print,
    progress: bool = True,
) -> StateStore:
    """Tokenise and encode the texts, unless the folder already holds exactly this.

    Args:
        model: in eval mode, on the device that is to encode.
        cache_type: element type of the stored states; None stores sentence embeddings alone.
        say: told when the disk is too small for the states, which are then left out.
    """
    folder = Path(folder)
    key = store_key(model, texts_digest(texts), cache_type)
    meta = folder / "meta.json"
    if meta.is_file() and json.loads(meta.read_text())["key"] == key:
        return StateStore(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    offsets = _write_tokens(model, texts, folder, progress)
    width = model.config.hidden_size * len(_kinds_of_states(model))
    if cache_type is not None and not _fits(folder, int(offsets[-1]), width, cache_type):
        size = offsets[-1] * width * _TYPES[cache_type].itemsize / 1e9
        say(f"not enough free disk for {size:.1f} GB of token states: encoding anew in every epoch instead.")
        cache_type = None
    np.save(folder / "offsets.npy", offsets)
    dim = _write_states(model, folder, offsets, cache_type, progress)
    content = {
        "key": key,
        "cache_type": cache_type,
        "hidden": model.config.hidden_size,
        "dim": dim,
        "pad": model.tokenizer.pad_token_id,
        "attention": cache_type is not None and "attention" in model.config.selector_inputs,
        "layer": cache_type is not None and "layer_states" in _kinds_of_states(model),
    }
    write_atomically(meta, json.dumps(content))
    return StateStore(folder)


def _kinds_of_states(model: HardKumaModel) -> list[str]:
    """What is stored per token: the last states and, where the selector reads another layer, that layer's."""
    return ["states"] if model.config.selector_layer == -1 else ["states", "layer_states"]


def _fits(folder: Path, tokens: int, width: int, cache_type: str) -> bool:
    size = _TYPES[cache_type].itemsize
    return shutil.disk_usage(folder).free > tokens * width * size + RESERVE


def _write_tokens(model: HardKumaModel, texts: Sequence[str], folder: Path, progress: bool) -> np.ndarray:
    tokenizer, lengths = model.tokenizer, []
    bar = tqdm(total=len(texts), desc="tokenising", unit="sentence", disable=not progress, leave=False)
    with open(folder / "ids", "wb") as ids, open(folder / "shapes", "wb") as shapes, bar:
        for start in range(0, len(texts), CHUNK):
            part = list(texts[start : start + CHUNK])
            encoded = tokenizer(part, truncation=True, max_length=model.config.max_seq_length, return_offsets_mapping=True)
            for text, tokens, spans in zip(part, encoded["input_ids"], encoded["offset_mapping"], strict=True):
                np.asarray(tokens, dtype=np.int32).tofile(ids)
                np.asarray(surface_ids(text, spans), dtype=np.uint8).tofile(shapes)
                lengths.append(len(tokens))
            bar.update(len(part))
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@torch.inference_mode()
def _write_states(model: HardKumaModel, folder: Path, offsets: np.ndarray, cache_type: str | None, progress: bool) -> int:
    """Encode in batches of like length and put each sentence's states where its tokens are."""
    tokens, hidden = int(offsets[-1]), model.config.hidden_size
    attention = cache_type is not None and "attention" in model.config.selector_inputs
    reader = _Tokens(folder, offsets, model.tokenizer.pad_token_id)
    dim = 0
    bar = tqdm(total=len(offsets) - 1, desc="encoding", unit="sentence", disable=not progress, leave=False)
    for start in range(0, len(offsets) - 1, CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(offsets) - 1))
        rows = rows[np.argsort(np.diff(offsets)[rows], kind="stable")]
        # All files are opened anew for each chunk: written pages do not stay resident.
        anchors: np.memmap | None = None
        bits = np.int32 if cache_type == "float32" else np.int16
        kinds = _kinds_of_states(model) if cache_type else []
        states = {kind: _writable(folder / kind, bits, (tokens, hidden)) for kind in kinds}
        given = _writable(folder / "attention", np.float32, (tokens, 2)) if attention else None
        for first in range(0, len(rows), 64):
            some = rows[first : first + 64]
            inputs = {name: value.to(model.device) for name, value in reader.fetch(some).items()}
            out = model.encode_tokens(**inputs)
            embedding = out["anchor"].float().cpu().numpy()
            dim = embedding.shape[1]
            if anchors is None:
                anchors = _writable(folder / "anchors", np.float32, (len(offsets) - 1, embedding.shape[1]))
            anchors[some] = embedding
            if states:
                tensors = {"states": out["states"], "layer_states": out.get("layer_states", out["states"])}
                stored = {kind: _as_bits(tensors[kind], cache_type) for kind in kinds}
                for row, number in enumerate(some):
                    begin, end = offsets[number], offsets[number + 1]
                    for kind in kinds:
                        states[kind][begin:end] = stored[kind][row, : end - begin]
                    if given is not None:
                        given[begin:end] = out["attention"][row, : end - begin].float().cpu().numpy()
            bar.update(len(some))
    bar.close()
    return int(dim)


def _as_bits(states: Tensor, cache_type: str) -> np.ndarray:
    converted = states.to(_TYPES[cache_type]).cpu()
    if not bool(torch.isfinite(converted).all()):
        raise ValueError(f"token states do not fit into {cache_type}: use --cache_type bfloat16.")
    return converted.view(torch.int32 if cache_type == "float32" else torch.int16).numpy()


def _writable(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    return np.memmap(path, dtype=dtype, mode="r+" if path.exists() else "w+", shape=shape)


class _Tokens(StateStore):
    """The token ids of a store, also of one that is still being written."""

    def __init__(self, folder: Path, offsets: np.ndarray, pad: int):
        self.folder, self.offsets, self.pad, self.cache_type = folder, offsets, pad, None


def usable_rows(store: StateStore, model: HardKumaModel) -> np.ndarray:
    """Numbers of the sentences with at least one content token."""
    keep = []
    for start in range(0, len(store), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(store)))
        batch = _Tokens(store.folder, store.offsets, store.pad).fetch(rows)
        content = content_mask(model.config, batch["input_ids"], batch["attention_mask"], None)
        keep.append(rows[content.any(-1).numpy()])
    return np.concatenate(keep)
