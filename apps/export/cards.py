"""Cards of exported models, and what they report: how well an export agrees with the gates."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from huggingface_hub import EvalResult, ModelCardData

from ...checkpoint_hardkuma import CARD_PATH, read_card_values
from ...common.text import SHOWCASE
from ...evaluation.statistics import pearson, ranks, spearman
from ...modeling_hardkuma import HardKumaModel

LICENSE = "apache-2.0"
# Outputs of the ONNX files.
OUTPUTS = {
    "gate_probs": "(batch, length) probability that a token is selected; 0 on special tokens and padding",
    "anchor_embedding": "(batch, dim) the sentence embedding",
    "rationale_embedding": "(batch, dim) the sentence, seen through its selected tokens",
}


@dataclass(frozen=True)
class Agreement:
    """Of an export with the gates, over the content tokens of text that took no part in the fit. Higher is better.

    auroc: P(a token that the gates select scores above one that they do not), ties half.
    pearson, spearman: correlation of the probabilities, and of their ranks.
    decisions: share of tokens on which both decide alike.
    selected, selected_by_gates: share of tokens that each selects (no direction is better).
    """

    auroc: float
    pearson: float
    spearman: float
    decisions: float
    selected: float
    selected_by_gates: float
    tokens: int

    def as_dict(self) -> dict[str, float]:
        """Rounded, for reports."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


def agreement(
    probabilities: np.ndarray, gates: np.ndarray, *, threshold: float = 0.5, gate_threshold: float = 0.5
) -> Agreement:
    """Compare (n,) probabilities of an export with (n,) of the gates, each under its own decision threshold.

    >>> measured = agreement(np.array([0.1, 0.7, 0.8]), np.array([0.2, 0.4, 0.9]))
    >>> measured.auroc, measured.spearman, round(measured.decisions, 2)
    (1.0, 1.0, 0.67)
    """
    if probabilities.shape != gates.shape or probabilities.ndim != 1 or len(gates) < 2:
        raise ValueError(f"two rows of at least 2 probabilities are compared, got {probabilities.shape} and {gates.shape}.")
    ours, theirs = probabilities > threshold, gates > gate_threshold
    rank = ranks(probabilities)
    positives, negatives = int(theirs.sum()), int((~theirs).sum())
    auroc = float("nan")
    if positives and negatives:
        auroc = float((rank[theirs].sum() - positives * (positives + 1) / 2) / (positives * negatives))
    return Agreement(
        auroc=auroc,
        pearson=pearson(probabilities, gates),
        spearman=spearman(probabilities, gates),
        decisions=float((ours == theirs).mean()),
        selected=float(ours.mean()),
        selected_by_gates=float(theirs.mean()),
        tokens=len(gates),
    )


