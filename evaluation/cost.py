"""Cost: seconds and forward passes per sentence of each method next to the encoder alone, and growth with length.

python -m hardkuma.evaluation.cost --output runs/cost --model CHECKPOINT
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..common.files import write_atomically
from ..common.packages import versions
from ..common.text import MINILM
from .baselines.encoder import SentenceEncoder, tracker
from .baselines.registry import METHODS, Method, find_method
from .plots import line_plot, style_of
from .table import milliseconds

LENGTHS = (8, 16, 32, 64, 128, 256)
# Plain words, one token each in most English vocabularies; sentences of any length are made of them.
WORDS = (
    "the river runs past an old stone bridge and a small school where children read books about music and science "
    "while their teacher writes letters to friends in the city who plan a long journey by train through green valleys"
)


@dataclass
class Cost:
    """What one method costs at one length.

    Attributes:
        tokens: per sentence, special ones included.
        seconds: per sentence, the median over repeats.
        forward, backward: passes per sentence.
        relative: seconds over the encoder's alone at the same length.
    """

    method: str
    title: str
    tokens: int
    seconds: float
    forward: float
    backward: float
    relative: float


def sentence_of(encoder: SentenceEncoder, tokens: int, start: int = 0) -> str:
    """A sentence of exactly that many tokens (special ones included), beginning at the `start`-th word of a list.

    >>> from hardkuma.evaluation.baselines.toy import toy_transformer
    >>> len(toy_transformer(WORDS.split()).tokenize([sentence_of(toy_transformer(WORDS.split()), 8)])[0])
    8
    """
    words = WORDS.split()
    text = ""
    for i in range(4 * tokens):
        longer = f"{text} {words[(start + i) % len(words)]}".strip()
        length = len(encoder.tokenize([longer])[0])
        if length <= tokens:
            text = longer
        if length >= tokens:
            break
    if len(encoder.tokenize([text])[0]) != tokens:
        raise ValueError(
            f"no sentence of exactly {tokens} tokens can be made for this encoder (it takes at most {encoder.max_length}); "
            "choose other lengths."
        )
    return text


def measure_cost(
    encoder: SentenceEncoder,
    methods: Sequence[str] | None = None,
    lengths: Sequence[int] = LENGTHS,
    sentences: int = 4,
    repeats: int = 3,
    budget: float = 60.0,
    progress: bool = False,
) -> list[Cost]:
    """Time every method on the same sentences, the encoder first.

    Args:
        methods: names from `METHODS`; all that are installed (gates if the encoder has a model) by default.
        lengths: tokens per sentence.
        sentences: different sentences per length, in one call.
        repeats: the median of so many calls, fewer where one call takes long.
        budget: seconds per method; longer lengths are left out once they are used up.

    >>> from hardkuma.evaluation.baselines.toy import toy_transformer
    >>> rows = measure_cost(toy_transformer(WORDS.split()), ["loo"], [8, 16], sentences=1, repeats=1)
    >>> [(row.method, row.tokens, row.forward) for row in rows]
    [('encoder', 8, 1.0), ('encoder', 16, 1.0), ('loo', 8, 7.0), ('loo', 16, 15.0)]
    """
    chosen = [METHODS[name] for name in METHODS] if methods is None else [find_method(name) for name in methods]
    if methods is None:
        chosen = [m for m in chosen if not m.missing and (m.kind != "gates" or encoder.model is not None)]
    texts = {length: [sentence_of(encoder, length, 7 * i) for i in range(sentences)] for length in lengths}
    bare = Method("encoder", "the encoder alone", "", "1", kind="encoder")
    rows: list[Cost] = []
    alone: dict[int, float] = {}
    with tracker(1 + len(chosen), progress, "cost") as bar:
        for method in [bare, *chosen]:
            spent = 0.0
            _run(encoder, method, texts[lengths[0]])  # imports and caches are not cost
            for length in lengths:
                if spent > budget:
                    break
                seconds, forward, backward = _time(encoder, method, texts[length], repeats, budget - spent)
                spent += seconds * repeats * sentences
                alone.setdefault(length, seconds)
                relative = seconds / alone[length]
                rows.append(Cost(method.name, method.title, length, seconds, forward, backward, relative))
            bar.update(1)
    return rows


def _run(encoder: SentenceEncoder, method: Method, texts: list[str]) -> None:
    if method.kind == "encoder":
        encoder.encode(texts)
    else:
        method.scores(encoder, texts)


def _time(
    encoder: SentenceEncoder, method: Method, texts: list[str], repeats: int, left: float
) -> tuple[float, float, float]:
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        with encoder.counting() as used:
            _run(encoder, method, texts)
        times.append(time.perf_counter() - start)
        if sum(times) > left:
            break
    middle = sorted(times)[len(times) // 2]
    return middle / len(texts), used.forward / len(texts), used.backward / len(texts)


def growth(rows: Sequence[Cost], method: str) -> float:
    """Exponent b of seconds ~ tokens^b from the longest two lengths (1 = linear); NaN with fewer than two.

    >>> growth([Cost("m", "m", 64, 1.0, 1, 0, 1), Cost("m", "m", 128, 4.0, 1, 0, 1)], "m")
    2.0
    """
    longest = sorted((row.tokens, row.seconds) for row in rows if row.method == method)[-2:]
    if len(longest) < 2 or min(seconds for _, seconds in longest) <= 0:
        return float("nan")
    (short, low), (long, high) = longest
    return math.log(high / low) / math.log(long / short)


def cost_table(rows: Sequence[Cost]) -> str:
    """A Markdown table: milliseconds per sentence by length, passes and time relative to the encoder at the longest."""
    lengths = sorted({row.tokens for row in rows})
    head = " | ".join(f"{length} tokens" for length in lengths)
    lines = [f"| method | {head} | passes | times the encoder | growth |", "|---|" + "---:|" * (len(lengths) + 3)]
    for name in dict.fromkeys(row.method for row in rows):
        by_length = {row.tokens: row for row in rows if row.method == name}
        last = by_length[max(by_length)]
        cells = [milliseconds(by_length[length].seconds) if length in by_length else "" for length in lengths]
        rate = growth(rows, name)
        power = "" if math.isnan(rate) else f"{rate:.2f}"
        passes = f"{last.forward:.0f}" + (f" + {last.backward:.0f} back" if last.backward else "")
        lines.append(f"| {last.title} | {' | '.join(cells)} | {passes} | {last.relative:.3g} | {power} |")
    note = "Milliseconds per sentence. Passes, times and growth (exponent of the length) at the longest length measured."
    return "\n".join([*lines, "", note, ""])


def cost_plot(rows: Sequence[Cost]) -> str:
    """Seconds per sentence over tokens, both logarithmic, as SVG."""
    names = list(dict.fromkeys(row.method for row in rows))
    lines = []
    for number, name in enumerate(names):
        of_method = [row for row in rows if row.method == name]
        style = {**style_of(number, name in ("encoder", "gates")), "label": of_method[0].title}
        lines.append(([row.tokens for row in of_method], [max(row.seconds, 1e-7) for row in of_method], style))
    return line_plot(lines, "tokens", "seconds per sentence", "cost by length", log=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure from the command line; writes cost.json, cost.md and cost.svg."""
    parser = argparse.ArgumentParser(prog="python -m hardkuma.evaluation.cost", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MINILM, help="HardKuma checkpoint or encoder")
    parser.add_argument("--output", default="runs/cost", help="folder for results (default: %(default)s)")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--sentences", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    encoder = SentenceEncoder.load(options.model)
    rows = measure_cost(
        encoder, options.methods, options.lengths, options.sentences, options.repeats, progress=not options.quiet
    )
    folder, table = Path(options.output), cost_table(rows)
    values = {"versions": versions(), "rows": [asdict(row) for row in rows]}
    write_atomically(folder / "cost.json", json.dumps(values, indent=1))
    write_atomically(folder / "cost.md", table)
    write_atomically(folder / "cost.svg", cost_plot(rows))
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
