"""Which words keep a sentence's embedding, on any text: the released `meaning` beside SHAP and other ways, without labels.

    python benchmarks/other_texts.py
    python benchmarks/other_texts.py --texts letters.txt articles.txt

Without files: two texts that come with every installation and that no recipe reads, Python's reference manual and what the
installed packages say of themselves in a line. Of each text 100 sentences of at least 4 words are drawn. A row has the
sufficiency and comprehensiveness of a way's top words (see evaluation/faithfulness.py), and what `meaning` has more, paired
by sentence, with a bootstrap interval: of each text, and of all together.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from hardkuma import load_released
from hardkuma.data.readers import read_texts
from hardkuma.data.sentences import split_sentences
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import METHODS
from hardkuma.evaluation.baselines.words import text_words
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.evaluation.statistics import Interval, bootstrap, weighted_mean

OURS = "gates_meaning"
PEERS = ("shap", "loo_word", "integrated_gradients", "keybert", "norm_sum", "random")
CURVES = ("sufficiency", "comprehensiveness")
FEWEST_WORDS = 4


def manual_sentences() -> Iterable[str]:
    """Of Python's reference manual, those of words and ordinary signs alone: no code, no markup."""
    for topic in topics.values():
        for paragraph in re.split(r"\n\s*\n", topic):
            sentences = split_sentences(" ".join(paragraph.split()))
            yield from (text for text in sentences if re.fullmatch(r"[A-Z][\w\s,;:'’()-]+\.", text))


def package_summaries() -> Iterable[str]:
    """What each installed package says of itself in a line, in the order of the alphabet."""
    return sorted({(package.metadata["Summary"] or "").strip() for package in metadata.distributions()})


INSTALLED: dict[str, Callable[[], Iterable[str]]] = {"manual": manual_sentences, "packages": package_summaries}


def draw(name: str, texts: Iterable[str], number: int, seed: int) -> list[str]:
    """Different sentences of a text, in the order of the draw."""
    sentences = list(dict.fromkeys(texts))
    long = [text for text, words in zip(sentences, text_words(sentences), strict=True) if len(words) >= FEWEST_WORDS]
    if len(long) < number:
        raise ValueError(f"{name} has {len(long)} sentences of {FEWEST_WORDS} or more words: ask for fewer by --sentences.")
    return [long[i] for i in np.random.default_rng(seed).permutation(len(long))[:number]]


def measure(encoder: SentenceEncoder, name: str, texts: list[str]) -> dict[str, np.ndarray]:
    """Area under each curve, of each text."""
    kept = faithfulness(encoder, METHODS[name].scores(encoder, texts))
    return {curve: kept.areas(getattr(kept, curve)) for curve in CURVES}


def difference(ours: np.ndarray, theirs: np.ndarray) -> Interval:
    """Mean of the paired differences, with its interval."""
    gap = ours - theirs
    return bootstrap(lambda weights: {"gap": weighted_mean(gap, weights)}, len(gap), samples=5000)["gap"]


def table(title: str, areas: dict[str, dict[str, np.ndarray]]) -> str:
    """The rows of one text, or of several together."""
    lines = [f"\n{title}\n", "| way | " + " | ".join(f"{curve} | `meaning` minus it" for curve in CURVES) + " |"]
    lines.append("|---|" + "---:|" * 2 * len(CURVES))
    for name, found in areas.items():
        cells = [METHODS[name].title]
        for curve in CURVES:
            gap = difference(areas[OURS][curve], found[curve])
            cells.append(f"{np.nanmean(found[curve]):.3f}")
            cells.append("" if name == OURS else f"{gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, nargs="+", default=[], help="of any format that `hardkuma train` reads")
    parser.add_argument("--sentences", type=int, default=100, help="of each text (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    encoder = SentenceEncoder.from_model(load_released()[0])
    for name in PEERS:
        if missing := METHODS[name].missing:
            parser.error(f"{name} needs {', '.join(missing)}: pip install hardkuma[{METHODS[name].extra}]")
    together: dict[str, dict[str, list[np.ndarray]]] = {name: {c: [] for c in CURVES} for name in (OURS, *PEERS)}
    sources = {path.name: read_texts(path) for path in options.texts} or {name: read() for name, read in INSTALLED.items()}
    for source, sentences in sources.items():
        texts = draw(source, sentences, options.sentences, options.seed)
        areas = {name: measure(encoder, name, texts) for name in together}
        print(table(f"{source}, {len(texts)} sentences", areas), flush=True)
        for name, found in areas.items():
            for curve in CURVES:
                together[name][curve].append(found[curve])
    if len(sources) > 1:
        joined = {
            name: {curve: np.concatenate(parts) for curve, parts in found.items()} for name, found in together.items()
        }
        print(table(f"all {len(sources)} texts", joined))
    return 0


if __name__ == "__main__":
    sys.exit(main())