def _metadata(model: HardKumaModel, name: str, source: str, metrics: dict[str, float], **fields: Any) -> str:
    """The YAML header of a card: what the Hub reads, and what was measured of this export."""
    known = read_card_values(model.name_or_path)
    results = [
        EvalResult("token-classification", "held-out", f"held-out texts of {source}", metric, round(value, 4))
        for metric, value in metrics.items()
        if math.isfinite(value)
    ]
    data = ModelCardData(
        language=known.get("language") or None,
        license=LICENSE,
        base_model=model.config.encoder_name_or_path,
        datasets=known.get("datasets") or None,
        pipeline_tag="token-classification",
        model_name=name,
        eval_results=results or None,
        tags=["hardkuma", "rationale", "interpretability", *fields.pop("tags", [])],
        ignore_metadata_errors=False,
        **fields,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def agreement_table(columns: dict[str, Agreement]) -> str:
    """Markdown, a column for each comparison."""
    rows = {
        "AUROC against the gates' decisions": "auroc",
        "Pearson correlation of probabilities": "pearson",
        "Spearman correlation of probabilities": "spearman",
        "same decision": "decisions",
        "tokens selected by this model": "selected",
        "tokens selected by the gates": "selected_by_gates",
    }
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for title, name in rows.items():
        lines.append(f"| {title} | {' | '.join(f'{getattr(column, name):.3f}' for column in columns.values())} |")
    return "\n".join(lines)


def native_card(
    model: HardKumaModel,
    agreements: dict[str, Agreement],
    source: str,
    fitted: int,
    held_out: int,
    layers: int | None = None,
    selector: str | None = None,
) -> str:
    """README.md of a native export: metadata, widget examples, how to use it, how far it agrees.

    Args:
        layers: how many of the encoder's layers there are, if not all.
        selector: the name of the one that is imitated, where the model has several.
    """
    widget = [{"text": text, "example_title": f"Example {number}"} for number, text in enumerate(SHOWCASE, start=1)]
    encoder, measured = model.config.encoder_name_or_path, agreements["gates"]
    head = _metadata(
        model,
        "HardKuma gates as a stock token classifier",
        source,
        {"auroc": measured.auroc, "pearson": measured.pearson, "same_decision": measured.decisions},
        library_name="transformers",
        widget=widget,
        tags=["token-classification"],
        **({"base_model_relation": "finetune"} if encoder else {}),
    )
    titles = {"gates": "the gates", "surface": "the gates with the surface view"}
    surface = (
        "\n\nThe surface view sees how a word is written (capitals, digits) in the original text. This model does not\n"
        "have it: the second column says how far it is from what `hardkuma gates` and the token-gates pipeline show."
        if "surface" in agreements
        else ""
    )
    of_selector = f" (those of its selector `{selector}`)" if selector else ""
    depth = f", its first {layers} layers," if layers else ""
    return f"""{head}
# HardKuma gates as a stock token classifier

A copy of HardKuma gates{of_selector} for tools that run no custom code, hosted widgets among them, not the gates
themselves: {f"`{encoder}`" if encoder else "a sentence encoder"}{depth} with a linear head that imitates them. How
far it does is measured below. `ENTITY` marks the words that the gates would select; the head was fitted to the gates'
probabilities, not to labels.

```python
from transformers import pipeline

{CARD_PATH}
# "max": a word counts as its most probable token
find = pipeline("token-classification", model=path, aggregation_strategy="max")
find("Marie Curie moved to Paris in 1891.")
```

## How far it agrees with the gates

The gates are a small network; this head is linear, fitted to their probabilities on {fitted:,} texts of {source}.
Measured on {held_out:,} other texts of the same source, over {agreements["gates"].tokens:,} tokens; higher is better in the
first four rows:

{agreement_table({titles[name]: values for name, values in agreements.items()})}{surface}

The decision (`ENTITY` against `O`) is calibrated so that this model selects as many tokens of the fitting text as the gates
do. For the gates themselves, rates and thresholds at inference, and rationale embeddings, use the HardKuma checkpoint.

## Limits

The gates say which tokens a *sentence encoder* relies on. That often coincides with names, numbers and rare words, but it
is not an entity recogniser. On text unlike the fitting text the agreement may be lower.
"""


# Part of the example where gates belong to words.
_WORDS_OF_TOKENIZER = """\
words = np.array([[-1 if word is None else word for word in inputs.word_ids(row)] for row in range(len(ids))])
continues = np.zeros_like(ids)
continues[:, 1:] = (words[:, 1:] == words[:, :-1]) & (words[:, 1:] >= 0)
feed["continues"] = continues
"""
_ABOUT_WORDS = """
`continues` is 1 where a token goes on with the word of the token before it: all tokens of a word share one gate. The
example takes the tokenizer's words; those of `hardkuma gates` (U.S., O'Neil, 4,500) are
`hardkuma.continues_batch(texts, offset_mapping)`."""


def onnx_card(model: HardKumaModel, report: dict[str, Any], source: str) -> str:
    """README.md of an ONNX export: files, inputs, outputs, what was measured."""
    config = model.config
    encoder, int8 = config.encoder_name_or_path, report.get("int8", {})
    head = _metadata(
        model,
        "HardKuma gates, ONNX",
        source,
        {f"int8_{name}": int8[name] for name in ("pearson", "decisions_changed", "anchor_cosine") if name in int8},
        library_name="onnx",
        tags=["onnx"],
        **({"base_model_relation": "quantized"} if encoder and int8 else {}),
    )
    measured, quantised = [f"| `model.onnx` | fp32 | {report['fp32']['megabytes']:.1f} | 1.00 | | | |"], ""
    if int8:
        measured.append(
            f"| `model_int8.onnx` | int8 weights | {int8['megabytes']:.1f} | {int8['speed']:.2f} | "
            f"{int8['pearson']:.4f} | {int8['decisions_changed']:.4f} | {int8['anchor_cosine']:.4f} |"
        )
        quantised = (
            "\nSpeed, correlation of gate probabilities with fp32, share of tokens whose decision changes, and mean\n"
            f"cosine of the anchor embedding to fp32's: {int8['texts']:,} texts of {source} ({int8['tokens']:,} tokens) "
            f"with {int8['threads']} thread(s) of the machine that exported.\n"
        )
    selectors, words = report["selectors"], "continues" in report["inputs"]
    outputs = "\n".join(f"- `{name}`: {OUTPUTS[name]}" for name in report["outputs"])
    if len(selectors) > 1:
        named = ", ".join(f"`{name}` ({number})" for number, name in enumerate(selectors))
        outputs += f"\n\nAfter the batch, all but `anchor_embedding` have an axis of selectors: {named}."
    elif config.num_selectors > 1:
        outputs += f"\n\nGates and rationale are those of the selector `{selectors[0]}`."
    table = "\n".join(measured)
    first = f"[:, 0]  # of {selectors[0]}" if len(selectors) > 1 else ""
    return f"""{head}
# HardKuma gates, ONNX

Which words carry this sentence's meaning? {f"`{encoder}`" if encoder else "A sentence encoder"} with HardKuma gates, for
onnxruntime: no torch, no custom code.

```python
import numpy as np
import onnxruntime
from transformers import AutoTokenizer

path = "."  # this folder; of a repository: huggingface_hub.snapshot_download(its id)
tokenizer = AutoTokenizer.from_pretrained(path)
session = onnxruntime.InferenceSession(f"{{path}}/model.onnx")
inputs = tokenizer(["Marie Curie moved to Paris in 1891."], padding=True, truncation=True, return_tensors="np")
ids, mask = inputs["input_ids"].astype(np.int64), inputs["attention_mask"].astype(np.int64)
feed = {{"input_ids": ids, "attention_mask": mask, "surface_ids": np.zeros_like(ids)}}
{_WORDS_OF_TOKENIZER if words else ""}gate_probs = session.run(["gate_probs"], feed)[0]{first}
selected = gate_probs > {config.decision_threshold}
```

Inputs, int64, (batch, length), padded on the right: {", ".join(f"`{name}`" for name in report["inputs"])}.
`surface_ids` are the classes of the words' written form (`hardkuma.surface_batch`). With zeros, as above, the gates do not
see how words are written, and answer otherwise than `hardkuma gates` does.{_ABOUT_WORDS if words else ""} Outputs:

{outputs}

At most {model.max_length} tokens. The largest difference between `model.onnx` and
the PyTorch model, over {report["fp32"]["batches"]} batches of different shape with padding, was
{report["fp32"]["largest_difference"]:.1e}.

| file | weights | MB | speed | Pearson | decisions changed | anchor cosine |
|---|---|---|---|---|---|---|
{table}
{quantised}"""
