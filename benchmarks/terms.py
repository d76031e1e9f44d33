"""Key terms of Wikipedia articles: gates, KeyBERT and YAKE.

    python benchmarks/terms.py --data DATA                    WikiText-2 test; some minutes on a core
    python benchmarks/terms.py --data DATA --part valid       the other part; nothing was chosen on either

DATA holds wikitext2/test.txt. Each article's text (without headings) is halved by paragraphs; every method names ten terms
of the first half. Measured without labels: how high the second half of the same article stands among all second halves when
these terms are the question (mean reciprocal rank by the encoder's cosine, each half the mean of its paragraphs), and
whether a word of the article's title, which no method sees, is in a term. 95% bootstrap intervals over articles; seconds
of all.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from hardkuma import HardKumaModel, load_released
from hardkuma.apps.pairs import embed_anchors
from hardkuma.apps.terms import find_terms
from hardkuma.encoder_hardkuma import resolve_encoder
from hardkuma.evaluation.statistics import bootstrap
from hardkuma.words_hardkuma import is_function_word

TERMS = 10
_TITLE = re.compile(r" = [^=].* = ")


def read_articles(path: Path) -> list[tuple[str, list[str]]]:
    """(title, paragraphs) of each article with at least four paragraphs."""
    articles: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if _TITLE.fullmatch(line):
            articles.append((line.strip(" ="), []))
        elif articles and line.strip() and not line.startswith(" ="):
            text = re.sub(r"\s?@([-,.])@\s?", r"\1", line.replace("<unk>", "")).strip()
            articles[-1][1].append(re.sub(r"\s+([,.;:)!?'])", r"\1", text))
    return [(title, paragraphs) for title, paragraphs in articles if len(paragraphs) >= 4]


def methods(model: HardKumaModel) -> dict[str, Callable[[list[str]], list[str]]]:
    from keybert import KeyBERT
    from sentence_transformers import SentenceTransformer
    from yake import KeywordExtractor

    keybert = KeyBERT(SentenceTransformer(resolve_encoder("sentence-transformers/all-MiniLM-L6-v2")))
    yake = KeywordExtractor(lan="en", n=3, top=TERMS)
    options = {"keyphrase_ngram_range": (1, 3), "stop_words": "english", "top_n": TERMS}

    def by_gates(selector: str) -> Callable[[list[str]], list[str]]:
        return lambda paragraphs: [term.text for term in find_terms(model, paragraphs, TERMS, selector=selector)]

    return {
        **{f"gates, {name}": by_gates(name) for name in model.config.names},
        "KeyBERT": lambda paragraphs: [term for term, _ in keybert.extract_keywords(" ".join(paragraphs), **options)],
        "YAKE": lambda paragraphs: [term for term, _ in yake.extract_keywords(" ".join(paragraphs))],
    }


def has_title(title: str, terms: list[str]) -> bool:
    words = {word.casefold() for word in title.split() if len(word) > 2 and not is_function_word(word)}
    return bool(words & {word.casefold() for term in terms for word in term.split()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--part", default="test", choices=("valid", "test"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, _ = load_released()
    articles = read_articles(options.data / "wikitext2" / f"{options.part}.txt")
    first = [paragraphs[: len(paragraphs) // 2] for _, paragraphs in articles]
    second = torch.stack([embed_anchors(model, paragraphs[len(paragraphs) // 2 :]).mean(0) for _, paragraphs in articles])
    second = torch.nn.functional.normalize(second, dim=-1)
    print(f"{len(articles)} articles of WikiText-2 {options.part}, {TERMS} terms each\n")
    print("| terms by | reciprocal rank | title | seconds |\n|---|---:|---:|---:|")
    for name, extract in methods(model).items():
        started = time.perf_counter()
        terms = [extract(paragraphs) for paragraphs in first]
        seconds = time.perf_counter() - started
        cosines = embed_anchors(model, [", ".join(row) for row in terms]) @ second.T
        ranks = (cosines >= cosines.diagonal()[:, None]).sum(-1).numpy()
        titles = np.array([has_title(title, row) for (title, _), row in zip(articles, terms, strict=True)])
        values = {"rank": 1 / ranks, "title": titles.astype(float)}
        means = bootstrap(lambda w, v=values: {key: float(w @ row / w.sum()) for key, row in v.items()}, len(articles))
        shown = [f"{cell.value:.3f} ({cell.low:.3f} to {cell.high:.3f})" for cell in means.values()]
        print(f"| {name} | {' | '.join(shown)} | {seconds:.1f} |", flush=True)
        print(f"  such as: {', '.join(terms[0])}") if options.part == "valid" else None


if __name__ == "__main__":
    main()
