"""A static table of word pieces with the gates as weights: is a mean of vectors better for it?

    python benchmarks/static_weights.py --data DATA           the STS sets; some minutes on a core

DATA holds stsb/ and sts/. As model2vec does, each item of the encoder's vocabulary is encoded alone; a text is the weighted
mean of its items' vectors. Weights: none; SIF, a / (a + p) with a = 0.001 and p the item's share of the bundled corpus; the
mean gate of the item over the bundled corpus (of its own alone where it is not there); and the product of both. Each with
and without the first principal component of the table, which SIF removes. Spearman's correlation with people's scores; 95%
bootstrap intervals of the paired difference to SIF.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from hardkuma import HardKumaModel, load_released
from hardkuma.corpora import bundled_texts
from hardkuma.inputs_hardkuma import content_mask

SETS = ("sts12", "sts13", "sts14", "sts15", "sts16", "sick-r")
DRAWS = 300
SMOOTHING = 1e-3
BASE = "SIF"


def read_sets(data: Path) -> dict[str, list[tuple[float, str, str]]]:
    sets = {}
    for name in SETS:
        rows = [line.split("\t") for line in (data / "sts" / f"{name}.tsv").read_text(encoding="utf-8").splitlines()]
        sets[name] = [(float(row[1]), row[2], row[3]) for row in rows]
    rows = [line.split("\t") for line in (data / "stsb" / "sts-test.csv").read_text(encoding="utf-8").splitlines()]
    return {**sets, "sts-b": [(float(row[4]), row[5], row[6]) for row in rows]}


@torch.inference_mode()
def static_table(model: HardKumaModel, batch_size: int = 512) -> tuple[Tensor, dict[str, Tensor]]:
    """(vocabulary, dim) anchors of the items, each alone, and each selector's gate of it there."""
    size = len(model.tokenizer)
    vectors, gates = [], {name: torch.zeros(size) for name in model.config.names}
    first, last = model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
    for start in range(0, size, batch_size):
        items = torch.arange(start, min(start + batch_size, size))
        inputs = torch.stack([torch.full_like(items, first), items, torch.full_like(items, last)], dim=-1)
        vectors.append(model.sentence_features(inputs, torch.ones_like(inputs), embedding="anchor")["embedding"])
        for name, row in gates.items():
            row[items] = model.gate_probabilities(inputs, torch.ones_like(inputs), selector=name)[:, 1]
    return torch.cat(vectors), gates


@torch.inference_mode()
def corpus_gates(model: HardKumaModel, texts: Sequence[str], alone: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """How often each item stands in the texts, and its mean gate there."""
    counts = torch.zeros(len(model.tokenizer))
    sums = {name: torch.zeros(len(model.tokenizer)) for name in alone}
    ordered = sorted(texts, key=len)
    for start in range(0, len(ordered), 64):
        inputs = model.tokenizer(ordered[start : start + 64], padding=True, truncation=True, return_tensors="pt")
        content = content_mask(model.config, inputs["input_ids"], inputs["attention_mask"], None).bool()
        items = inputs["input_ids"][content]
        counts.index_add_(0, items, torch.ones(len(items)))
        for name, row in sums.items():
            row.index_add_(0, items, model.gate_probabilities(**inputs, selector=name)[content])
    means = {name: torch.where(counts > 0, row / counts.clamp_min(1), alone[name]) for name, row in sums.items()}
    return counts, means


def without_first_component(table: Tensor) -> Tensor:
    direction = torch.linalg.svd(table - table.mean(0), full_matrices=False).Vh[0]
    return table - (table @ direction)[:, None] * direction


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, _ = load_released()
    table, alone = static_table(model)
    counts, gates = corpus_gates(model, bundled_texts(), alone)
    sif = SMOOTHING / (SMOOTHING + counts / counts.sum())
    weights = {"mean": torch.ones(len(table)), BASE: sif}
    for name, gate in gates.items():
        weights |= {f"gates, {name}": gate, f"SIF x gates, {name}": sif * gate}
    sets = read_sets(options.data)
    gold = {name: np.array([score for score, *_ in rows]) for name, rows in sets.items()}
    texts = list(dict.fromkeys(text for rows in sets.values() for _, *pair in rows for text in pair))
    number = {text: i for i, text in enumerate(texts)}
    ids = model.tokenizer(texts, add_special_tokens=False)["input_ids"]
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in ids])[:-1].tolist()])
    flat = torch.tensor([item for row in ids for item in row])
    results: dict[str, dict[str, np.ndarray]] = {}
    for suffix, chosen in (("", table), (", first component removed", without_first_component(table))):
        for name, weight in weights.items():
            scaled = chosen * weight[:, None]
            vectors = torch.nn.functional.embedding_bag(flat, scaled, offsets, mode="sum")
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
            results[name + suffix] = {
                key: (vectors[[number[a] for _, a, _ in rows]] * vectors[[number[b] for *_, b in rows]]).sum(-1).numpy()
                for key, rows in sets.items()
            }
    generator = np.random.default_rng(0)
    draws = {key: [generator.integers(0, len(row), len(row)) for _ in range(DRAWS)] for key, row in gold.items()}
    print(f"| weights | {' | '.join(sets)} | mean | minus {BASE} |\n|---|{'---:|' * (len(sets) + 2)}")
    means: dict[str, np.ndarray] = {}
    for name, cosines in results.items():
        values = [spearman(cosines[key], gold[key]) for key in sets]
        drawn = [[spearman(cosines[key][rows], gold[key][rows]) for rows in draws[key]] for key in sets]
        means[name] = np.mean(drawn, axis=0)
    for name, cosines in results.items():
        values = [spearman(cosines[key], gold[key]) for key in sets]
        suffix = name.partition(", first")[1] + name.partition(", first")[2]
        low, high = np.quantile(means[name] - means[BASE + suffix], [0.025, 0.975])
        shown = " | ".join(f"{value:.3f}" for value in (*values, float(np.mean(values))))
        print(f"| {name} | {shown} | {low:+.3f} to {high:+.3f} |", flush=True)


if __name__ == "__main__":
    main()
