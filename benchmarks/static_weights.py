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
from torch import Tensor

from hardkuma import HardKumaModel, load_released
from hardkuma.batch_hardkuma import content_mask
from hardkuma.data import bundled_texts
from hardkuma.evaluation.encoder_tasks import read_tasks
from hardkuma.evaluation.statistics import spearman

SETS = ("STS12", "STS13", "STS14", "STS15", "STS16", "SICK-R", "STS-B")
DRAWS = 300
SMOOTHING = 1e-3
BASE = "SIF"


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
    tasks = read_tasks(options.data, SETS)
    sets, texts = tasks.pairs, tasks.texts()
    gold = {name: np.array(pairs.scores) for name, pairs in sets.items()}
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
                key: (vectors[[number[a] for a in rows.first]] * vectors[[number[b] for b in rows.second]]).sum(-1).numpy()
                for key, rows in sets.items()
            }
    generator = np.random.default_rng(0)
    draws = {key: [generator.integers(0, len(row), len(row)) for _ in range(DRAWS)] for key, row in gold.items()}
    print(f"| weights | {' | '.join(sets)} | mean | minus {BASE} |\n|---|{'---:|' * (len(sets) + 2)}")
    means: dict[str, np.ndarray] = {}
    for name, cosines in results.items():
        drawn = [[spearman(cosines[key][rows], gold[key][rows]) for rows in draws[key]] for key in sets]
        means[name] = np.mean(drawn, axis=0)
    for name, cosines in results.items():
        values = [spearman(cosines[key], gold[key]) for key in sets]
        suffix = name.partition(", first")[1] + name.partition(", first")[2]
        low, high = np.quantile(means[name] - means[BASE + suffix], [0.025, 0.975])
        shown = " | ".join(f"{value:.3f}" for value in (*values, float(np.mean(values))))
        print(f"| {name} | {shown} | {'' if name == BASE + suffix else f'{low:+.3f} to {high:+.3f}'} |", flush=True)


if __name__ == "__main__":
    main()
