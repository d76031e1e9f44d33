"""What the page computes: gates of a text, the words that carry a similarity, the gates beside other methods."""

from __future__ import annotations

from dataclasses import dataclass

from ..attribution import METHODS, SentenceEncoder
from ..attribution.words import WordScores
from ..modeling_hardkuma import HardKumaModel
from ..pairs_hardkuma import explain_pair
from ..words_hardkuma import Record, ScoredText, score_texts
from .limits import MAX_CHARACTERS, as_fraction, check_compared, check_text

PEERS = {"attention": "Attention received", "norm": "Norm of the state", "loo_word": "Leave one word out"}


@dataclass(frozen=True)
class MethodScores:
    """One method's scores of a text.

    Attributes:
        title: the method's name.
        passes: how often the encoder ran.
        scored: the words with their shades, from 0 to 1.
        raw: the scores of the words, on the method's own scale.
        missing: how many words are beyond the encoder's length and have no score.
    """

    title: str
    passes: int
    scored: ScoredText
    raw: list[float]
    missing: int = 0


def scale_to_shades(scores: WordScores) -> ScoredText:
    """Scores of any scale as shades: the lowest of the text is 0, the highest 1.

    >>> scale_to_shades(WordScores("a b", [(0, 1), (2, 3)], [-3.0, 5.0])).probabilities
    [0.0, 1.0]
    """
    low, high = min(scores.scores, default=0.0), max(scores.scores, default=0.0)
    shades = [(score - low) / (high - low) if high > low else 0.0 for score in scores.scores]
    return ScoredText(scores.text, scores.words, shades, windows=1, threshold=0.5)


class Demo:
    """The computations of the page, for one model; the encoder runs here and nowhere else.

    >>> from hardkuma import load_released
    >>> scored = Demo(load_released()[0]).score("Marie Curie moved to Paris.")
    >>> [scored.text[start:end] for start, end in scored.words]
    ['Marie', 'Curie', 'moved', 'to', 'Paris']
    """

    def __init__(self, model: HardKumaModel, selector: str | None = None) -> None:
        # An unknown selector is an error before anything is shown.
        self.names, number = model.config.names, model.config.find_selector(selector)
        self.model, self.selector = model, self.names[number]
        self.encoder = SentenceEncoder.from_model(model)

    def score(self, text: str, selector: str | None = None) -> ScoredText:
        """One encoding of one text, for the selector that is named, or the one that the page starts with."""
        return score_texts(self.model, [check_text(text, MAX_CHARACTERS)], selector=selector or self.selector)[0]

    def pair(self, a: str, b: str, percent: float, selector: str | None = None) -> Record:
        """Which words carry the similarity of two texts; one pass for every word."""
        texts = check_compared(a), check_compared(b)
        return explain_pair(self.model, *texts, rate=as_fraction(percent), selector=selector or self.selector)

    def compare(self, text: str, selector: str | None = None) -> list[MethodScores]:
        """The gates and the peers on one text, the gates first."""
        text, name = check_compared(text), selector or self.selector
        gates = score_texts(self.model, [text], selector=name)[0]
        title = f"HardKuma gates: {name}" if len(self.names) > 1 else "HardKuma gates"
        results = [MethodScores(title, gates.windows, gates, gates.probabilities)]
        for name, title in PEERS.items():
            with self.encoder.counting() as used:
                scores = METHODS[name].scores(self.encoder, [text], [gates.words])[0]
            results.append(MethodScores(title, used.forward, scale_to_shades(scores), scores.scores, len(scores.missing)))
        return results
