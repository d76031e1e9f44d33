"""Rationales of a task: how much of a class do the selected words hold, and how much is left without them?

    python benchmarks/task.py --data FOLDER                       FOLDER holds transfer/sst.train.tsv, sst.test.tsv, ...
    python benchmarks/task.py --data FOLDER --sets sst --seeds 0 --dev --explained 0       while choosing settings

With --texts every seed takes other training texts. Removed words are left out and the rest is encoded again. Rows:

    gates                recipe `task`: the gates choose words, the classifier that was trained with them decides. One pass
                         over the text, and they know neither the class nor what the classifier would say
    plain: gates         the same words, and a plain logistic head, which was trained on embeddings of whole texts, decides
    ..., first texts     both on the texts that are explained, of the first seed alone, as are all that follow
    plain: leave-one-out, integrated gradients, SHAP      explanations of what that head predicts for the text
    plain: random words  the floor

Columns:

    all                  accuracy with all words
    alone, rest          accuracy with the selected words alone, at each rate, and with all others
    sufficiency, comprehensiveness      p(c | text) - p(c | selected) and p(c | text) - p(c | rest) with c the class that is
                         predicted for the text (ERASER), means over texts; the first should be low, the second high
    passes               of the encoder a text, forward and backward, to score its words

The table has means over seeds ± half of the 95% interval over texts (1,000 draws), and what share of the accuracy with all
words the selected words keep. --output has every text's values of every seed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardkuma import HardKumaForSequenceClassification
from hardkuma.common.files import write_atomically
from hardkuma.configuration_hardkuma import TASK
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, WordScores
from hardkuma.evaluation.faithfulness import Faithfulness, faithfulness
from hardkuma.evaluation.statistics import bootstrap
from hardkuma.train import train
from hardkuma.training.objectives.task import choose_decay, fit_classifier, own_log_odds
from hardkuma.training.recipe import load_recipe

SETS = ("sst", "subj", "trec")
RATES = (0.1, 0.2, 0.3)
EXPLANATIONS = {
    "random": "random words",
    "loo_word": "leave-one-out",
    "integrated_gradients": "integrated gradients",
    "shap": "SHAP",
}
HELD_OUT = 1000  # training texts that --dev tests on, where there is no development part
Labelled = tuple[list[str], list[str]]  # texts, classes


def read_labelled(path: Path, rows: np.ndarray | None = None) -> Labelled:
    """Texts and classes of a file with rows of class and text; of these rows alone."""
    lines = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").split("\n")]
    lines = [line for line in lines if len(line) == 2 and line[0].isdigit()]  # SUBJ has 20 broken ones
    chosen = [lines[row] for row in (range(len(lines)) if rows is None else rows)]
    return [" ".join(text.split()) for _, text in chosen], [label for label, _ in chosen]


def read_parts(folder: Path, name: str, seed: int, number: int | None, dev: bool) -> tuple[Labelled, Labelled]:
    """Training texts, a random `number` or all, and texts to test on. SUBJ has no test part: it is a random fifth."""
    path = folder / ("subj.tsv" if name == "subj" else f"{name}.train.tsv")
    rows = np.random.default_rng(0).permutation(len(read_labelled(path)[0]))
    held_out = rows[: len(rows) // 5] if name == "subj" else rows[:0]
    rows = rows[len(held_out) :]
    if dev and name != "sst":
        held_out, rows = rows[:HELD_OUT], rows[HELD_OUT:]
    training = read_labelled(path, np.random.default_rng(seed).permutation(rows)[:number])
    if not len(held_out):
        path = folder / f"{name}.{'dev' if dev else 'test'}.tsv"
        held_out = np.random.default_rng(0).permutation(len(read_labelled(path)[0]))
    return training, read_labelled(path, held_out)


def train_classifier(texts: Labelled, seed: int, changes: dict[str, Any]) -> HardKumaForSequenceClassification:
    """What the recipe `task` makes of these texts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": t, "label": c}) + "\n" for t, c in zip(*texts, strict=True)))
        own = {"data": [str(path)], "seed": seed, "held_out": 1, "output": f"{folder}/run"}
        run = train(load_recipe("task", {**own, **changes}))
    assert run is not None and isinstance(run.result, HardKumaForSequenceClassification)
    return run.result.eval()


@torch.no_grad()
def measure(found: Faithfulness, head: torch.nn.Linear, labels: Tensor) -> dict[str, Any]:
    """The columns of a row, (texts, rates) or (texts, 1) each. `labels` are of the first texts."""
    number = len(labels)
    whole, alone, rest = (head(vectors[:number]) for vectors in (found.anchors, found.rationales, found.complements))
    predicted = whole.argmax(-1)
    before = whole.softmax(-1).gather(-1, predicted[:, None])  # (texts, 1)

    def right(logits: Tensor) -> list[list[float]]:
        return (logits.argmax(-1) == labels[:, None]).double().tolist()

    def fall(logits: Tensor) -> list[list[float]]:
        after = logits.softmax(-1).gather(-1, predicted[:, None, None].expand(-1, len(RATES), 1))[..., 0]
        return (before - after).double().tolist()

    columns = {"all": right(whole[:, None]), "alone": right(alone), "rest": right(rest)}
    return {**columns, "sufficiency": fall(alone), "comprehensiveness": fall(rest)}


