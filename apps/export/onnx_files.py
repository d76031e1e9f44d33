"""The gates as ONNX files: fp32, checked against PyTorch, and int8, with its loss of quality and gain in speed measured.

Through torch.onnx (torch.export); optimum-onnx 0.1.0 does not take this version of transformers.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...batch_hardkuma import content_mask
from ...checkpoint_hardkuma import staged, write_tokenizer
from ...data.tokens import token_batches
from ...modeling_hardkuma import HardKumaModel
from .agreement import agreement
from .cards import onnx_card
from .graphs import GATES, ExportError, GateGraph, open_session, require_onnx, write_graph, write_int8

TOLERANCE = 1e-4  # largest difference to PyTorch that an export may have


class EmbeddingGraph(GateGraph):
    """The gates, and beside them the embedding of the sentence.

    Args:
        rationale: give `rationale_embedding` too.
    """

    def __init__(self, model: HardKumaModel, rationale: bool, selector: str | None = None):
        super().__init__(model, selector)
        self.rationale = rationale

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, surface_ids: Tensor, continues: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        out = self.model(
            input_ids,
            attention_mask,
            special_tokens_mask=self.special_tokens(input_ids),
            surface_ids=surface_ids,
            continues=continues,
            selector=self.selector,
            return_embeddings=self.rationale,
        )
        plain = (out.gate_probs, out.anchor_embedding)
        return (*plain, out.rationale_embedding) if self.rationale else plain

    @property
    def outputs(self) -> list[str]:
        return [GATES, "anchor_embedding", *(["rationale_embedding"] if self.rationale else [])]


def export_onnx(
    model: HardKumaModel,
    output: str | Path,
    texts: Sequence[str],
    *,
    rationale: bool = False,
    int8: bool = True,
    selector: str | None = None,
    source: str = "the bundled corpus",
    threads: int | None = None,
) -> dict[str, Any]:
    """Write model.onnx, model_int8.onnx, tokenizer, report.json and a card; returns the report.

    Args:
        model: a HardKumaModel in eval mode, on the CPU.
        texts: on which outputs are compared and int8 is measured.
        rationale: add the output `rationale_embedding`, for which the view `reencode` runs the encoder again.
        int8: write the quantised file too.
        selector: the name of the only one to write; by default all of them, side by side in the order of the report.
        threads: of onnxruntime while measuring; torch's by default.
    """
    require_onnx("onnx", "onnxruntime", "onnxscript")
    graph = EmbeddingGraph(model, rationale, selector).eval()
    batches = _feeds(graph, texts)
    if not batches:
        raise ValueError("the texts hold no token to compare the export on; give texts with words.")
    threads = threads or torch.get_num_threads()
    with staged(output) as folder:
        example = {name: torch.from_numpy(values) for name, values in batches[0].items()}
        try:
            write_graph(graph, folder / "model.onnx", example)
        except ExportError as error:
            raise ValueError(f"{error}; `hardkuma export native` may do.") from error
        difference, compared = _largest_difference(graph, folder / "model.onnx", batches, threads)
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
                "batches": compared,
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


def _feeds(graph: EmbeddingGraph, texts: Sequence[str]) -> list[dict[str, np.ndarray]]:
    model = graph.model
    batches = token_batches(model.tokenizer, texts, model.max_length, shapes=True, words=graph.words)
    return [{name: batch[name].numpy().astype(np.int64) for name in graph.inputs} for batch in batches]


def _megabytes(folder: Path, name: str) -> float:
    return round(sum(path.stat().st_size for path in folder.glob(f"{name}*")) / 1e6, 1)


@torch.no_grad()
def _largest_difference(
    graph: EmbeddingGraph, path: Path, batches: Sequence[dict[str, np.ndarray]], threads: int
) -> tuple[float, int]:
    """Over batches of several shapes: single rows, padded rows, and rows with more padding than they need."""
    session, largest = open_session(path, threads), 0.0
    chosen = [batches[0], batches[len(batches) // 2], batches[-1]]
    shapes = [*chosen, {name: values[:1] for name, values in chosen[-1].items()}, _padded(chosen[1], 5)]
    for feed in shapes:
        expected = graph(*(torch.from_numpy(feed[name]) for name in graph.inputs))
        for ours, theirs in zip(session.run(graph.outputs, feed), expected, strict=True):
            largest = max(largest, float(np.abs(ours - theirs.numpy()).max()))
    return largest, len(shapes)


def _padded(feed: dict[str, np.ndarray], columns: int) -> dict[str, np.ndarray]:
    # The mask is 0 there, so the ids are of no account.
    return {name: np.pad(values, ((0, 0), (0, columns))) for name, values in feed.items()}


def _compare_files(
    model: HardKumaModel, first: Path, second: Path, batches: Sequence[dict[str, np.ndarray]], threads: int, rounds: int = 3
) -> dict[str, float]:
    """Gates, anchors and speed of the second file next to the first; rounds are interleaved so that noise hits both."""
    sessions = [open_session(first, threads), open_session(second, threads)]
    probabilities: list[list[np.ndarray]] = [[], []]
    cosines: list[np.ndarray] = []
    for feed in batches:
        mask = torch.from_numpy(feed["attention_mask"])
        content = content_mask(model.config, torch.from_numpy(feed["input_ids"]), mask, None).numpy()
        anchors = []
        for session, collected in zip(sessions, probabilities, strict=True):
            gates, anchor = session.run(["gate_probs", "anchor_embedding"], feed)
            # Several selectors give (batch, K, length).
            gates = np.moveaxis(gates, 1, -1) if gates.ndim == 3 else gates[..., None]
            collected.append(gates[content].ravel())
            anchors.append(anchor / np.linalg.norm(anchor, axis=-1, keepdims=True).clip(1e-12))
        cosines.append((anchors[0] * anchors[1]).sum(-1))
    ours, theirs = (np.concatenate(collected) for collected in reversed(probabilities))
    threshold = model.config.decision_threshold
    measured = agreement(ours, theirs, threshold=threshold, gate_threshold=threshold)
    ratios = []
    for _ in range(rounds):
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
