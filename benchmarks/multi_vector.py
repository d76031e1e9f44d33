"""Pruned multi-vector retrieval: do the gates keep better token vectors than what one would use instead?

    python benchmarks/multi_vector.py --data DATA             TREC-QA test; some minutes on a core
    python benchmarks/multi_vector.py --data DATA --part dev

DATA holds trecqa/test.csv (question, label, answer sentence). MaxSim over the token states of the encoder: a question keeps
all its vectors, an answer the best 50, 25 or 15% (at least one) of its own by a score, or as many means of clusters (Ward,
sentence-transformers' HierarchicalTokenPooling). Measured: mean average precision over the labelled answers of each
question that has right and wrong ones, and the mean reciprocal rank of the first right answer among all answers of the
file. 95% bootstrap intervals over questions, and of the paired difference to the clusters.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers.multi_vector_encoder.modules.token_pooling import HierarchicalTokenPooling
from torch import Tensor
from transformers import AutoModel

from hardkuma import HardKumaModel, load_released
from hardkuma.encoder_hardkuma import resolve_encoder
from hardkuma.evaluation.statistics import bootstrap

RATES = (0.5, 0.25, 0.15)
SEEDS = 3
CLUSTERS = "clusters (Ward)"


def read_answers(path: Path) -> dict[str, list[tuple[str, bool]]]:
    """The labelled answers of each question that has right and wrong ones."""
    questions: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            questions[row["qtext"]].append((row["atext"], row["label"] == "1"))
    return {q: rows for q, rows in questions.items() if len({label for _, label in rows}) == 2}


class Tokens:
    """Unit states of the tokens of texts, special ones left out, with every score by which they may be kept."""

    def __init__(self, model: HardKumaModel, texts: Sequence[str], batch_size: int = 32):
        encoder = AutoModel.from_pretrained(
            resolve_encoder("sentence-transformers/all-MiniLM-L6-v2"), attn_implementation="eager"
        ).eval()
        special = torch.tensor(model.config.special_token_ids)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        self.states: list[Tensor] = [torch.empty(0)] * len(texts)
        self.scores: dict[str, list[Tensor]] = defaultdict(lambda: [torch.empty(0)] * len(texts))
        self.ids: list[list[int]] = [[]] * len(texts)
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            inputs = model.tokenizer([texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt")
            with torch.inference_mode():
                out = encoder(**inputs, output_attentions=True)
                mask = inputs["attention_mask"]
                received = torch.stack(out.attentions).mean((0, 2)) * mask[:, :, None]  # (batch, from, to)
                scores = {"attention": received.sum(1), "norm": out.last_hidden_state.norm(dim=-1)}
                for name in model.config.names:
                    scores[f"gates, {name}"] = model.gate_probabilities(**inputs, selector=name)
            for row, i in enumerate(rows):
                keep = mask[row].bool() & ~torch.isin(inputs["input_ids"][row], special)
                self.states[i] = torch.nn.functional.normalize(out.last_hidden_state[row][keep], dim=-1)
                self.ids[i] = inputs["input_ids"][row][keep].tolist()
                for name, values in scores.items():
                    self.scores[name][i] = values[row][keep]
        seen = Counter(token for row in self.ids for token in set(row))
        self.scores["inverse document frequency"] = [
            torch.tensor([math.log(len(texts) / seen[token]) for token in row]) for row in self.ids
        ]
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(seed)
            self.scores[f"random {seed}"] = [torch.rand(len(row), generator=generator) for row in self.ids]

    def keep(self, name: str, rate: float) -> list[Tensor]:
        """Of each text the vectors with the largest scores."""
        return [
            states[scores.topk(max(1, math.ceil(rate * len(states)))).indices] if len(states) else states
            for states, scores in zip(self.states, self.scores[name], strict=True)
        ]

    def cluster(self, rate: float) -> list[Tensor]:
        pooling = HierarchicalTokenPooling(pool_factor=1 / rate)
        return [
            torch.nn.functional.normalize(pooling.pool_one(row), dim=-1) if len(row) > 1 else row for row in self.states
        ]


def max_sim(questions: Sequence[Tensor], answers: Sequence[Tensor]) -> Tensor:
    """(questions, answers): the sum over the question's vectors of the largest cosine with one of the answer's."""
    owners = torch.repeat_interleave(torch.arange(len(answers)), torch.tensor([len(row) for row in answers]))
    flat = torch.cat(list(answers))
    result = torch.full((len(questions), len(answers)), -math.inf)
    for i, question in enumerate(questions):
        cosines = question @ flat.T
        best = torch.full((len(question), len(answers)), -1.0)
        best.scatter_reduce_(1, owners.expand(len(question), -1), cosines, "amax")
        result[i] = best.sum(0)
    return result


def measure(scores: Tensor, labels: Sequence[dict[int, bool]]) -> dict[str, np.ndarray]:
    """Average precision among the labelled answers, and reciprocal rank of the first right one among all; (questions,)."""
    precision, rank = [], []
    for row, labelled in zip(scores, labels, strict=True):
        ranked = sorted(labelled, key=lambda i: -float(row[i]))
        hits = [place for place, i in enumerate(ranked, start=1) if labelled[i]]
        precision.append(sum(n / place for n, place in enumerate(hits, start=1)) / len(hits))
        best = max(float(row[i]) for i, right in labelled.items() if right)
        rank.append(1 / (1 + int((row > best).sum())))
    return {"average precision": np.array(precision), "reciprocal rank": np.array(rank)}


def interval(values: np.ndarray, sign: str = "") -> str:
    cell = bootstrap(lambda w: {"mean": float(w @ values / w.sum())}, len(values))["mean"]
    return f"{cell.value:{sign}.3f} ({cell.low:{sign}.3f} to {cell.high:{sign}.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--part", default="test", choices=("dev", "test"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, _ = load_released()
    questions = read_answers(options.data / "trecqa" / f"{options.part}.csv")
    texts = list(dict.fromkeys(text for rows in questions.values() for text, _ in rows))
    number = {text: i for i, text in enumerate(texts)}
    labels = [{number[text]: label for text, label in rows} for rows in questions.values()]
    asked, answers = Tokens(model, list(questions)).states, Tokens(model, texts)
    single = [torch.nn.functional.normalize(row.mean(0, keepdim=True), dim=-1) for row in answers.states]
    print(f"TREC-QA {options.part}: {len(questions)} questions, {len(texts)} answers\n")
    print(
        "| kept | by | average precision | minus clusters | reciprocal rank | minus clusters |\n|---|---|---|---|---|---|"
    )

    def show(kept: str, name: str, values: dict[str, np.ndarray], base: dict[str, np.ndarray] | None) -> None:
        cells = [
            cell
            for key, row in values.items()
            for cell in (interval(row), interval(row - base[key], "+") if base is not None and base is not values else "")
        ]
        print(f"| {kept} | {name} | {' | '.join(cells)} |", flush=True)

    show("all", "", measure(max_sim(asked, answers.states), labels), None)
    show("one mean", "", measure(max_sim(asked, single), labels), None)
    names = [name for name in answers.scores if not name.startswith("random")]
    for rate in RATES:
        by: dict[str, Callable[[], list[Tensor]]] = {CLUSTERS: lambda rate=rate: answers.cluster(rate)}
        by |= {name: lambda name=name, rate=rate: answers.keep(name, rate) for name in names}
        results = {name: measure(max_sim(asked, choose()), labels) for name, choose in by.items()}
        draws = [measure(max_sim(asked, answers.keep(f"random {seed}", rate)), labels) for seed in range(SEEDS)]
        results["random"] = {key: np.mean([draw[key] for draw in draws], axis=0) for key in draws[0]}
        for name, values in results.items():
            show(f"{rate:.0%}", name, values, results[CLUSTERS])


if __name__ == "__main__":
    main()
