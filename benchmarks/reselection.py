"""How long another rate takes for a text that is encoded already: `ScoredText.select` on a text of 256 tokens.

    python benchmarks/reselection.py

The first line is the encoding itself, for comparison.
"""

from __future__ import annotations

import argparse
import statistics
import time

from hardkuma import load_released
from hardkuma.data import bundled_texts
from hardkuma.scoring_hardkuma import score_texts

TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000, help="default: %(default)s")
    rounds = parser.parse_args().rounds
    model, tokenizer = load_released()
    # Sentences of the bundled corpus until the text has the length, cut at a word.
    words = " ".join(bundled_texts(60)).split()
    lengths = (len(tokenizer(" ".join(words[:n]), verbose=False)["input_ids"]) for n in range(len(words), 0, -1))
    text = " ".join(words[: len(words) - next(i for i, length in enumerate(lengths) if length <= TOKENS)])
    score_texts(model, [text])
    start = time.perf_counter()
    scored = score_texts(model, [text])[0]
    encoding = 1000 * (time.perf_counter() - start)
    times = []
    for i in range(rounds):
        start = time.perf_counter()
        scored.select(rate=0.05 + 0.45 * i / rounds)
        times.append(1000 * (time.perf_counter() - start))
    times.sort()
    print(f"{len(tokenizer(text)['input_ids'])} tokens, {len(scored.words)} words; encoding {encoding:.1f} ms")
    print(
        f"another rate, {rounds} rounds: median {statistics.median(times):.3f} ms, "
        f"99% under {times[int(0.99 * rounds)]:.3f} ms, largest {times[-1]:.3f} ms"
    )


if __name__ == "__main__":
    main()
