"""Answers judged blind: two choices of words for the same texts, side by side.

    python benchmarks/answers.py answers old --model FOLDER --threshold 0.5   what a model marks, kept under this name
    python benchmarks/answers.py answers new
    python benchmarks/answers.py sheet 1                     what the first judge sees: both in random order, without names
    python benchmarks/answers.py table                       the verdicts
    python benchmarks/answers.py keep --data FOLDER          `keep=0.8` beside the shortest prefixes of SHAP's ranking

benchmarks/answers/ holds 100 texts of twenty kinds (texts.jsonl), written before the rule was chosen, the answers, and a
file of verdicts for each judge: {"id", "A", "B": "good", "acceptable" or "bad", "better": "A", "B" or "same"} a line. Which
side is which follows from the judge's number and the text's, so nobody needs to keep it.

keep: 100 sentences each of WNUT17 test and wikigold (FOLDER holds wnut17/ and wikigold/). For every sentence the words that
`keep=0.8` selects, encoded again apart from the model's own search, and the shortest prefix of SHAP's ranking with that
cosine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hardkuma import HardKumaModel, load_released
from hardkuma.common.files import write_atomically
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import METHODS
from hardkuma.evaluation.baselines.words import WordScores
from hardkuma.evaluation.corpora import read_corpus, texts_of
from hardkuma.evaluation.faithfulness import faithfulness

FOLDER = Path(__file__).with_name("answers")
GRADES = ("good", "acceptable", "bad")
KEPT_CORPORA = ("wnut17/test.conll", "wikigold/wikigold.conll")


def read(name: str) -> list[dict[str, Any]]:
    """The lines of a file of the folder."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """One JSON object a line."""
    write_atomically(FOLDER / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def marked(text: str, spans: list[list[int]]) -> str:
    """The text with its spans in double brackets."""
    for start, end in reversed(spans):
        text = f"{text[:start]}[[{text[start:end]}]]{text[end:]}"
    return text


def answer(name: str, model: HardKumaModel, threshold: float | None) -> None:
    """Keep what a model marks in every text."""
    texts = read("texts")
    records = model.gate_records([row["text"] for row in texts], threshold=threshold)
    spans = [[[span["start"], span["end"]] for span in record["spans"]] for record in records]
    write(name, [{"id": row["id"], "spans": found} for row, found in zip(texts, spans, strict=True)])


def sides(judge: int, number: int) -> tuple[str, str]:
    """Which answers are A and B of a text."""
    return ("old", "new") if random.Random(f"{judge}-{number}").random() < 0.5 else ("new", "old")


def sheet(judge: int) -> str:
    """All texts in this judge's order, each with both answers."""
    texts, answers = read("texts"), {name: {row["id"]: row["spans"] for row in read(name)} for name in ("old", "new")}
    random.Random(judge).shuffle(texts)
    parts = []
    for row in texts:
        shown = [marked(row["text"], answers[name][row["id"]]) for name in sides(judge, row["id"])]
        parts.append(f"## {row['id']} ({row['kind']})\nA: {shown[0]}\nB: {shown[1]}\n")
    return "\n".join(parts)


def table() -> str:
    """Grades of both, and which was preferred where they differ."""
    texts = read("texts")
    spans = {name: {row["id"]: row["spans"] for row in read(name)} for name in ("old", "new")}
    different = [row["id"] for row in texts if spans["old"][row["id"]] != spans["new"][row["id"]]]
    lines = [f"{len(different)} of {len(texts)} answers differ.", ""]
    lines += [
        "| judge | answers | good | acceptable | bad | preferred where they differ |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for path in sorted(FOLDER.glob("verdicts-*.jsonl")):
        judge, verdicts = int(path.stem.split("-")[1]), {row["id"]: row for row in read(path.stem)}
        if set(verdicts) != {row["id"] for row in texts}:
            raise ValueError(f"{path.name} must have every text once.")
        better = Counter()
        for number in different:
            choice = verdicts[number]["better"]
            better[choice if choice == "same" else sides(judge, number)["AB".index(choice)]] += 1
        for name in ("old", "new"):
            grades = Counter(row["AB"[sides(judge, number).index(name)]] for number, row in verdicts.items())
            cells = " | ".join(f"{grades[grade]}" for grade in GRADES)
            lines.append(f"| {judge} | {name} | {cells} | {better[name]} |")
    return "\n".join(lines)


def cosines(encoder: SentenceEncoder, text: str, words: list[tuple[int, int]], ranking: list[float]) -> np.ndarray:
    """(words,) what the first 1, 2, ... words of a ranking keep."""
    rates = [count / len(words) for count in range(1, len(words) + 1)]
    return faithfulness(encoder, [WordScores(text, words, ranking)], rates).sufficiency[0]


def passes_of(model: HardKumaModel) -> Counter[str]:
    """Counts from now on how often the model runs its encoder."""
    counter: Counter[str] = Counter()
    model.encoder.register_forward_hook(lambda *_: counter.update(["passes"]))
    return counter


def compare_kept(data: Path, keep: float, number: int) -> str:
    """Words that `keep` takes, and that prefixes of SHAP's ranking and of the gates' own need."""
    model = load_released()[0]
    encoder, passes = SentenceEncoder.from_model(model), passes_of(model)
    ours, shap, most, verified = [], [], 0, 0
    for path in KEPT_CORPORA:
        texts, _ = texts_of(read_corpus(data / path).sample(number, 0))
        for text, scores in zip(texts, METHODS["shap"].scores(encoder, texts, None), strict=True):
            passes.clear()
            record = model.gate_records([text], keep=keep)[0]
            most = max(most, passes["passes"])
            if not record["words"]:
                continue
            words = [(word["start"], word["end"]) for word in record["words"]]
            chosen = [float(word["selected"]) for word in record["words"]]
            ours.append(sum(map(int, chosen)))
            kept = cosines(encoder, text, words, chosen)[ours[-1] - 1]
            verified += bool(kept >= keep - 1e-4) or ours[-1] == len(words)
            enough = cosines(encoder, text, list(scores.words), list(scores.scores)) >= keep
            shap.append(int(enough.argmax()) + 1 if enough.any() else len(words))
    ratio = statistics.fmean(ours) / statistics.fmean(shap)
    return (
        f"{len(ours)} sentences, keep={keep:g}: {verified} verified apart, {statistics.fmean(ours):.2f} words on average; "
        f"shortest prefixes of SHAP's ranking {statistics.fmean(shap):.2f}; ratio {ratio:.3f}, mean of ratios "
        f"{statistics.fmean(a / b for a, b in zip(ours, shap, strict=True)):.3f}; at most {most} passes of the encoder"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    answers = commands.add_parser("answers")
    answers.add_argument("name", choices=["old", "new"])
    answers.add_argument("--model", type=Path)
    answers.add_argument("--threshold", type=float)
    commands.add_parser("sheet").add_argument("judge", type=int)
    commands.add_parser("table")
    kept = commands.add_parser("keep")
    kept.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    kept.add_argument("--keep", type=float, default=0.8)
    kept.add_argument("--sentences", type=int, default=100, help="of each corpus")
    options = parser.parse_args()
    if options.command == "answers":
        model = HardKumaModel.from_pretrained(options.model).eval() if options.model else load_released()[0]
        answer(options.name, model, options.threshold)
    elif options.command == "sheet":
        print(sheet(options.judge))
    elif options.command == "keep":
        print(compare_kept(options.data, options.keep, options.sentences))
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
