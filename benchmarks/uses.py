"""What gates are good for beside showing words: words that make two texts similar. (Key phrases: `hardkuma benchmark`.)

    python benchmarks/uses.py pairs --data FOLDER                   some minutes on a core
    python benchmarks/uses.py pairs --data FOLDER --pairs 20 --long 3

No text here is one that recipes/released.yaml trains on: FOLDER holds stsb/sts-test.csv and keyphrases/semeval2017.jsonl
(a paragraph of a scientific article a line, with the key phrases that people marked). Intervals are 95%, by bootstrap.

- pairs: the share of random pairs and of pairs scored 4 or more that `explain_pair` explains. Then how far the cosine falls
  without as many words of one side (mean of both) as it names, chosen by it, by removing each word in turn (leave-one-out),
  and KeyBERT's way (cosine of the word alone with the other text): on similar pairs, and on both halves of long paragraphs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardkuma import explain_pair, load_released
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.encoder_tasks import STS_FILES, read_scored_pairs
from hardkuma.evaluation.statistics import Interval, bootstrap

HALF = 75  # words of each half of a long paragraph
MARKED = "keyphrases/semeval2017.jsonl"


def read_documents(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def mean(values: list[float] | np.ndarray) -> Interval:
    rows = np.array(values, dtype=float)
    return bootstrap(lambda weights: {"mean": float(weights @ rows / weights.sum())}, len(rows))["mean"]


# ---- pairs --------------------------------------------------------------------------------------------------------------


def without(text: str, words: list[dict[str, Any]]) -> str:
    """The text without these words, by their offsets."""
    for word in sorted(words, key=lambda word: -word["start"]):
        text = text[: word["start"]] + text[word["end"] :]
    return " ".join(text.split())


def best(scores: torch.Tensor, words: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    return [words[i] for i in scores.argsort(descending=True)[:number].tolist()]


def falls(encoder: SentenceEncoder, answer: dict[str, Any], texts: tuple[str, str]) -> dict[str, float] | None:
    """How far the cosine falls without each method's words; None where no word of a side is named."""
    sides = [answer["a"]["words"], answer["b"]["words"]]
    ours = [[word for word in words if word["carries"]] for words in sides]
    if not all(ours):
        return None
    whole = encoder.encode(list(texts))
    similarity = whole[0] @ whole[1]
    chosen: dict[str, list[list[dict[str, Any]]]] = {"explain_pair": ours, "leave-one-out": [], "KeyBERT's way": []}
    for k, (text, words) in enumerate(zip(texts, sides, strict=True)):
        rest = encoder.encode([without(text, [word]) for word in words])
        alone = encoder.encode([word["word"] for word in words])
        chosen["leave-one-out"].append(best(similarity - rest @ whole[1 - k], words, len(ours[k])))
        chosen["KeyBERT's way"].append(best(alone @ whole[1 - k], words, len(ours[k])))
    left = encoder.encode([without(texts[k], rows[k]) for rows in chosen.values() for k in (0, 1)]).unflatten(0, (-1, 2))
    cosines = (left * whole.flip(0)).sum(-1).mean(-1)
    return {name: float(similarity - cosine) for name, cosine in zip(chosen, cosines, strict=True)}


def report_falls(name: str, rows: list[dict[str, float] | None]) -> None:
    found = [row for row in rows if row is not None]
    print(f"\n{name}: {len(found)} of {len(rows)} pairs have carrying words on both sides; fall of the cosine without them")
    for method in found[0] if found else []:
        gain = mean([row["explain_pair"] - row[method] for row in found])
        print(f"  {method:16} {statistics.fmean(row[method] for row in found):.4f}", end="")
        print(f"  explain_pair minus this {gain.value:+.4f} ({gain.low:+.4f} to {gain.high:+.4f})", flush=True)


def measure_pairs(options: argparse.Namespace) -> None:
    model = load_released()[0]
    encoder, dice = SentenceEncoder.from_model(model), random.Random(0)
    read = read_scored_pairs(options.data / "stsb" / f"sts-{options.part}.csv", STS_FILES["STS-B"][1])
    rows = list(zip(read.scores, read.first, read.second, strict=True))
    order = dice.sample(range(len(rows)), options.pairs)
    unrelated = [(rows[i][1], rows[j][2]) for i, j in zip(order, order[1:] + order[:1], strict=True)]
    alike = [row[1:] for row in rows if row[0] >= 4]
    similar = dice.sample(alike, min(options.pairs, len(alike)))
    paragraphs = [item["text"].split() for item in read_documents(options.data / MARKED)]
    halves = [(" ".join(t[:HALF]), " ".join(t[HALF : 2 * HALF])) for t in paragraphs if len(t) >= 2 * HALF]
    for name, pairs in (("random pairs", unrelated), ("pairs scored 4 or more", similar)):
        answers = [explain_pair(model, *pair) for pair in pairs]
        explained = sum(answer["explained"] for answer in answers)
        print(f"explained, of {len(pairs)} {name}: {explained / len(pairs):.1%} (chance {answers[0]['chance']:.3f})")
    report_falls("short", [falls(encoder, *row) for row in zip(answers, similar, strict=True)])
    long = halves[: options.long]
    report_falls(f"2 x {HALF} words", [falls(encoder, explain_pair(model, *pair), pair) for pair in long])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    pairs = parts.add_parser("pairs")
    pairs.set_defaults(run=measure_pairs)
    pairs.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    pairs.add_argument("--pairs", type=int, default=200, help="random ones, and similar ones (default: %(default)s)")
    pairs.add_argument("--long", type=int, default=50, help=f"pairs of {HALF} words (default: %(default)s)")
    pairs.add_argument("--part", default="test", choices=("dev", "test"), help="of STS-B (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
