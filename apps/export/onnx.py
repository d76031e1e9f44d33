"""The gates as an ONNX graph: the model's own code, traced by torch.export; in fp32, or in int8.

What torch.export sees when `gate_probabilities` runs is what the graph does: nothing of the model is written a second time
here. Layers that no selector reads are left out of the graph, since nothing depends on them.

`export_onnx` writes a folder: fp32, compared with PyTorch, and int8, with its loss of quality and gain in speed measured.
(optimum-onnx 0.1.0 does not take this version of transformers.) onnx, onnxruntime and onnxscript are an extra of the
package, so they are imported when they are needed.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import platform
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...attention_hardkuma import routes_attention
from ...batch_hardkuma import content_mask
from ...checkpoint_hardkuma import staged, write_tokenizer
from ...common.packages import require
from ...data.tokens import token_batches
from ...modeling_hardkuma import HardKumaModel
from .cards import agreement, onnx_card

INPUTS = ("input_ids", "attention_mask", "surface_ids")
WORDS = "continues"  # one more, of models to which it makes a difference which tokens make up a word
GATES, ANCHOR, RATIONALE = "gate_probs", "anchor_embedding", "rationale_embedding"
STATES = "states"  # also what stands for a selector's name where the graph of these is meant
SINGLE_FILE = 1 << 30  # bytes of weights up to which one file holds all; protobuf's limit is 2 GB
TOLERANCE = 1e-4  # largest difference to PyTorch that a graph may have in fp32
# Fused with the sum before it, onnxruntime's layer norm on CPUs is several times as slow (1.31: a quarter of an int8 pass).
_SLOW = ["SkipLayerNormFusion"]
_INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}


class ExportError(ValueError):
    """A model that cannot be had as an ONNX graph."""


class GateGraph(nn.Module):
    """The selection probabilities, and what else the model gives, over plain tensors; no decision depends on values.

    Args:
        model: in eval mode, on the CPU.
        selector: the name of the only one whose gates are given; all, side by side, by default.
        outputs: names of fields of `HardKumaOutput`, the gates first. By themselves they need not run the whole encoder.
    """

    special: Tensor

    def __init__(self, model: HardKumaModel, selector: str | None = None, outputs: Sequence[str] = (GATES,)):
        super().__init__()
        self.model, self.selector, self.outputs = model, selector, list(outputs)
        config = model.config
        self.selectors = config.names if selector is None else [selector]
        self.words = any(config.selector(config.find_selector(name)).unit != "token" for name in self.selectors)
        self.inputs = [*INPUTS, *([WORDS] if self.words else [])]
        self.register_buffer("special", torch.tensor(config.special_token_ids, dtype=torch.long), persistent=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, surface_ids: Tensor, continues: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "special_tokens_mask": self.special_tokens(input_ids),
            "surface_ids": surface_ids,
            "continues": continues,
            "selector": self.selector,
        }
        if self.outputs == [GATES]:
            return (self.model.gate_probabilities(**inputs),)
        out = self.model(**inputs, return_embeddings=RATIONALE in self.outputs)
        return tuple(out[name] for name in self.outputs)

    def special_tokens(self, input_ids: Tensor) -> Tensor:
        """(batch, length) bool; the model's own torch.isin has no ONNX counterpart."""
        return (input_ids[..., None] == self.special).any(-1)

    @staticmethod
    def distance(found: Tensor, expected: Tensor) -> Tensor:
        """How far what a file gives is from what the model gives."""
        return (found - expected).abs()


class StateGraph(GateGraph):
    """The last states instead of gates, for what compares the words of two texts; zeros on padding."""

    def __init__(self, model: HardKumaModel):
        super().__init__(model, outputs=[STATES])
        self.inputs = list(INPUTS[:2])

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor
    ) -> tuple[Tensor, ...]:
        special = self.special_tokens(input_ids)
        batch = self.model.prepare(input_ids, attention_mask, special_tokens_mask=special)
        states = batch.restore(self.model.encode_batch(batch).states)
        return (states * attention_mask[..., None],)

    @staticmethod
    def distance(found: Tensor, expected: Tensor) -> Tensor:
        """1 - the cosine, (batch, length); 0 on padding."""
        cosines = torch.cosine_similarity(found, expected, dim=-1)
        return torch.where(expected.any(-1), 1 - cosines, 0.0)


