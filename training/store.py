"""The training text on disk: token ids, forms of words, sentence embeddings and, for a frozen encoder, its token states.

One flat file for each, read through memory maps that are opened for one batch and closed again: resident memory does not
grow with the corpus but for 8 bytes a sentence, and an epoch over stored states costs the gate head alone. Sentences that a
run will not read are not encoded; the files have holes in their place, which take no room.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..batch_hardkuma import content_mask, to_device
from ..common.files import write_atomically
from ..configuration_hardkuma import HardKumaConfig
from ..modeling_hardkuma import HardKumaModel
from ..words_hardkuma import SurfaceIndex, find_words

CHUNK = 2048  # sentences tokenised, sorted by length and encoded at a time
BATCH = 64  # sentences in one pass of the model
RESERVE = 1 << 30  # bytes of disk that are left alone
_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class TokenFile:
    """The tokens of sentences on disk, by number. Written by `write_tokens`.

    Files: ids (int32), forms and continues (uint8) per token; offsets.npy; tokens.json last, so that a folder without it
    is unfinished.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.offsets: np.ndarray = np.load(self.folder / "offsets.npy")
        meta = json.loads((self.folder / "tokens.json").read_text())
        self.pad, self.digest = meta["pad"], meta["digest"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence; of a few, `lengths_of` is quicker."""
        return np.diff(self.offsets)

    def lengths_of(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Tokens of these sentences."""
        rows = np.asarray(rows)
        return self.offsets[rows + 1] - self.offsets[rows]

    def tokens(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` of these sentences, (batch, length), padded on the right."""
        lengths = torch.from_numpy(self.lengths_of(rows))
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        return {"input_ids": self._gather("ids", np.int32, rows, fill=self.pad).long(), "attention_mask": mask}

    def fetch(self, rows: Sequence[int] | np.ndarray, forms: bool = False, states: bool = True) -> dict[str, Any]:
        """A right-padded batch of model inputs, with `encoded` where states are stored, with `surface_ids` if asked."""
        batch: dict[str, Any] = self.tokens(rows)
        batch["continues"] = self._gather("continues", np.uint8, rows).bool()
        if forms:
            batch["surface_ids"] = self._gather("forms", np.uint8, rows).long()
        return batch

    def read(self, rows: np.ndarray, model: HardKumaModel, states: bool = True) -> StoredBatch:
        """These sentences as `model` takes them, on its device; without stored states if those do not matter."""
        inputs = to_device(self.fetch(rows, forms=True, states=states), model.device)
        forms = inputs["surface_ids"]
        if not model.config.reads("form"):
            del inputs["surface_ids"]
        content = content_mask(model.config, inputs["input_ids"], inputs["attention_mask"], None)
        return StoredBatch(rows, inputs, content, forms)

    def batches(self, rows: np.ndarray, model: HardKumaModel, size: int = BATCH) -> Iterator[StoredBatch]:
        """All of these sentences, in their order, `size` at a time."""
        for start in range(0, len(rows), size):
            yield self.read(rows[start : start + size], model)

    def _gather(
        self, name: str, dtype: Any, rows: Sequence[int] | np.ndarray, width: int | None = None, fill: int = 0
    ) -> Tensor:
        """What file `name` holds of the tokens of these sentences: (batch, length[, width])."""
        starts, ends = self.offsets[np.asarray(rows)], self.offsets[np.asarray(rows) + 1]
        trail = () if width is None else (width,)
        out = np.full((len(starts), int((ends - starts).max()), *trail), fill, dtype=dtype)
        with self._open(name, dtype) as flat:
            values = flat.reshape(-1, *trail)
            if np.array_equal(starts[1:], ends[:-1]):  # neighbours in the file: one read instead of many
                out[np.arange(out.shape[1]) < (ends - starts)[:, None]] = values[starts[0] : ends[-1]]
            else:
                for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
                    out[row, : end - start] = values[start:end]
        return torch.from_numpy(out)

    @contextmanager
    def _open(self, name: str, dtype: Any) -> Iterator[np.ndarray]:
        flat = np.memmap(self.folder / name, dtype=dtype, mode="r")
        yield flat
        flat._mmap.close()  # type: ignore[attr-defined] # numpy closes a map only with its last view


class StateStore(TokenFile):
    """Sentences by number, with what the encoder gave for them. Written by `encode_sentences`, opened by all processes.

    Files: those of a `TokenFile`; [states (cache_type, hidden) and, where selectors read inner layers,
    layer_states (cache_type, layers x hidden)], [attention (float32, 2)] per token;
    anchors (float32, dim) per sentence; encoded.npy, which of them are (bool); meta.json last, so that a store
    without it is unfinished.
    """

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        meta = json.loads((self.folder / "meta.json").read_text())
        self.cache_type: str | None = meta["cache_type"]
        self.hidden, self.dim = meta["hidden"], meta["dim"]
        self.has_attention: bool = meta["attention"]
        self.inner: int = meta["inner"]
        self._encoded: np.ndarray = np.load(self.folder / "encoded.npy")

    def anchors(self) -> np.ndarray:
        """(sentences, dim) sentence embeddings, memory-mapped; zero where `is_encoded` is false."""
        return np.memmap(self.folder / "anchors", dtype=np.float32, mode="r").reshape(-1, self.dim)

    def is_encoded(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Which of these sentences have an embedding and, where states are stored, states: (rows,) bool."""
        return self._encoded[np.asarray(rows)]

    def fetch(self, rows: Sequence[int] | np.ndarray, forms: bool = False, states: bool = True) -> dict[str, Any]:
        """As of every `TokenFile`; with `encoded` where the states of all of these sentences are stored."""
        batch = super().fetch(rows, forms)
        if self.cache_type is not None and states and bool(self.is_encoded(rows).all()):
            dtype = _TYPES[self.cache_type]
            # numpy knows no bfloat16: the bits are moved as integers.
            bits = np.int32 if dtype == torch.float32 else np.int16
            widths = {"states": self.hidden, **({"layer_states": self.inner * self.hidden} if self.inner else {})}
            batch["encoded"] = {name: self._gather(name, bits, rows, width).view(dtype) for name, width in widths.items()}
            if self.has_attention:
                batch["encoded"]["attention"] = self._gather("attention", np.float32, rows, 2)
        return batch


@dataclass(frozen=True)
class StoredBatch:
    """Sentences of a store, ready for the model.

    Attributes:
        rows: (batch,) their numbers.
        inputs: keywords of `HardKumaModel.forward`: tokens, stored states, and word forms where the selector reads those.
        content: (batch, length) bool, the tokens that can be selected.
        forms: (batch, length) class of each token's word.
    """

    rows: np.ndarray
    inputs: dict[str, Any]
    content: Tensor
    forms: Tensor

    @property
    def leading(self) -> Tensor:
        """(batch, length) bool, the first token of each word."""
        return self.content & ~self.inputs["continues"]

    def by_selector(self, values: Tensor) -> Tensor:
        """(batch, [K,] length) -> (batch, K, length): with one selector the model leaves that axis out."""
        return values.reshape(len(self.content), -1, self.content.shape[1])


def texts_digest(texts: Iterable[str]) -> str:
    """SHA-256 over the texts, in order.

    >>> texts_digest(["ab", "c"]) == texts_digest(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def write_tokens(model: HardKumaModel, texts: Sequence[str], folder: str | Path, progress: bool = True) -> TokenFile:
    """Tokenise the texts, unless the folder already holds exactly this; one that holds anything else is emptied."""
    folder, config = Path(folder), model.config
    digest = _digest([model.encoder_fingerprint(), config.max_seq_length, asdict(config.language), texts_digest(texts)])
    meta = folder / "tokens.json"
    if meta.is_file() and json.loads(meta.read_text())["digest"] == digest:
        return TokenFile(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    np.save(folder / "offsets.npy", _write_tokens(model, texts, folder, progress))
    write_atomically(meta, json.dumps({"digest": digest, "pad": model.tokenizer.pad_token_id}))
    return TokenFile(folder)


def encode_sentences(
    model: HardKumaModel,
    tokens: TokenFile,
    cache_type: str | None,
    rows: Callable[[bool], np.ndarray | None] = lambda with_states: None,
    log: Callable[[str], None] = print,
    progress: bool = True,
) -> StateStore:
    """Encode sentences, unless their folder already holds exactly this.

    Args:
        model: in eval mode, on the device that is to encode.
        cache_type: element type of the stored states; None stores sentence embeddings alone.
        rows: given whether states are stored, the numbers of the sentences to encode; None, as by default, is all.
        log: told when the disk is too small for the states, which are then left out.
    """
    folder, config = tokens.folder, model.config

    def mark(numbers: np.ndarray | None) -> np.ndarray:
        marked = np.zeros(len(tokens), dtype=bool)
        marked[slice(None) if numbers is None else numbers] = True
        return marked

    wanted = mark(rows(cache_type is not None))
    parts: list[Any] = [tokens.digest, cache_type, config.pooling_mode, config.projections, config.reads("attention")]
    parts += [config.attention_layers, config.normalize, inner_layers(config)]
    parts += [hashlib.sha256(wanted.tobytes()).hexdigest()]
    key, meta = _digest(parts), folder / "meta.json"
    if meta.is_file() and json.loads(meta.read_text())["key"] == key:
        return StateStore(folder)
    for name in ("meta.json", "anchors", "states", "layer_states", "attention"):  # of another run
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "removal", ignore_errors=True)
    width, kept = sum(_widths_of_states(model).values()), int(tokens.lengths[wanted].sum())
    size = 0 if cache_type is None else kept * width * _TYPES[cache_type].itemsize
    if size and shutil.disk_usage(folder).free <= size + RESERVE:
        log(f"not enough free disk for {size / 1e9:.1f} GB of token states: encoding anew in every epoch instead.")
        cache_type, wanted = None, mark(rows(False))
    np.save(folder / "encoded.npy", wanted)
    dim = _write_states(model, tokens, np.flatnonzero(wanted), cache_type, progress)
    content = {
        "key": key,
        "cache_type": cache_type,
        "hidden": config.hidden_size,
        "dim": dim,
        "attention": cache_type is not None and config.reads("attention"),
        "inner": len(inner_layers(config)) if cache_type is not None else 0,
    }
    write_atomically(meta, json.dumps(content))
    return StateStore(folder)


def inner_layers(config: HardKumaConfig) -> list[int]:
    """Numbers of the layers below the last whose states selectors read."""
    return [layer for layer in config.layers() if layer < config.num_hidden_layers]


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _widths_of_states(model: HardKumaModel) -> dict[str, int]:
    """What is stored per token: the last states and, where selectors read other layers, those, side by side."""
    hidden, inner = model.config.hidden_size, len(inner_layers(model.config))
    return {"states": hidden, **({"layer_states": inner * hidden} if inner else {})}


def _write_tokens(model: HardKumaModel, texts: Sequence[str], folder: Path, progress: bool) -> np.ndarray:
    """Where the tokens of each sentence begin and end in the files."""
    tokenizer, lengths = model.tokenizer, [np.zeros(1, dtype=np.int64)]
    bar = tqdm(total=len(texts), desc="tokenising", unit="sentence", disable=not progress, leave=False)
    names = ("ids", "forms", "continues")
    with ExitStack() as files, bar:
        ids, forms, continues = (files.enter_context(open(folder / name, "wb")) for name in names)
        for start in range(0, len(texts), CHUNK):
            part = list(texts[start : start + CHUNK])
            encoded = tokenizer(
                part,
                truncation=True,
                max_length=model.config.max_seq_length,
                return_offsets_mapping=True,
                return_attention_mask=False,
                return_token_type_ids=False,
            )
            lengths.append(np.array([len(row) for row in encoded["input_ids"]]))
            inside = np.arange(lengths[-1].max(initial=0)) < lengths[-1][:, None]
            spans = np.zeros((*inside.shape, 2), dtype=np.int64)
            spans[inside] = np.array(list(chain.from_iterable(encoded["offset_mapping"]))).reshape(-1, 2)
            begins, ends = torch.from_numpy(spans).unbind(-1)
            owners, words = (
                torch.arange(len(part)),
                SurfaceIndex(part, [find_words(text, model.config.language) for text in part]),
            )
            np.array(list(chain.from_iterable(encoded["input_ids"])), dtype=np.int32).tofile(ids)
            words.ids(owners, begins, ends).numpy()[inside].astype(np.uint8).tofile(forms)
            words.index.continues(owners, begins, ends).numpy()[inside].astype(np.uint8).tofile(continues)
            bar.update(len(part))
    return np.cumsum(np.concatenate(lengths))


@torch.inference_mode()
def _write_states(
    model: HardKumaModel, tokens: TokenFile, wanted: np.ndarray, cache_type: str | None, progress: bool
) -> int:
    """Encode in batches of like length and put each sentence's states where its tokens are; the embeddings' size."""
    total, widths, dim = int(tokens.offsets[-1]), _widths_of_states(model), 0
    bar = tqdm(total=len(wanted), desc="encoding", unit="sentence", disable=not progress, leave=False)
    for start in range(0, len(wanted), CHUNK):
        chunk = wanted[start : start + CHUNK]
        chunk = chunk[np.argsort(tokens.lengths_of(chunk), kind="stable")]
        # All files are opened anew for each chunk: written pages do not stay resident.
        anchors: np.memmap | None = None
        files: dict[str, np.memmap] = {}
        if cache_type is not None:
            bits = np.int32 if cache_type == "float32" else np.int16
            files = {name: _writable(tokens.folder / name, bits, (total, width)) for name, width in widths.items()}
            if model.config.reads("attention"):
                files["attention"] = _writable(tokens.folder / "attention", np.float32, (total, 2))
        for first in range(0, len(chunk), BATCH):
            rows = chunk[first : first + BATCH]
            out = model.encode_tokens(**to_device(tokens.tokens(rows), model.device))
            embeddings = out["anchor"].float().cpu().numpy()
            dim = embeddings.shape[1]
            if anchors is None:
                anchors = _writable(tokens.folder / "anchors", np.float32, (len(tokens), dim))
            anchors[rows] = embeddings
            if cache_type is not None:
                tensors = {"states": out["states"], "layer_states": out.get("layer_states", out["states"])}
                encoded = {name: _as_bits(tensors[name], cache_type) for name in widths}
                if "attention" in files:
                    encoded["attention"] = out["attention"].float().cpu().numpy()
                for row, number in enumerate(rows):
                    begin, end = tokens.offsets[number], tokens.offsets[number + 1]
                    for name, file in files.items():
                        file[begin:end] = encoded[name][row, : end - begin]
            bar.update(len(rows))
    bar.close()
    return dim


def _as_bits(states: Tensor, cache_type: str) -> np.ndarray:
    converted = states.to(_TYPES[cache_type]).cpu()
    if not all(bool(torch.isfinite(edge)) for edge in converted.aminmax()):  # twenty times quicker than to look at each
        raise ValueError(f"token states do not fit into {cache_type}: use --cache_type bfloat16.")
    return converted.view(torch.int32 if cache_type == "float32" else torch.int16).numpy()


def _writable(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    return np.memmap(path, dtype=dtype, mode="r+" if path.exists() else "w+", shape=shape)


def usable_rows(tokens: TokenFile, model: HardKumaModel) -> np.ndarray:
    """Numbers of the sentences with at least one content token."""
    keep = []
    for start in range(0, len(tokens), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(tokens)))
        batch = tokens.tokens(rows)
        content = content_mask(model.config, batch["input_ids"], batch["attention_mask"], None)
        keep.append(rows[content.any(-1).numpy()])
    return np.concatenate(keep)
