"""Rationales of a task: how much of a class do the selected words hold, and how much is left without them?

    python benchmarks/task.py --data FOLDER                  FOLDER holds transfer/sst.train.tsv, sst.test.tsv, ...
    python benchmarks/task.py --data FOLDER --sets sst --dev --seeds 0       while choosing settings: SST's development part
    python benchmarks/task.py --data FOLDER --rows gates written shuffled

Every seed takes other training texts. Gates are trained by the recipe `task`, never see a class and take one pass.
Leave-one-out, integrated gradients and SHAP explain a plain logistic head on the same frozen encoder; they are told which
class it predicts and take a pass for each word (20 and about 80 for the others), so they see the first `--explained` texts
alone. Removed words are left out and the rest is encoded again, always. Columns:

    all          accuracy with all words
    alone        accuracy with the selected words alone, at each rate
    rest         accuracy with the other words alone
    sufficiency, comprehensiveness      p(c | text) - p(c | selected), p(c | text) - p(c | rest), with c the class that
                 is predicted for the text (ERASER; the first should be low, the second high), at the second rate

Rows: `gates` (the recipe), `no rationales` (its classifier never learned from rationales), `written` (the loss as written
alone, by sampled gates from random weights), `both` (the same steps after the warm start), `shuffled` (labels in random
order: what is left when the mechanism is taken away), `plain` (the logistic head: random words, leave-one-out, ...).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from captum.attr import IntegratedGradients
from torch import Tensor

from hardkuma import HardKumaForSequenceClassification
from hardkuma.batch_hardkuma import TokenBatch
from hardkuma.common.files import write_atomically
from hardkuma.configuration_hardkuma import TASK
from hardkuma.evaluation.baselines.shapley import shapley_values
from hardkuma.gate_head_hardkuma import WordGates
from hardkuma.train import train
from hardkuma.training.objectives import task as objective
from hardkuma.training.objectives.task import fit_classifier, own_log_odds
from hardkuma.training.recipe import load_recipe

SETS = ("sst", "subj", "trec")
RATES = (0.1, 0.2, 0.3)
STEPS = 20  # of integrated gradients
WRITTEN = {"train.steps": 300, "selectors.task.lambda_s": 0.0, "model.lambda_e": 1.0}
# Recipe keys of every row, beside data and seed.
ROWS: dict[str, dict[str, Any]] = {
    "gates": {},
    "no rationales": {},
    "written": {**WRITTEN, "train.warm_start": False},
    "both": WRITTEN,
    "shuffled": {},
}
Labelled = tuple[list[str], list[str]]  # texts, classes


@dataclass
class Found:
    """Of every text: logits with all words, with the selected ones alone and with the rest; (texts, classes) and (texts,
    rates, classes)."""

    whole: Tensor
    alone: Tensor
    rest: Tensor

    def row(self, labels: Tensor) -> dict[str, float]:
        """Accuracies, and ERASER's two measures, by the name of their column."""

        def accuracy(logits: Tensor) -> float:
            return float((logits.argmax(-1) == labels).double().mean())

        predicted = self.whole.argmax(-1, keepdim=True)
        probability = [
            logits.softmax(-1).gather(-1, predicted) for logits in (self.whole, self.alone[:, 1], self.rest[:, 1])
        ]
        row = {"all": accuracy(self.whole)}
        for place, rate in enumerate(RATES):
            row[f"alone {rate}"] = accuracy(self.alone[:, place])
        for place, rate in enumerate(RATES):
            row[f"rest {rate}"] = accuracy(self.rest[:, place])
        row["sufficiency"] = float((probability[0] - probability[1]).mean())
        row["comprehensiveness"] = float((probability[0] - probability[2]).mean())
        return row


def read_labelled(path: Path) -> Labelled:
    """Rows of class and text."""
    rows = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [text for _, text in rows], [label for label, _ in rows]