def write_graph(graph: GateGraph, path: Path, feed: Mapping[str, Tensor]) -> None:
    """Trace the graph and write it, fp32; `ExportError` where that cannot be done.

    Args:
        feed: (batch, length) int64 for each of the graph's inputs; any batch will do.
    """
    for package in ("onnx", "onnxscript"):
        require(package, "onnx")
    # Two rows of at least two tokens: torch.export would take a size of 1 for a constant.
    rows = [_at_least(feed[name], 2) for name in graph.inputs]
    weights = sum(tensor.numel() * tensor.element_size() for tensor in graph.parameters())
    encoder = graph.model.encoder
    try:
        with torch.no_grad(), _silenced(), _plain_attention(encoder):
            program = torch.onnx.export(
                graph,
                tuple(rows),
                dynamo=True,
                input_names=graph.inputs,
                output_names=graph.outputs,
                dynamic_shapes=tuple({0: "batch", 1: "length"} for _ in rows),
            )
            assert program is not None  # it is with `dynamo=True`
            program.model.metadata_props["decision_threshold"] = str(graph.model.config.decision_threshold)
            program.model.metadata_props["selectors"] = ",".join(graph.selectors)
            program.save(path, external_data=weights > SINGLE_FILE)
    except Exception as error:  # whatever an encoder's code or the exporter may raise
        reason = f"torch.onnx cannot export {type(encoder).__name__} with these settings ({first_line(error)})"
        raise ExportError(reason) from error


