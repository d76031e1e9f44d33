"""What makes two texts similar: does `explain_pair` say no where it should, how faithful are its words, how fast is it?

    python benchmarks/pairs.py --data DATA                    STS-B test and WikiText-2 test; some minutes on a core
    python benchmarks/pairs.py --data DATA --pairs 20 --long 3

DATA holds stsb/sts-test.csv and wikitext2/test.txt. Explained: the share of random pairs (each sentence with one of another
pair) and of pairs scored 4 or more. Faithful: how far the cosine falls without as many words of one side (mean of both) as
`explain_pair` names, chosen by it, by removing each word in turn (leave-one-out), and KeyBERT's way (cosine of the word
alone with the other text); with 95% bootstrap intervals of the paired differences. Time: leave-one-out with the same check,
as `explain_pair` of 0.1 did it, against `explain_pair`, on two texts of 100 words, one after the other, medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from hardkuma import HardKumaModel, load_released
from hardkuma.apps.pairs import embed_anchors, explain_pair, remove_words
from hardkuma.evaluation.encoder_tasks import STS_FILES, read_scored_pairs
from hardkuma.evaluation.statistics import bootstrap

# Random removals of the check in 0.1, each on both sides, beside four more encodings of each side: three removals, and the
# words alone, for which a fourth removal stands here.
EARLIER_DRAWS = 10


def read_halves(path: Path, number: int, words: int = 100) -> list[tuple[str, str]]:
    """Two pieces of one paragraph each: long texts that have something in common."""
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".").replace("<unk>", "it").split()
        if len(text) >= 2 * words and not line.startswith(" ="):
            pairs.append((" ".join(text[:words]), " ".join(text[words : 2 * words])))
    return pairs[:number]


def spans(side: dict, indices: list[int]) -> list[tuple[int, int]]:
    return [(side["words"][i]["start"], side["words"][i]["end"]) for i in sorted(indices)]


def leave_one_out(model: HardKumaModel, texts: list[str], sides: list[dict]) -> tuple[torch.Tensor, list[list[float]]]:
    """The anchors of both texts, and how far the cosine falls without each word, one encoding each."""
    variants = [
        text if i is None else remove_words(text, spans(side, [i]))
        for text, side in zip(texts, sides, strict=True)
        for i in (None, *range(len(side["words"])))
    ]
    parts = embed_anchors(model, variants).split([len(side["words"]) + 1 for side in sides])
    whole = torch.stack([part[0] for part in parts])
    similarity = whole[0] @ whole[1]
    return whole, [(similarity - part[1:] @ whole[1 - k]).tolist() for k, part in enumerate(parts)]


def falls(model: HardKumaModel, a: str, b: str) -> dict[str, float] | None:
    """How far the cosine falls without each method's words, as many as `explain_pair` names; None where it names none."""
    pair = explain_pair(model, a, b)
    sides, texts = [pair["a"], pair["b"]], [a, b]
    ours = [[i for i, word in enumerate(side["words"]) if word["carries"]] for side in sides]
    if not all(ours):
        return None
    whole, single = leave_one_out(model, texts, sides)
    chosen = {"explain_pair": ours}
    chosen["leave-one-out"] = [best(row, len(own)) for row, own in zip(single, ours, strict=True)]
    alone = [embed_anchors(model, [word["word"] for word in side["words"]]) @ whole[1 - k] for k, side in enumerate(sides)]
    chosen["KeyBERT's way"] = [best(row.tolist(), len(own)) for row, own in zip(alone, ours, strict=True)]
    left = [remove_words(texts[k], spans(sides[k], rows[k])) for rows in chosen.values() for k in (0, 1)]
    cosines = (embed_anchors(model, left).unflatten(0, (-1, 2)) * whole.flip(0)).sum(-1).mean(-1).tolist()
    return {name: float(whole[0] @ whole[1]) - value for name, value in zip(chosen, cosines, strict=True)}


def best(scores: list[float], number: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:number]


def earlier(model: HardKumaModel, a: str, b: str) -> None:
    """The work of `explain_pair` in 0.1: gates, an encoding for each word, and the check."""
    sides = model.gate_records([a, b], rate=0.2)
    _, single = leave_one_out(model, [a, b], sides)
    dice = random.Random(0)
    removals = [[best(row, len(row) // 5) for row in single] for _ in range(4)]
    removals += [[dice.sample(range(len(row)), len(row) // 5) for row in single] for _ in range(EARLIER_DRAWS)]
    embed_anchors(
        model, [remove_words(t, spans(s, r)) for rows in removals for t, s, r in zip((a, b), sides, rows, strict=True)]
    )


def report_falls(name: str, rows: list[dict[str, float]], number: int) -> None:
    print(f"\n{name}: {len(rows)} of {number} pairs have carrying words on both sides; fall of the cosine without them")
    for method in rows[0]:
        print(f"  {method:16} {statistics.fmean(row[method] for row in rows):.4f}", end="")
        if method != "explain_pair":
            gains = np.array([row["explain_pair"] - row[method] for row in rows])
            gain = bootstrap(lambda w, gains=gains: {"gain": float(w @ gains / w.sum())}, len(gains))["gain"]
            print(f"  explain_pair minus this {gain.value:+.4f} ({gain.low:+.4f} to {gain.high:+.4f})", end="")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=200, help="of each kind (default: %(default)s)")
    parser.add_argument("--long", type=int, default=20, help="pairs of 100 words (default: %(default)s)")
    parser.add_argument(
        "--part", default="test", help="test, or dev for STS-B and valid for WikiText-2 (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, _ = load_released()
    dice = random.Random(0)
    read = read_scored_pairs(options.data / "stsb" / f"sts-{options.part}.csv", STS_FILES["STS-B"][1])
    rows = list(zip(read.scores, read.first, read.second, strict=True))
    order = dice.sample(range(len(rows)), options.pairs)
    unrelated = [(rows[i][1], rows[j][2]) for i, j in zip(order, order[1:] + order[:1], strict=True)]
    similar = dice.sample([row[1:] for row in rows if row[0] >= 4], options.pairs)
    for name, pairs in (("random pairs", unrelated), ("pairs scored 4 or more", similar)):
        answers = [explain_pair(model, *pair) for pair in pairs]
        share = sum(answer["explained"] for answer in answers) / len(answers)
        refused = sum(answer["similarity"] <= answer["chance"] for answer in answers)
        print(f"explained, of {len(pairs)} {name}: {share:.1%} ({refused} at or below chance, {answers[0]['chance']:.3f})")
    measured = [falls(model, *pair) for pair in similar]
    report_falls("short", [row for row in measured if row], len(measured))
    halves = read_halves(options.data / "wikitext2" / f"{'valid' if options.part == 'dev' else 'test'}.txt", options.long)
    measured = [falls(model, *pair) for pair in halves]
    report_falls("2 x 100 words", [row for row in measured if row], len(measured))
    times: dict[str, list[float]] = {"0.1": [], "now": []}
    for a, b in halves[:5]:
        for name, work in (("0.1", earlier), ("now", explain_pair)):
            started = time.perf_counter()
            work(model, a, b)
            times[name].append(time.perf_counter() - started)
    old, new = (statistics.median(times[name]) for name in ("0.1", "now"))
    print(f"\n2 x 100 words, one thread: {old:.2f} s as in 0.1, {new:.2f} s now: {old / new:.1f} times as fast")


if __name__ == "__main__":
    main()