def read_parts(folder: Path, name: str, seed: int, number: int, dev: bool) -> tuple[Labelled, Labelled]:
    """Training texts, a random `number`, and the test part; of SUBJ, which has none, a random fifth."""
    generator = np.random.default_rng(seed)
    if name == "subj":
        texts, labels = read_labelled(folder / "subj.tsv")
        order = np.random.default_rng(0).permutation(len(texts))
        rows, test = order[len(order) // 5 :], order[: len(order) // 5]
        held = [texts[i] for i in test], [labels[i] for i in test]
    else:
        texts, labels = read_labelled(folder / f"{name}.train.tsv")
        held = read_labelled(folder / f"{name}.{'dev' if dev else 'test'}.tsv")
        rows = np.arange(len(texts))
    rows = generator.permutation(rows)[:number]
    return ([texts[i] for i in rows], [labels[i] for i in rows]), held


def fit_row(row: str, texts: Labelled, seed: int, folder: Path) -> HardKumaForSequenceClassification:
    """The classifier that the recipe makes of these texts."""
    labels = np.array(texts[1])
    if row == "shuffled":
        labels = np.random.default_rng(seed).permutation(labels)
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": t, "label": str(c)}) + "\n" for t, c in zip(texts[0], labels, strict=True)))
    changes = {"data": [str(path)], "seed": seed, "held_out": 1, "output": str(folder / row), **ROWS[row]}
    known, objective.RATIONALES = objective.RATIONALES, 1e-6 if row == "no rationales" else objective.RATIONALES
    try:
        run = train(load_recipe("task", changes), overwrite=True)
    finally:
        objective.RATIONALES = known
    assert run is not None and isinstance(run.result, HardKumaForSequenceClassification)
    return run.result.eval()


def batches(
    model: HardKumaForSequenceClassification, texts: list[str], size: int = 32
) -> Iterator[tuple[list[int], dict[str, Tensor], TokenBatch, WordGates]]:
    """Texts of like length together: their numbers, tokens, and gates."""
    base, number = model.hardkuma, model.config.find_selector(default=TASK)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(texts), size):
        chosen = order[start : start + size]
        options = {"padding": True, "truncation": True, "max_length": 128, "return_tensors": "pt"}
        found = base.tokenizer([texts[i] for i in chosen], **options)
        inputs = {name: found[name] for name in ("input_ids", "attention_mask")}
        batch = base.prepare(**inputs)
        words = base.gate_head(base._encode(batch, [number]), batch, [number], base._embed)
        yield chosen, inputs, batch, words


Scorer = Callable[[dict[str, Tensor], TokenBatch, WordGates], Tensor]  # (batch, slots) scores of words


@torch.no_grad()
def measure(
    model: HardKumaForSequenceClassification, head: torch.nn.Linear, texts: list[str], score: Scorer | None = None
) -> Found:
    """Logits by a head over the words that score highest (by default, those of largest gates)."""
    base, selector = model.hardkuma, model.config.selector(model.config.find_selector(default=TASK))
    found = Found(*(torch.zeros(len(texts), *shape, head.out_features) for shape in ((), (len(RATES),), (len(RATES),))))
    for chosen, inputs, batch, words in batches(model, texts):
        probs = words.probabilities(model.config.gate_threshold)
        if score is not None:
            probs = score(inputs, batch, words)[:, None]
            probs = probs.argsort(-1).argsort(-1) / probs.shape[-1]  # the order alone, in [0, 1)
        kept = [
            words.spread(words.decide(probs, [selector], model.config.decision_threshold, rate))[:, 0] for rate in RATES
        ]
        alone = torch.stack(kept, dim=1)
        every = torch.cat([torch.ones_like(alone[:, :1]), alone, 1 - alone], dim=1)
        logits = head(base.encode_subsets(**inputs, kept=every))
        found.whole[chosen], found.alone[chosen] = logits[:, 0], logits[:, 1 : len(RATES) + 1]
        found.rest[chosen] = logits[:, len(RATES) + 1 :]
    return found


