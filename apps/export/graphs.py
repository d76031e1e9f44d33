"""The gates as an ONNX graph: the model's own code, traced; in fp32, or with the encoder's matrix products in int8.

Nothing of the model is written down again here: what torch.export sees when `gate_probabilities` runs is what the graph
does. Layers that no selector reads are left out of it, since nothing depends on them.

onnx, onnxruntime and onnxscript are imported by name: an import statement would make them a requirement of every
checkpoint that these files travel with.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...attention_hardkuma import routes_attention
from ...modeling_hardkuma import HardKumaModel

INPUTS = ("input_ids", "attention_mask", "surface_ids")
WORDS = "continues"  # one more, of models to which it makes a difference which tokens make up a word
GATES = "gate_probs"
SINGLE_FILE = 1 << 30  # bytes of weights up to which one file holds all; protobuf's limit is 2 GB
# Fused with the sum before it, onnxruntime's layer norm on CPUs is several times as slow (1.31: a quarter of an int8 pass).
_SLOW = ["SkipLayerNormFusion"]
_INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}


class ExportError(ValueError):
    """A model that cannot be had as an ONNX graph."""


def require_onnx(*modules: str) -> list[ModuleType]:
    """Import modules that come with the extra `onnx`, or say how to get them.

    >>> [module.__name__ for module in require_onnx("math")]
    ['math']
    """
    try:
        return [importlib.import_module(module) for module in modules]
    except ImportError as error:
        raise ImportError(
            f"ONNX needs the packages onnx, onnxscript and onnxruntime ({error}): pip install 'hardkuma[onnx]'"
        ) from error


class GateGraph(nn.Module):
    """The selection probabilities over plain tensors, without decisions that depend on values.

    Args:
        model: in eval mode, on the CPU.
        selector: the name of the only one whose gates are given; all, side by side, by default.
    """

    special: Tensor

    def __init__(self, model: HardKumaModel, selector: str | None = None):
        super().__init__()
        self.model, self.selector = model, selector
        config = model.config
        self.selectors = config.names if selector is None else [selector]
        self.words = any(model.gate_head.needs_words(config.find_selector(name)) for name in self.selectors)
        self.register_buffer("special", torch.tensor(config.special_token_ids, dtype=torch.long), persistent=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, surface_ids: Tensor, continues: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        probabilities = self.model.gate_probabilities(
            input_ids,
            attention_mask,
            special_tokens_mask=self.special_tokens(input_ids),
            surface_ids=surface_ids,
            continues=continues,
            selector=self.selector,
        )
        return (probabilities,)

    def special_tokens(self, input_ids: Tensor) -> Tensor:
        """(batch, length) bool; the model's own torch.isin has no ONNX counterpart."""
        return (input_ids[..., None] == self.special).any(-1)

    @property
    def inputs(self) -> list[str]:
        return [*INPUTS, *([WORDS] if self.words else [])]

    @property
    def outputs(self) -> list[str]:
        return [GATES]


def write_graph(graph: GateGraph, path: Path, feed: Mapping[str, Tensor]) -> None:
    """Trace the graph and write it, fp32; `ExportError` where that cannot be done.

    Args:
        feed: (batch, length) int64 for each of the graph's inputs; any batch will do.
    """
    require_onnx("onnx", "onnxscript")
    # Two rows of at least two tokens: torch.export would take a size of 1 for a constant.
    rows = [_at_least(feed[name], 2) for name in graph.inputs]
    weights = sum(tensor.numel() * tensor.element_size() for tensor in graph.parameters())
    encoder = graph.model.encoder
    graph.model.remember_tokens()
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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(f"torch.onnx cannot export {type(encoder).__name__} with these settings ({reason})") from error


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


def has_int8_instructions() -> bool:
    """Whether the processor sums up products of 8-bit integers in one instruction; without, int8 gains little on CPUs and
    may overflow.

    >>> has_int8_instructions() in (True, False)
    True
    """
    if platform.system() == "Darwin":
        return platform.machine() == "arm64"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any(_INT8_FLAGS & set(line.split()) for line in lines if line.lower().startswith(("flags", "features")))


def write_int8(source: Path, target: Path, products: Sequence[str] | None = None) -> None:
    """The graph with matrix products of 8-bit integers: weights by channel, inputs by their range in each batch.

    Args:
        products: names of the nodes to quantise, as of `encoder_products`; by default all, and the embeddings too.
    """
    (quantization,) = require_onnx("onnxruntime.quantization")
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
    (onnx,) = require_onnx("onnx")
    model = onnx.load(path)
    zeros = {item.name for item in model.graph.initializer if not onnx.numpy_helper.to_array(item).any()}
    for node in model.graph.node:
        if node.op_type == "MatMulInteger" and len(node.input) == 4 and node.input[3] in zeros:
            del node.input[3]
    onnx.save(model, path)


def encoder_products(path: Path) -> list[str]:
    """Names of the encoder's matrix products in a graph, by the modules that the exporter has written beside them. There
    are none where a selector reads nothing but embeddings."""
    (onnx,) = require_onnx("onnx")
    nodes = [node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "MatMul"]
    scopes = {node.name: {item.key: item.value for item in node.metadata_props} for node in nodes}
    return [name for name, known in scopes.items() if "'model.encoder'" in known.get("pkg.torch.onnx.name_scopes", "")]


def open_session(path: Path, threads: int) -> Any:
    """An onnxruntime session on this many threads; with one it runs on whichever thread calls it."""
    (onnxruntime,) = require_onnx("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=_SLOW)