def first_line(error: BaseException) -> str:
    """What an error says in its first line, or its name where it says nothing.

    >>> first_line(ValueError("no such operator\\nand a long story")), first_line(KeyError())
    ('no such operator', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _at_least(rows: Tensor, size: int) -> Tensor:
    repeats = [-(-size // length) for length in rows.shape]
    return rows.repeat(*repeats)[:2, : max(rows.shape[1], size)].contiguous()


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """The exporter prints its steps and warns about packages that nobody asked for."""
    noisy = logging.getLogger("torch.onnx")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        noisy.setLevel(level)


@contextlib.contextmanager
def _plain_attention(encoder: PreTrainedModel) -> Iterator[None]:
    """While it lasts, attention is products and a softmax, which make a shorter graph than the steps of sdpa."""
    before = encoder.config._attn_implementation
    if routes_attention(encoder):
        encoder.config._attn_implementation = "eager"
    try:
        yield
    finally:
        encoder.config._attn_implementation = before


def has_int8_instructions(cpuinfo: str | None = None) -> bool:
    """Whether the processor sums up products of 8-bit integers in one instruction; without, int8 gains little on CPUs and
    may overflow.

    Args:
        cpuinfo: what /proc/cpuinfo says; by default that of this machine.

    >>> has_int8_instructions("flags : fpu avx2 avx512_vnni"), has_int8_instructions("flags : fpu avx2")
    (True, False)
    """
    if cpuinfo is None:
        if platform.system() == "Darwin":
            return platform.machine() == "arm64"
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False
    lines = cpuinfo.lower().splitlines()
    return any(_INT8_FLAGS & set(line.split()) for line in lines if line.startswith(("flags", "features")))


def write_int8(source: Path, target: Path, products: Sequence[str] | None = None) -> None:
    """The graph with matrix products of 8-bit integers: weights by channel, inputs by their range in each batch.

    Args:
        products: names of the nodes to quantise, as of `encoder_products`; by default all, and the embeddings too.
    """
    quantization = require("onnxruntime.quantization", "onnx")
    options: dict[str, Any] = {}
    if products is not None:
        options["op_types_to_quantize"] = ["MatMul"]
        options["nodes_to_quantize"] = list(products)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it recommends a pre-processing step that makes no difference here
    try:
        quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QInt8, per_channel=True, **options)
    finally:
        root.setLevel(level)
    _drop_zero_points(target)


def _drop_zero_points(path: Path) -> None:
    """Leave out zero points of weights where all are 0, as they are of symmetric ones: without them products are the same,
    and a little faster."""
    onnx = require("onnx", "onnx")
    model = onnx.load(path)
    zeros = {item.name for item in model.graph.initializer if not onnx.numpy_helper.to_array(item).any()}
    for node in model.graph.node:
        if node.op_type == "MatMulInteger" and len(node.input) == 4 and node.input[3] in zeros:
            del node.input[3]
    onnx.save(model, path)


def encoder_products(path: Path) -> list[str]:
    """Names of the encoder's matrix products in a graph, by the modules that the exporter has written beside them. There
    are none where a selector reads nothing but embeddings."""
    onnx = require("onnx", "onnx")
    nodes = [node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "MatMul"]
    scopes = {node.name: {item.key: item.value for item in node.metadata_props} for node in nodes}
    return [name for name, known in scopes.items() if "'model.encoder'" in known.get("pkg.torch.onnx.name_scopes", "")]


def open_session(path: Path, threads: int) -> Any:
    """An onnxruntime session on this many threads; with one it runs on whichever thread calls it."""
    onnxruntime = require("onnxruntime", "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=_SLOW)


Feed = dict[str, Tensor]  # (batch, length) int64 for each of a graph's inputs


def feeds_of(graph: GateGraph, texts: Sequence[str]) -> list[Feed]:
    """Texts as batches that the graph takes."""
    model = graph.model
    language = model.config.language
    batches = token_batches(model.tokenizer, texts, model.max_length, shapes=True, words=graph.words, language=language)
    return [{name: batch[name].long() for name in graph.inputs} for batch in batches]


def padded(feed: Feed, columns: int = 5) -> Feed:
    """With more padding than the rows need; the mask is 0 there, so the ids are of no account."""
    return {name: nn.functional.pad(values, (0, columns)) for name, values in feed.items()}


@torch.no_grad()
def measure_difference(graph: GateGraph, path: Path, feeds: Sequence[Feed], threads: int) -> tuple[float, float]:
    """The largest difference between a file and the model, over all outputs; and the mean of that of the first output over
    content tokens."""
    session, largest, means = open_session(path, threads), 0.0, []
    for feed in feeds:
        expected = graph(*(feed[name] for name in graph.inputs))
        found = session.run(graph.outputs, {name: values.numpy() for name, values in feed.items()})
        distances = [graph.distance(torch.from_numpy(o), e) for o, e in zip(found, expected, strict=True)]
        largest = max(largest, *(float(distance.max()) for distance in distances))
        content = content_mask(graph.model.config, feed["input_ids"], feed["attention_mask"], None)
        # Several selectors give (batch, K, length).
        means.append((distances[0] if distances[0].ndim == 2 else distances[0].amax(1))[content])
    return largest, float(torch.cat(means).mean())


# ---- a folder of ONNX files --------------------------------------------------------------------------------------------


def export_onnx(
    model: HardKumaModel,
    output: str | Path,
    texts: Sequence[str],
    *,
    rationale: bool = False,
    int8: bool = True,
    selector: str | None = None,
    source: str = "the bundled corpus",
) -> dict[str, Any]:
    """Write model.onnx, model_int8.onnx, tokenizer, report.json and a card; returns the report.

    Args:
        model: a HardKumaModel in eval mode, on the CPU.
        texts: on which outputs are compared and int8 is measured.
        rationale: add the output `rationale_embedding`, for which the view `reencode` runs the encoder again.
        int8: write the quantised file too.
        selector: the name of the only one to write; by default all of them, side by side in the order of the report.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):
        require(package, "onnx")
    graph = GateGraph(model, selector, [GATES, ANCHOR, *([RATIONALE] if rationale else [])]).eval()
    batches = feeds_of(graph, texts)
    if not batches:
        raise ValueError("the texts hold no token to compare the export on; give texts with words.")
    several = [batches[0], batches[len(batches) // 2], batches[-1]]
    several += [{name: values[:1] for name, values in batches[-1].items()}, padded(several[1])]
    threads = torch.get_num_threads()
    with staged(output) as folder:
        try:
            write_graph(graph, folder / "model.onnx", batches[0])
        except ExportError as error:
            raise ValueError(f"{error}; `hardkuma export native` may do.") from error
        difference, _ = measure_difference(graph, folder / "model.onnx", several, threads)
        if not difference <= TOLERANCE:
            raise ValueError(
                f"the ONNX file differs from the model by {difference:.2e}, more than {TOLERANCE}: not written."
            )
        report: dict[str, Any] = {
            "inputs": graph.inputs,
            "outputs": graph.outputs,
            "selectors": graph.selectors,
            "decision_threshold": model.config.decision_threshold,
            "fp32": {
                "megabytes": _megabytes(folder, "model.onnx"),
                "batches": len(several),
                "largest_difference": difference,
            },
        }
        if int8:
            write_int8(folder / "model.onnx", folder / "model_int8.onnx")
            report["int8"] = {
                "megabytes": _megabytes(folder, "model_int8.onnx"),
                **_compare_files(model, folder / "model.onnx", folder / "model_int8.onnx", batches, threads),
                "texts": len(texts),
                "threads": threads,
            }
        write_tokenizer(folder, model.tokenizer, model.config)
        (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(onnx_card(model, report, source), encoding="utf-8")
    return report


def _megabytes(folder: Path, name: str) -> float:
    return round(sum(path.stat().st_size for path in folder.glob(f"{name}*")) / 1e6, 1)


def _compare_files(
    model: HardKumaModel, first: Path, second: Path, feeds: Sequence[Feed], threads: int
) -> dict[str, float]:
    """Gates, anchors and speed of the second file next to the first; rounds are interleaved so that noise hits both."""
    sessions = [open_session(first, threads), open_session(second, threads)]
    batches = [{name: values.numpy() for name, values in feed.items()} for feed in feeds]
    probabilities: list[list[np.ndarray]] = [[], []]
    cosines: list[np.ndarray] = []
    for feed, batch in zip(feeds, batches, strict=True):
        content = content_mask(model.config, feed["input_ids"], feed["attention_mask"], None).numpy()
        anchors = []
        for session, collected in zip(sessions, probabilities, strict=True):
            gates, anchor = session.run([GATES, ANCHOR], batch)
            # Several selectors give (batch, K, length).
            gates = np.moveaxis(gates, 1, -1) if gates.ndim == 3 else gates[..., None]
            collected.append(gates[content].ravel())
            anchors.append(anchor / np.linalg.norm(anchor, axis=-1, keepdims=True).clip(1e-12))
        cosines.append((anchors[0] * anchors[1]).sum(-1))
    ours, theirs = (np.concatenate(collected) for collected in reversed(probabilities))
    threshold = model.config.decision_threshold
    measured = agreement(ours, theirs, threshold=threshold, gate_threshold=threshold)
    ratios = []
    for _ in range(3):
        times = [_seconds(session, batches) for session in sessions]
        ratios.append(times[0] / times[1])
    return {
        "pearson": round(measured.pearson, 5),
        "spearman": round(measured.spearman, 5),
        "auroc": round(measured.auroc, 5),
        "decisions_changed": round(1 - measured.decisions, 5),
        "anchor_cosine": round(float(np.concatenate(cosines).mean()), 5),
        "speed": round(statistics.median(ratios), 3),
        "tokens": measured.tokens,
    }


def _seconds(session: Any, batches: Sequence[dict[str, np.ndarray]]) -> float:
    start = time.perf_counter()
    for feed in batches:
        session.run(["gate_probs"], feed)
    return time.perf_counter() - start
