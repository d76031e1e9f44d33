"""In which words do two texts differ? One pass a text, no labels.

1. **A word is compared in its place.** With h the mean of the last states of a word's tokens,
   v_i = (h_(i-1) + 2 h_i + h_(i+1)) / 4: what a word says is said by its neighbours too.
2. **It differs by what it lacks in the other text.** With c the mean of the best cosine where texts are unrelated,

       d_i = (1 - max_j cos(v_i, v_j)) / (1 - c)        0 for the same word in the same place, 1 in an unrelated text

   and differs_i = (d_i - s) / (1 - s), cut to [0, 1]: below s = `SAME` a word only stands in other company.
3. **A function word differs as what it belongs to does:** the content word that follows, or else the one before.
4. **What an embedding hardly sees is compared as such** (contrasts.py): a number, day, month, opposite or negation that the
   other text contradicts differs by 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..scoring_hardkuma import ScoredText, check_count
from ..words_hardkuma import ENGLISH, Language, find_words
from .contrasts import describe_languages, find_contrasts
from .reading import UNRELATED, AnchorModel, ReadText, read_texts

# Both chosen on the first 50 pairs of iSTS: by Spearman's correlation, and by F1 of the words that people gave .4 or more.
SAME = 0.2
DIFFERENT = 0.25
# What belongs to a number that it touches; neither is part of a word.
CURRENCIES = frozenset("$£¥€")
SIGNS = CURRENCIES | {"%", "‰", "°"}


def find_differences(model: AnchorModel, pairs: Sequence[tuple[str, str]], *, batch_size: int = 32) -> list[dict[str, Any]]:
    """For each pair of texts, how much each word differs from the other text; of plain JSON values.

    Args:
        model: a HardKumaModel in eval mode, with its tokenizer.

    Returns:
        similarity: the cosine of the encoder's embeddings of the two texts.
        notes: a sentence where the texts are of different languages or scripts.
        a, b: {"text", "words": [{"word", "start", "end", "differs"}], "differences": [{"text", "start", "end", "differs"}],
            "truncated"}. "differs" is in [0, 1]; neighbours of at least `DIFFERENT` are joined as a difference, with the
            largest of their values. Words that the encoder does not see any more ("truncated") have 0.

    >>> from hardkuma import load_released
    >>> pair = find_differences(load_released()[0], [("We meet at 3 pm.", "We meet at 5 pm.")])[0]
    >>> [[span["text"] for span in pair[name]["differences"]] for name in "ab"]
    [['3'], ['5']]
    """
    check_count("batch_size", batch_size)
    for pair in pairs:
        check_pair(pair)
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    read = dict(zip(texts, read_texts(model, texts, batch_size=batch_size), strict=True))
    chance = word_chance(model)
    return [_compare(read[a], read[b], chance) for a, b in pairs]


def check_pair(pair: tuple[str, str]) -> None:
    """ValueError for what is not two texts."""
    if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
        raise ValueError(f"pairs must be a list of pairs of texts, [(a, b)]; one of them is {pair!r:.80}.")
    for name, text in zip("ab", pair, strict=True):
        if not isinstance(text, str):
            raise ValueError(f"{name} must be a text (str), got a {type(text).__name__}: {text!r:.60}.")


def _compare(a: ReadText, b: ReadText, chance: float) -> dict[str, Any]:
    note = describe_languages(a.seen.named(), b.seen.named())
    result: dict[str, Any] = {"similarity": float(a.anchor @ b.anchor), "notes": [] if note is None else [note]}
    for name, text, other in (("a", a, b), ("b", b, a)):
        seen, differs = text.seen, differing(text, other, chance)
        differs += [0.0] * (len(seen.all_words) - len(differs))
        words = [
            {"word": seen.whole[start:end], "start": start, "end": end, "differs": value}
            for (start, end), value in zip(seen.all_words, differs, strict=True)
        ]
        result[name] = {
            "text": seen.whole,
            "words": words,
            "differences": join_differences(seen.whole, words, seen.language),
            "truncated": seen.truncated,
        }
    return result


def differing(text: ReadText, other: ReadText, chance: float) -> list[float]:
    """How much each word of a text, as far as the encoder sees it, differs from another text; (words,).

    Args:
        chance: `word_chance` of the model.
    """
    seen = text.seen
    if not seen.words:
        return []
    if not other.seen.words:
        return [1.0] * len(seen.words)
    lacking = (1 - best_cosines(text.word_states(), other.word_states())) / max(1 - chance, 1e-6)
    values = ((lacking - SAME) / (1 - SAME)).clamp(0.0, 1.0).tolist()
    values = _attach_function_words(ScoredText(seen.text, seen.words, values, 1, DIFFERENT, language=seen.language))
    contrasts = find_contrasts(seen.named(), other.seen.named())
    return [1.0 if contrast else value for value, contrast in zip(values, contrasts, strict=True)]


def best_cosines(states: Tensor, others: Tensor) -> Tensor:
    """(words,) the best cosine of each word, in its place, with a word of the other text: max_j cos(v_i, v_j).

    Args:
        states, others: (words, hidden), at least one word each.

    >>> a, b = torch.eye(3), torch.eye(3)[[1, 0, 2]]
    >>> (best_cosines(a, a) > 0.999).all(), best_cosines(a, b)[2] < 0.999
    (tensor(True), tensor(True))
    """
    a, b = (torch.nn.functional.normalize(_in_place(rows), dim=-1) for rows in (states, others))
    return (a @ b.T).max(-1).values


def _in_place(states: Tensor) -> Tensor:
    """(words, hidden): a quarter of each neighbour and half of the word itself; the first and last are their own."""
    padded = torch.cat([states[:1], states, states[-1:]])
    return (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4


def _attach_function_words(text: ScoredText) -> list[float]:
    """The values of words, where each function word has that of the next content word of its phrase, or else of the last
    one."""
    attached = list(text.probabilities)
    grammar = [text.language.is_function_word(text.word(i)) for i in range(len(attached))]
    for numbers, step in ((range(len(attached) - 2, -1, -1), 1), (range(1, len(attached)), -1)):
        for i in numbers:
            near = i + step
            if grammar[i] and not grammar[near] and text.joins(max(i, near)):
                attached[i], grammar[i] = attached[near], False
    return attached


def join_differences(text: str, words: Sequence[dict[str, Any]], language: Language = ENGLISH) -> list[dict[str, Any]]:
    """Neighbouring words that differ by `DIFFERENT` or more, as spans; punctuation ends a span, and so does a word that
    carries the similarity. Function words that are left alone then are no difference, unless they are compared as such. The
    sign of a number (3%, $30) is part of the difference.

    >>> words = [{"start": 0, "end": 1, "differs": 0.5}, {"start": 2, "end": 5, "differs": 0.9}]
    >>> join_differences("a dog", words)
    [{'text': 'a dog', 'start': 0, 'end': 5, 'differs': 0.9}]
    """
    values = [word["differs"] for word in words]
    scored = ScoredText(text, [(word["start"], word["end"]) for word in words], values, 1, DIFFERENT)
    chosen = [word["differs"] >= DIFFERENT and not word.get("carries", False) for word in words]
    spans: list[dict[str, Any]] = []
    for span in scored.record(chosen)["spans"]:
        differs = span.pop("probability")
        found = (span["text"][start:end] for start, end in find_words(span["text"], language))
        if differs == 1 or not all(map(language.is_function_word, found)):
            start, end = span["start"], span["end"]
            if text[start].isdigit() and start > (spans[-1]["end"] if spans else 0) and text[start - 1] in CURRENCIES:
                start -= 1
            if text[end - 1].isdigit() and text[end : end + 1] in SIGNS:
                end += 1
            spans.append({"text": text[start:end], "start": start, "end": end, "differs": differs})
    return spans


def word_chance(model: AnchorModel) -> float:
    """The mean of a word's best cosine with the words of an unrelated text; computed once for an encoder's weights.

    >>> from hardkuma import load_released
    >>> 0 < word_chance(load_released()[0]) < 0.3
    True
    """
    key = model.encoder_fingerprint()
    if key not in _CHANCES:
        states = [text.word_states() for text in read_texts(model, UNRELATED)]
        best = [best_cosines(a, b) for a in states for b in states if a is not b]
        _CHANCES[key] = float(torch.cat(best).mean())
    return _CHANCES[key]


_CHANCES: dict[str, float] = {}
