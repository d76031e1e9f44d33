"""What computes the gates of a model: torch, onnxruntime, or whichever is faster on this machine.

A backend takes tokens and gives probabilities, or the encoder's states. How a text is cut into tokens, and what is made of
these, is the same for all of them.

onnxruntime needs a graph of the checkpoint and selector. It is made when it is first wanted, compared with the model, and
kept in the user's cache:

    $HF_HOME/hardkuma/KEY-DIGEST.onnx       KEY: weights, configuration, code, selector, precision and versions
                                            DIGEST: of the file's content, so that a damaged one is known and made again

A file appears there whole or not at all. All of the folder can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers.utils import logging

from ...batch_hardkuma import EncodedTokens, continuing_tokens
from ...common.files import open_atomically
from ...common.packages import require
from ...configuration_hardkuma import check_choice
from ...encoder_hardkuma import fingerprint
from ...modeling_hardkuma import HardKumaModel
from ...pooling_hardkuma import pool
from ...scoring_hardkuma import ALL, GateModel
from .onnx import (
    SINGLE_FILE,
    STATES,
    TOLERANCE,
    ExportError,
    GateGraph,
    StateGraph,
    encoder_products,
    feeds_of,
    first_line,
    has_int8_instructions,
    measure_difference,
    open_session,
    padded,
    write_graph,
    write_int8,
)

logger = logging.get_logger(__name__)

BACKENDS = ("torch", "onnx", "auto")
TRIAL_SECONDS = 0.5  # for each backend
TRIAL_LENGTH = 32  # tokens, those of a longish sentence
PRECISIONS = ("fp32", "int8")
BATCH_TOKENS = 512  # what fits into a core's own cache; larger batches are no faster
AHEAD = 16  # batches for each thread that wait: enough for the time that it takes to tokenise further texts
# The mean difference over tokens that int8 may have: what is further off is not the same model any more.
INT8_TOLERANCE = 0.05
# Sentences by which a graph is compared with the model.
PROBES = (
    "Marie Curie moved from Warsaw to Paris in 1891.",
    "the train was late again, and nobody at the station knew why",
    "Rain.",
    "NASA, the EU and 14 other agencies signed a treaty on Tuesday; it costs $4,500 a year (or 3.2%).",
    "She said that it would probably be warmer tomorrow, but that we should not count on it.",
    "@ana_maria check out the new iPhone at https://example.org 🎉 #deal",
    "Прага и Брно соединены железной дорогой. 東京は大きい。 L'été à Montréal est court.",
    "The committee, which had been appointed in the spring, met every second week in a small room behind the library, and "
    "by the time the first snow fell it had agreed on the wording of eleven of the thirty paragraphs of its report.",
)


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


class OnnxGates:
    """A model whose probabilities onnxruntime computes; to `score_texts`, `gate_records` and others it is the model itself.

    Args:
        model: in eval mode, on the CPU.
        threads: how many batches run at once, each on one thread; as many as torch would use by default.
        precision: "int8" or "fp32"; by default int8, where the processor has instructions for it and the model stays what
            it is. In int8 a probability depends a little on the other texts of its batch.
        log: called with a sentence when something takes time or is not as asked for.

    >>> from hardkuma import load_released
    >>> OnnxGates(load_released()[0], precision="fp16")
    Traceback (most recent call last):
    ValueError: precision must be one of fp32, int8; got 'fp16'.
    """

    training = False
    batch_tokens: int | None = BATCH_TOKENS

    def __init__(
        self,
        model: HardKumaModel,
        threads: int | None = None,
        precision: str | None = None,
        log: Callable[[str], None] | None = None,
    ):
        if precision is not None:
            check_choice("precision", precision, PRECISIONS)
        require("onnxruntime", "onnx")
        if model.training:
            raise ValueError("the model is in training mode, whose gates are random; call model.eval() first.")
        if model.device.type != "cpu":
            raise ValueError(
                f"onnxruntime runs on the CPU here, and the model is on {model.device}; use the backend torch."
            )
        types = model.tokenizer(PROBES[0]).get("token_type_ids", [])
        if any(types):
            raise ExportError(f"{type(model.tokenizer).__name__} gives token types other than 0, which graphs do not take")
        self.model, self.config, self.tokenizer, self.gate_head = model, model.config, model.tokenizer, model.gate_head
        self.max_length, self.device = model.max_length, torch.device("cpu")
        self.threads = threads or torch.get_num_threads()
        self.precision = precision
        self._log = log or logger.warning
        self._lock = Lock()
        # By the name of the selector, as long as the weights are the same.
        self._sessions: dict[str | None, Any] = {}
        self._weights: list[tuple[int, int]] = []
        # Padding makes numbers that are all but zero, with which processors are slow: these threads take them for zero.
        self._pool = ThreadPoolExecutor(self.threads, "onnx", initializer=lambda: torch.set_flush_denormal(True))

    def prepare(self, selector: str | None = None) -> str:
        """Have the graph of this selector (of all, side by side, by default) at hand; returns its precision.

        Args:
            selector: the name of one.
        """
        return self._session(selector).get_modelmeta().custom_metadata_map["precision"]

    def gate_batches(self, batches: Iterable[dict[str, Tensor]], selector: str | None = None) -> Iterator[Tensor]:
        """The probabilities of each batch, in order. As many run at once as there are threads, and some are taken ahead. Of
        what `HardKumaModel.gate_probabilities` takes, `token_type_ids` and `special_tokens_mask` must be what they are by
        default; they are not looked at."""
        session = self._session(selector)
        running: deque[Future[Tensor]] = deque()
        try:
            for batch in batches:
                running.append(self._pool.submit(self._run, session, batch))
                while running and (len(running) > AHEAD * self.threads or running[0].done()):
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for waiting in running:
                waiting.cancel()

    def _run(self, session: Any, batch: dict[str, Tensor]) -> Tensor:
        ids = batch["input_ids"]
        feed = {}
        for item in session.get_inputs():
            tensor = batch.get(item.name)
            if tensor is None:
                tensor = self._default(item.name, ids)
            feed[item.name] = tensor.long().numpy()
        (found,) = session.run(None, feed)
        result = torch.from_numpy(found)
        if not bool(torch.isfinite(result).all()):
            raise ValueError("onnxruntime returned NaN or infinity; check the encoder's weights, or use the backend torch.")
        return result

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> EncodedTokens:
        """The encoder's states and embeddings, as `HardKumaModel.encode_tokens` gives them; rows run on all threads."""
        session, parts = self._session(STATES), max(1, min(self.threads, len(input_ids)))
        batches = [
            {"input_ids": ids, "attention_mask": mask}
            for ids, mask in zip(input_ids.chunk(parts), attention_mask.chunk(parts), strict=True)
        ]
        states = torch.cat(list(self._pool.map(lambda batch: self._run(session, batch), batches)))
        pooled = pool(states, attention_mask.bool()[:, None], self.config.pooling_modes)
        return EncodedTokens(states=states, anchor=self.model.embed_pooled(pooled)[:, 0])

    def sentence_features(
        self, input_ids: Tensor, attention_mask: Tensor, embedding: str = "anchor", **options: Any
    ) -> dict[str, Any]:
        """{"embedding": (batch, dim)}, the encoder's own."""
        if embedding != "anchor":
            raise ValueError(f"onnxruntime gives the embedding 'anchor' alone, got {embedding!r}; use the backend torch.")
        return {"embedding": self.encode_tokens(input_ids, attention_mask)["anchor"]}

    def encoder_fingerprint(self) -> str:
        """That of the model: what is known of it holds here too."""
        return self.model.encoder_fingerprint()

    def _default(self, name: str, ids: Tensor) -> Tensor:
        if name == "continues":
            return continuing_tokens(self.gate_head.token_roles, ids)
        return torch.ones_like(ids) if name == "attention_mask" else torch.zeros_like(ids)

    def _session(self, selector: str | None) -> Any:
        """The graph of this selector, from the cache or made now."""
        with self._lock:
            self._forget_old_weights()
            if selector not in self._sessions:
                self._sessions[selector] = self._find(selector) or self._make(selector)
            return self._sessions[selector]

    def _forget_old_weights(self) -> None:
        """A tensor that is another one, or was written to, makes another graph."""
        tensors = self.model.state_dict().values()
        weights = [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
        if weights != self._weights:
            self._sessions.clear()
            self._weights = weights

    def _wanted(self) -> str:
        return self.precision or ("int8" if has_int8_instructions() else "fp32")

    def is_at_hand(self, selector: str | None = None) -> bool:
        """Whether the graph of this selector need not be made: it is in the cache."""
        return any(_is_whole(path) for path in self._candidates(selector))

    def _key(self, selector: str | None) -> str:
        return export_key(self.model, selector, self._wanted())

    def _candidates(self, selector: str | None) -> list[Path]:
        return sorted(cache_folder().glob(f"{self._key(selector)}-*.onnx"))

    def _find(self, selector: str | None) -> Any:
        for path in self._candidates(selector):
            try:
                if not _is_whole(path):
                    raise ValueError("its content has changed since it was written")
                return open_session(path, threads=1)
            except Exception as error:  # onnxruntime's have no common class
                self._log(f"the export {path} is damaged ({first_line(error)}); it is made again.")
                with contextlib.suppress(OSError):  # of somebody else's folder
                    path.unlink()
        return None

    def _make(self, selector: str | None) -> Any:
        name = "all selectors" if selector is None else f"the selector {selector!r}"
        name = "the encoder's states" if selector == STATES else name
        self._log(f"exporting {name} for onnxruntime, once for this checkpoint ...")
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            path = make_export(self.model, selector, self._wanted(), Path(folder), self._log)
            session = open_session(path, threads=1)
            try:
                kept = _keep(path, self._key(selector))
                self._log(f"exported in {time.perf_counter() - start:.0f} s, to {kept}")
            except OSError as error:
                self._log(f"the export cannot be kept ({first_line(error)}); the next run will make it again.")
        return session


def cache_folder() -> Path:
    """Where exports are kept.

    >>> cache_folder().name
    'hardkuma'
    """
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    return Path(os.path.expanduser(home)) / "hardkuma"


def export_key(model: HardKumaModel, selector: str | None, precision: str) -> str:
    """A name for all that an export depends on: weights, configuration, code, selector, precision and versions."""
    digest = hashlib.sha256(model.config.to_json_string(use_diff=False).encode())
    for name, part in model.named_children():
        digest.update((model.encoder_fingerprint() if name == "encoder" else fingerprint(part)).encode())
    for path in code_files():
        digest.update(path.read_bytes())
    versions = [torch.__version__, transformers.__version__, require("onnxruntime", "onnx").__version__]
    digest.update(repr([selector, precision, versions]).encode())
    return digest.hexdigest()[:32]


def code_files() -> list[Path]:
    """The files whose code a graph is made by.

    >>> [path.name for path in code_files()][:2]
    ['attention_hardkuma.py', 'batch_hardkuma.py']
    """
    return [*sorted(Path(__file__).parents[2].glob("*_hardkuma.py")), Path(__file__).with_name("onnx.py")]


def _is_whole(path: Path) -> bool:
    try:
        return path.stem.rpartition("-")[2] == _digest(path)
    except OSError:
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32]