# ---- explanations of a plain head ----------------------------------------------------------------------------------------


def explainers(model: HardKumaForSequenceClassification, head: torch.nn.Linear) -> dict[str, Scorer]:
    """Scores of words for the class that the head predicts, by name."""
    base, generator = model.hardkuma, torch.Generator().manual_seed(0)

    def random_words(inputs: dict[str, Tensor], batch: TokenBatch, words: WordGates) -> Tensor:
        return torch.rand(words.content[:, 0].shape, generator=generator)

    def games(
        inputs: dict[str, Tensor], words: WordGates
    ) -> Iterator[tuple[int, Tensor, Callable[[np.ndarray], np.ndarray]]]:
        """Of each text: its row, the slots of its words, and coalitions (n, words) -> log-odds of the class (n,)."""
        for row in range(len(words.content)):
            one = {name: value[row : row + 1] for name, value in inputs.items()}
            slots, index = words.written[row, 0].nonzero().flatten(), words.index[row, 0]
            fixed = ~torch.isin(index, slots)  # punctuation stays
            predicted = head(base.encode_subsets(**one, kept=torch.ones_like(index).float()[None, None])).argmax(-1)

            def game(coalitions: np.ndarray, one: Any = one, slots: Any = slots, index: Any = index) -> np.ndarray:
                members = torch.zeros(len(coalitions), int(index.max()) + 1)
                members[:, slots] = torch.from_numpy(coalitions).float()
                kept = members[:, index] + fixed.float()  # noqa: B023 # called before the next row
                logits = head(base.encode_subsets(**one, kept=kept[None].clamp_max(1)))
                return own_log_odds(logits, predicted)[0].double().numpy()  # noqa: B023

            yield row, slots, game

    def leave_one_out(inputs: dict[str, Tensor], batch: TokenBatch, words: WordGates) -> Tensor:
        scores = torch.zeros(words.content[:, 0].shape)
        for row, slots, game in games(inputs, words):
            values = game(np.concatenate([np.ones((1, len(slots))), 1 - np.eye(len(slots))]))
            scores[row, slots] = torch.from_numpy(values[0] - values[1:]).float()
        return scores

    def shap(inputs: dict[str, Tensor], batch: TokenBatch, words: WordGates) -> Tensor:
        scores = torch.zeros(words.content[:, 0].shape)
        for row, slots, game in games(inputs, words):
            scores[row, slots] = torch.from_numpy(shapley_values(game, len(slots))).float()
        return scores

    def integrated_gradients(inputs: dict[str, Tensor], batch: TokenBatch, words: WordGates) -> Tensor:
        mask, special = batch.mask.long(), (~batch.content).long()
        embeddings = base._embed(inputs["input_ids"])
        padding = base._embed(torch.full_like(inputs["input_ids"], base.tokenizer.pad_token_id))
        baseline = torch.where(batch.content[..., None], padding, embeddings)

        def logits(x: Tensor, mask: Tensor, special: Tensor) -> Tensor:
            prepared = base.prepare(attention_mask=mask, inputs_embeds=x, special_tokens_mask=special)
            return head(base.embed_pooled(base.encode_batch(prepared).pooled)[:, 0])

        predicted = logits(embeddings, mask, special).argmax(-1)

        def log_odds(x: Tensor, mask: Tensor, special: Tensor, predicted: Tensor) -> Tensor:
            return own_log_odds(logits(x, mask, special), predicted)

        with torch.enable_grad():
            values = IntegratedGradients(log_odds).attribute(
                embeddings,
                baseline,
                additional_forward_args=(mask, special, predicted),
                n_steps=STEPS,
                internal_batch_size=64,
            )
        tokens = values.detach().sum(-1) * batch.content
        return torch.zeros(words.content[:, 0].shape).scatter_add(1, words.index[:, 0], tokens.float())

    return {
        "random words": random_words,
        "leave-one-out": leave_one_out,
        "integrated gradients": integrated_gradients,
        "SHAP": shap,
    }


