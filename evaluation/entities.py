"""Gates against the gold entity words of a labelled file, in three numbers: for reporting, never for choosing."""

from __future__ import annotations

from pathlib import Path

from ..configuration_hardkuma import ENTITIES
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import score_texts
from .data import labels_of, read_corpus, texts_of
from .ranking import Ranking, f1_from_counts, f1_of_selection


def entity_numbers(model: HardKumaModel, path: str | Path, use_surface: bool = True) -> dict[str, float]:
    """Of `entities`, or of the only selector: average precision of word scores, F1 at the model's own threshold, and the
    best F1 of any threshold.

    A word's score is the largest selection probability of its tokens. Higher is better for all three.

    Args:
        model: in eval mode, with its tokenizer.
        path: a CoNLL file; every tag but `O` counts as an entity word.
        use_surface: apply the word-shape log-odds that the model holds.
    """
    sentences = read_corpus(path).sentences
    texts, words = texts_of(sentences)
    config = model.config
    selector = config.names[config.find_selector(default=ENTITIES)]
    scored = score_texts(model, texts, words=words, batch_size=64, use_surface=use_surface, selector=selector)
    scores = [sentence.probabilities for sentence in scored]
    labels = labels_of(sentences)
    curve = Ranking(labels, scores).curve()
    chosen = [[int(score > model.config.decision_threshold) for score in row] for row in scores]
    return {
        "average precision": curve.average_precision(),
        "F1": f1_from_counts(f1_of_selection(labels, chosen).sum(0)),
        "best F1": curve.best_f1(),
    }