def _keep(path: Path, key: str) -> Path:
    """Put a file into the cache, whole or not at all."""
    target = cache_folder() / f"{key}-{_digest(path)}.onnx"
    beside = target.with_name(f".{target.name}.{os.getpid()}.{get_ident()}")  # threads may make the same one
    with open_atomically(target, temporary=beside) as stream, path.open("rb") as source:
        shutil.copyfileobj(source, stream)
    return target


def make_export(
    model: HardKumaModel, selector: str | None, precision: str, folder: Path, log: Callable[[str], None]
) -> Path:
    """Write the graph of a selector (of all by default) into a folder, and compare it with the model.

    Args:
        precision: the one to try; where int8 is too far off it is fp32 after all, which is said. It is fp32 as well where
            there is nothing to quantise.

    Returns:
        The file; its metadata have the "precision", and the "difference" to the model.
    """
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    if weights > SINGLE_FILE:
        raise ExportError(f"the model has {weights / 1e9:.1f} GB of weights, more than one ONNX file can hold")
    graph = (StateGraph(model) if selector == STATES else GateGraph(model, selector)).eval()
    # A short probe by itself, all of them together, and the short one with more padding than it needs.
    short = feeds_of(graph, [PROBES[2]])[0]
    feeds, threads = [short, *feeds_of(graph, PROBES), padded(short)], torch.get_num_threads()
    path = folder / "fp32.onnx"
    write_graph(graph, path, short)
    largest, _ = measure_difference(graph, path, feeds, threads)
    if not largest <= TOLERANCE:
        raise ExportError(f"the graph differs from the model by {largest:.2e}, more than {TOLERANCE}")
    # The gate head, which is small, and the embeddings, which are only looked up, stay in fp32.
    products = encoder_products(path)
    if precision == "int8" and products:
        smaller = folder / "int8.onnx"
        write_int8(path, smaller, products)
        _, mean = measure_difference(graph, smaller, feeds, threads)
        if mean <= INT8_TOLERANCE:
            return _described(smaller, {"precision": "int8", "difference": str(mean)})
        log(f"in int8 {graph.outputs[0]} differ by {mean:.3f} on average, more than {INT8_TOLERANCE}: fp32 is used.")
    return _described(path, {"precision": "fp32", "difference": str(largest)})


def _described(path: Path, facts: dict[str, str]) -> Path:
    onnx = require("onnx", "onnx")
    proto = onnx.load(path)
    known = {item.key: item.value for item in proto.metadata_props}
    onnx.helper.set_model_props(proto, known | facts)
    onnx.save(proto, path)
    return path