@torch.no_grad()
def embed(model: HardKumaForSequenceClassification, texts: list[str]) -> Tensor:
    """(texts, dim) of whole texts."""
    result = torch.zeros(len(texts), model.config.projection_dim)
    for chosen, inputs, _, _ in batches(model, texts):
        result[chosen] = model.hardkuma.encode_subsets(**inputs, kept=torch.ones_like(inputs["input_ids"])[:, None])[:, 0]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--rows", nargs="+", default=["gates", "plain"], choices=[*ROWS, "plain"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", type=int, default=2000, help="training texts (default: %(default)s)")
    parser.add_argument("--tested", type=int, default=500, help="test texts at most (default: %(default)s)")
    parser.add_argument("--explained", type=int, default=200, help="texts of `plain` at most (default: %(default)s)")
    parser.add_argument("--dev", action="store_true", help="SST's development part instead of the test part")
    parser.add_argument("--output", type=Path, help="JSON file of all rows")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in arguments.sets:
        for seed in arguments.seeds:
            parts = read_parts(arguments.data / "transfer", name, seed, arguments.texts, arguments.dev)
            for result in measure_set(arguments, name, seed, *parts):
                results.append({"set": name, "seed": seed, **result})
                print(json.dumps(results[-1]), flush=True)
                if arguments.output is not None:
                    write_atomically(arguments.output, json.dumps(results, indent=1))
    print_table(results)


def measure_set(
    arguments: argparse.Namespace, name: str, seed: int, training: Labelled, held: Labelled
) -> Iterator[dict[str, Any]]:
    """The rows of one data set and seed."""
    chosen = np.random.default_rng(0).permutation(len(held[0]))[: arguments.tested]
    texts = [" ".join(held[0][i].split()) for i in chosen]
    classes = sorted(set(training[1]))
    # A class that no training text has is never right.
    labels = torch.tensor([classes.index(held[1][i]) if held[1][i] in classes else -1 for i in chosen])
    model: HardKumaForSequenceClassification | None = None
    with tempfile.TemporaryDirectory() as folder:
        for row in arguments.rows:
            if row == "plain":
                continue
            started = time.time()
            model = fit_row(row, training, seed, Path(folder))
            seconds = round(time.time() - started)
            found = measure(model, model.classifier, texts).row(labels)
            yield {"row": row, "texts": len(texts), "seconds": seconds, **found}
    if "plain" not in arguments.rows:
        return
    if model is None:
        model = HardKumaForSequenceClassification.from_encoder(
            load_recipe("task").encoder, id2label=dict(enumerate(classes)), **load_recipe("task").config_settings()
        ).eval()
    head = torch.nn.Linear(model.config.projection_dim, len(classes))
    numbers = torch.tensor([classes.index(label) for label in training[1]])
    fit_classifier(head, [(embed(model, training[0]), numbers, 1.0)])
    few = texts[: arguments.explained]
    for row, score in explainers(model, head).items():
        started = time.time()
        found = measure(model, head, few, score).row(labels[: len(few)])
        found["all"] = float((head(embed(model, texts)).argmax(-1) == labels).double().mean())
        yield {"row": f"plain head, {row}", "texts": len(few), "seconds": round(time.time() - started), **found}


def print_table(results: list[dict[str, Any]]) -> None:
    """Means over seeds, with the standard deviation where there are several."""
    columns = [key for key in results[0] if key not in ("set", "seed", "row", "texts", "seconds")]
    print(f"| set | words by | {' | '.join(columns)} |\n|---|---|{'---:|' * len(columns)}")
    for key in dict.fromkeys((result["set"], result["row"]) for result in results):
        rows = [result for result in results if (result["set"], result["row"]) == key]
        cells = []
        for column in columns:
            values = [row[column] for row in rows]
            spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.3f}{spread}")
        print(f"| {key[0]} | {key[1]} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