def measure_set(arguments: argparse.Namespace, name: str, seed: int) -> Iterator[dict[str, Any]]:
    """The rows of one data set and seed."""
    training, test = read_parts(arguments.data / "transfer", name, seed, arguments.texts, arguments.dev)
    texts, classes = test[0][: arguments.tested], sorted(set(training[1]))
    # A class that no training text has is never right.
    labels = torch.tensor([classes.index(c) if c in classes else -1 for c in test[1][: arguments.tested]])
    model = train_classifier(training, seed, {key: json.loads(value) for key, value in arguments.set})
    encoder = SentenceEncoder.from_model(model.hardkuma)
    plain = torch.nn.Linear(model.classifier.in_features, len(classes))
    numbers = torch.tensor([classes.index(c) for c in training[1]])
    whole = encoder.encode(training[0])
    fit_classifier(plain.requires_grad_(False), [(whole, numbers, 1.0)], choose_decay(whole, numbers))

    def of_prediction(vectors: Tensor, whole: Tensor) -> Tensor:
        return own_log_odds(plain(vectors), plain(whole).argmax(-1))

    def score(method: str, number: int, **options: Any) -> tuple[list[WordScores], float]:
        with encoder.counting() as used:
            scores = METHODS[method].scores(encoder, texts[:number], **options)
        return scores, (used.forward + used.backward) / number

    scores, passes = score("gates", len(texts), default=TASK)
    found = faithfulness(encoder, scores, RATES)
    yield {"row": "gates", **measure(found, model.classifier, labels), "passes": passes}
    yield {"row": "plain: gates", **measure(found, plain, labels), "passes": passes}
    if not arguments.explained or seed != arguments.seeds[0]:
        return
    few = labels[: arguments.explained]
    yield {"row": "gates, first texts", **measure(found, model.classifier, few), "passes": passes}
    yield {"row": "plain: gates, first texts", **measure(found, plain, few), "passes": passes}
    for method, title in EXPLANATIONS.items():
        scores, passes = score(method, len(few), **({"seed": seed} if method == "random" else {"value": of_prediction}))
        yield {"row": f"plain: {title}", **measure(faithfulness(encoder, scores, RATES), plain, few), "passes": passes}


def with_interval(values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> str:
    """Of values (texts, columns), averaged over seeds: the statistic of weighted means, each ± half of its 95% interval."""

    def named(weights: np.ndarray) -> dict[str, float]:
        return {str(i): float(value) for i, value in enumerate(statistic(weights @ values / weights.sum()))}

    found = bootstrap(named, len(values)).values()
    return " / ".join(f"{item.value:.3f} ± {(item.high - item.low) / 2:.3f}".replace("0.", ".") for item in found)


def print_table(results: list[dict[str, Any]]) -> None:
    """A line for each set and row; a column that has a number for each rate shows all three."""
    columns = ("all", "alone", "rest", "sufficiency", "comprehensiveness")
    print(f"| set | decides: words by | {' | '.join(columns)} | alone of all | passes |\n|---|---|{'---:|' * 7}")
    for key in dict.fromkeys((result["set"], result["row"]) for result in results):
        rows = [result for result in results if (result["set"], result["row"]) == key]
        values = {column: np.mean([row[column] for row in rows], 0) for column in columns}
        cells = [with_interval(values[column], lambda means: means) for column in columns]
        both = np.concatenate([values["all"], values["alone"]], 1)
        cells.append(with_interval(both, lambda means: means[1:] / means[0]))
        cells.append(f"{rows[0]['passes']:.0f}")
        title = f"{key[0]} (n {len(both)}, seeds {', '.join(str(row['seed']) for row in rows)})"
        print(f"| {title} | {key[1]} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", type=int, help="training texts at most (default: all)")
    parser.add_argument("--tested", type=int, help="test texts at most (default: all)")
    parser.add_argument("--explained", type=int, default=300, help="of them with explanations (default: %(default)s)")
    parser.add_argument("--dev", action="store_true", help="SST's development part, or a part of the training texts")
    parser.add_argument("--set", nargs=2, action="append", default=[], metavar=("KEY", "JSON"), help="change the recipe")
    parser.add_argument("--output", type=Path, help="JSON file of all rows")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in arguments.sets:
        for seed in arguments.seeds:
            for result in measure_set(arguments, name, seed):
                results.append({"set": name, "seed": seed, **result})
                means = {
                    key: np.mean(value, 0).round(3).tolist() for key, value in result.items() if isinstance(value, list)
                }
                print(f"{name}, seed {seed}, {result['row']}: {means}", flush=True)
                if arguments.output is not None:
                    write_atomically(arguments.output, json.dumps(results))
    print_table(results)


if __name__ == "__main__":
    main()
