"""The training text on disk: token ids, word shapes, sentence embeddings and, for a frozen encoder, its token states.

One flat file per kind, read through memory maps that are opened for one batch and closed again: resident memory does not
grow with the corpus, and an epoch over stored states costs the gate head alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..common.files import write_atomically
from ..inputs_hardkuma import content_mask, to_device
from ..modeling_hardkuma import HardKumaModel
from ..surface_hardkuma import continuing_spans, surface_ids

CHUNK = 2048  # sentences tokenised, sorted by length and encoded at a time
BATCH = 64  # sentences in one pass of the model
RESERVE = 1 << 30  # bytes of disk that are left alone
_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class TokenFile:
    """The token ids of sentences on disk, readable while their states are still being written."""

    def __init__(self, folder: Path, offsets: np.ndarray, pad: int):
        self.folder, self.offsets, self.pad = folder, offsets, pad

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence."""
        return np.diff(self.offsets)

    def tokens(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` of these sentences, (batch, length), padded on the right."""
        lengths = torch.from_numpy(self.lengths[np.asarray(rows)])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        return {"input_ids": self._gather("ids", np.int32, rows, fill=self.pad).long(), "attention_mask": mask}

    def _gather(
        self, name: str, dtype: Any, rows: Sequence[int] | np.ndarray, width: int | None = None, fill: int = 0
    ) -> Tensor:
        """What file `name` holds of the tokens of these sentences: (batch, length[, width])."""
        starts, ends = self.offsets[np.asarray(rows)], self.offsets[np.asarray(rows) + 1]
        trail = () if width is None else (width,)
        out = np.full((len(starts), int((ends - starts).max()), *trail), fill, dtype=dtype)
        with self._open(name, dtype) as flat:
            values = flat.reshape(-1, *trail)
            for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
                out[row, : end - start] = values[start:end]
        return torch.from_numpy(out)

    @contextmanager
    def _open(self, name: str, dtype: Any) -> Iterator[np.ndarray]:
        flat = np.memmap(self.folder / name, dtype=dtype, mode="r")
        yield flat
        flat._mmap.close()  # type: ignore[attr-defined] # numpy closes a map only with its last view


class StateStore(TokenFile):
    """Sentences by number. Built once by `build_store`, then opened by every process.

    Files: ids (int32), shapes and continues (uint8), [states (cache_type, hidden) and, where selectors read inner layers,
    layer_states (cache_type, layers x hidden)], [attention (float32, 2)] per token;
    anchors (float32, dim) per sentence; meta.json last, so that a store without it is unfinished.
    """

    def __init__(self, folder: str | Path):
        meta = json.loads((Path(folder) / "meta.json").read_text())
        super().__init__(Path(folder), np.load(Path(folder) / "offsets.npy"), meta["pad"])
        self.cache_type: str | None = meta["cache_type"]
        self.hidden, self.dim = meta["hidden"], meta["dim"]
        self.has_attention: bool = meta["attention"]
        self.inner: int = meta["inner"]

    def anchors(self) -> np.ndarray:
        """(sentences, dim) sentence embeddings, memory-mapped."""
        return np.memmap(self.folder / "anchors", dtype=np.float32, mode="r").reshape(-1, self.dim)

    def fetch(self, rows: Sequence[int] | np.ndarray, shapes: bool = False, states: bool = True) -> dict[str, Any]:
        """A right-padded batch of model inputs, with `encoded` where states are stored, with `surface_ids` if asked."""
        batch: dict[str, Any] = self.tokens(rows)
        batch["continues"] = self._gather("continues", np.uint8, rows).bool()
        if shapes:
            batch["surface_ids"] = self._gather("shapes", np.uint8, rows).long()
        if self.cache_type is not None and states:
            dtype = _TYPES[self.cache_type]
            # numpy knows no bfloat16: the bits are moved as integers.
            bits = np.int32 if dtype == torch.float32 else np.int16
            widths = {"states": self.hidden, **({"layer_states": self.inner * self.hidden} if self.inner else {})}
            batch["encoded"] = {kind: self._gather(kind, bits, rows, width).view(dtype) for kind, width in widths.items()}
            if self.has_attention:
                batch["encoded"]["attention"] = self._gather("attention", np.float32, rows, 2)
        return batch

    def read(self, rows: np.ndarray, model: HardKumaModel, states: bool = True) -> StoredBatch:
        """These sentences as `model` takes them, on its device; without stored states if those do not matter."""
        inputs = to_device(self.fetch(rows, shapes=True, states=states), model.device)
        shapes = inputs["surface_ids"]
        if not model.config.reads("shape"):
            del inputs["surface_ids"]
        content = content_mask(model.config, inputs["input_ids"], inputs["attention_mask"], None)
        return StoredBatch(rows, inputs, content, shapes)

    def batches(self, rows: np.ndarray, model: HardKumaModel, size: int = BATCH) -> Iterator[StoredBatch]:
        """All of these sentences, in their order, `size` at a time."""
        for start in range(0, len(rows), size):
            yield self.read(rows[start : start + size], model)


@dataclass(frozen=True)
class StoredBatch:
    """Sentences of a store, ready for the model.

    Attributes:
        rows: (batch,) their numbers.
        inputs: keywords of `HardKumaModel.forward`: tokens, stored states, and word shapes where the selector reads those.
        content: (batch, length) bool, the tokens that can be selected.
        shapes: (batch, length) class of each token's word.
    """

    rows: np.ndarray
    inputs: dict[str, Any]
    content: Tensor
    shapes: Tensor

    @property
    def leading(self) -> Tensor:
        """(batch, length) bool, the first token of each word."""
        return self.content & ~self.inputs["continues"]

    def by_selector(self, values: Tensor) -> Tensor:
        """(batch, [K,] length) -> (batch, K, length): with one selector the model leaves that axis out."""
        return values.reshape(len(self.content), -1, self.content.shape[1])


def store_key(model: HardKumaModel, digest: str, cache_type: str | None) -> str:
    """What a store depends on; a store with another key is built again."""
    config = model.config
    parts: list[Any] = [config.encoder_fingerprint, digest, cache_type, config.max_seq_length]
    parts += [config.pooling_mode, config.projections]
    parts += [config.reads("attention"), config.attention_layers, config.frequency_filter]
    parts += [config.frequency_low, config.frequency_high, config.normalize, config.inner_layers]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def texts_digest(texts: Sequence[str]) -> str:
    """SHA-256 over the texts, in order.

    >>> texts_digest(["ab", "c"]) == texts_digest(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def build_store(
    model: HardKumaModel,
    texts: Sequence[str],
    folder: str | Path,
    cache_type: str | None,
    log: Callable[[str], None] = print,
    progress: bool = True,
) -> StateStore:
    """Tokenise and encode the texts, unless the folder already holds exactly this.

    Args:
        model: in eval mode, on the device that is to encode.
        cache_type: element type of the stored states; None stores sentence embeddings alone.
        log: told when the disk is too small for the states, which are then left out.

    >>> import tempfile
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = build_store(model, ["Rain.", "Marie Curie moved."], folder, "float16", progress=False)
    ...     batch = store.read(usable_rows(store, model), model)
    >>> batch.content.sum(-1).tolist(), tuple(batch.inputs["encoded"]["states"].shape)
    ([2, 5], (2, 7, 384))
    """
    folder = Path(folder)
    key = store_key(model, texts_digest(texts), cache_type)
    meta = folder / "meta.json"
    if meta.is_file() and json.loads(meta.read_text())["key"] == key:
        return StateStore(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    offsets = _write_tokens(model, texts, folder, progress)
    width = sum(_widths_of_states(model).values())
    if cache_type is not None and not _fits(folder, int(offsets[-1]), width, cache_type):
        size = offsets[-1] * width * _TYPES[cache_type].itemsize / 1e9
        log(f"not enough free disk for {size:.1f} GB of token states: encoding anew in every epoch instead.")
        cache_type = None
    np.save(folder / "offsets.npy", offsets)
    dim = _write_states(model, folder, offsets, cache_type, progress)
    content = {
        "key": key,
        "cache_type": cache_type,
        "hidden": model.config.hidden_size,
        "dim": dim,
        "pad": model.tokenizer.pad_token_id,
        "attention": cache_type is not None and model.config.reads("attention"),
        "inner": len(model.config.inner_layers) if cache_type is not None else 0,
    }
    write_atomically(meta, json.dumps(content))
    return StateStore(folder)


def _widths_of_states(model: HardKumaModel) -> dict[str, int]:
    """What is stored per token: the last states and, where selectors read other layers, those, side by side."""
    hidden, inner = model.config.hidden_size, len(model.config.inner_layers)
    return {"states": hidden, **({"layer_states": inner * hidden} if inner else {})}


def _fits(folder: Path, tokens: int, width: int, cache_type: str) -> bool:
    size = _TYPES[cache_type].itemsize
    return shutil.disk_usage(folder).free > tokens * width * size + RESERVE


def _write_tokens(model: HardKumaModel, texts: Sequence[str], folder: Path, progress: bool) -> np.ndarray:
    tokenizer, lengths = model.tokenizer, []
    bar = tqdm(total=len(texts), desc="tokenising", unit="sentence", disable=not progress, leave=False)
    names = ("ids", "shapes", "continues")
    with ExitStack() as files, bar:
        ids, shapes, continues = (files.enter_context(open(folder / name, "wb")) for name in names)
        for start in range(0, len(texts), CHUNK):
            part = list(texts[start : start + CHUNK])
            encoded = tokenizer(part, truncation=True, max_length=model.config.max_seq_length, return_offsets_mapping=True)
            for text, tokens, spans in zip(part, encoded["input_ids"], encoded["offset_mapping"], strict=True):
                np.asarray(tokens, dtype=np.int32).tofile(ids)
                np.asarray(surface_ids(text, spans), dtype=np.uint8).tofile(shapes)
                np.asarray(continuing_spans(text, spans), dtype=np.uint8).tofile(continues)
                lengths.append(len(tokens))
            bar.update(len(part))
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@torch.inference_mode()
def _write_states(model: HardKumaModel, folder: Path, offsets: np.ndarray, cache_type: str | None, progress: bool) -> int:
    """Encode in batches of like length and put each sentence's states where its tokens are; the embeddings' size."""
    tokens, widths, dim = int(offsets[-1]), _widths_of_states(model), 0
    reader = TokenFile(folder, offsets, model.tokenizer.pad_token_id)
    bar = tqdm(total=len(reader), desc="encoding", unit="sentence", disable=not progress, leave=False)
    for start in range(0, len(reader), CHUNK):
        chunk = np.arange(start, min(start + CHUNK, len(reader)))
        chunk = chunk[np.argsort(reader.lengths[chunk], kind="stable")]
        # All files are opened anew for each chunk: written pages do not stay resident.
        anchors: np.memmap | None = None
        files: dict[str, np.memmap] = {}
        if cache_type is not None:
            bits = np.int32 if cache_type == "float32" else np.int16
            files = {name: _writable(folder / name, bits, (tokens, width)) for name, width in widths.items()}
            if model.config.reads("attention"):
                files["attention"] = _writable(folder / "attention", np.float32, (tokens, 2))
        for first in range(0, len(chunk), BATCH):
            rows = chunk[first : first + BATCH]
            out = model.encode_tokens(**to_device(reader.tokens(rows), model.device))
            embeddings = out["anchor"].float().cpu().numpy()
            dim = embeddings.shape[1]
            if anchors is None:
                anchors = _writable(folder / "anchors", np.float32, (len(reader), dim))
            anchors[rows] = embeddings
            if cache_type is not None:
                tensors = {"states": out["states"], "layer_states": out.get("layer_states", out["states"])}
                encoded = {name: _as_bits(tensors[name], cache_type) for name in widths}
                if "attention" in files:
                    encoded["attention"] = out["attention"].float().cpu().numpy()
                for row, number in enumerate(rows):
                    begin, end = offsets[number], offsets[number + 1]
                    for kind, file in files.items():
                        file[begin:end] = encoded[kind][row, : end - begin]
            bar.update(len(rows))
    bar.close()
    return dim


def _as_bits(states: Tensor, cache_type: str) -> np.ndarray:
    converted = states.to(_TYPES[cache_type]).cpu()
    if not bool(torch.isfinite(converted).all()):
        raise ValueError(f"token states do not fit into {cache_type}: use --cache_type bfloat16.")
    return converted.view(torch.int32 if cache_type == "float32" else torch.int16).numpy()


def _writable(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    return np.memmap(path, dtype=dtype, mode="r+" if path.exists() else "w+", shape=shape)


def usable_rows(store: StateStore, model: HardKumaModel) -> np.ndarray:
    """Numbers of the sentences with at least one content token."""
    keep = []
    for start in range(0, len(store), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(store)))
        tokens = store.tokens(rows)
        content = content_mask(model.config, tokens["input_ids"], tokens["attention_mask"], None)
        keep.append(rows[content.any(-1).numpy()])
    return np.concatenate(keep)
