"""What a run learns of the language of its text: its scripts, the words of scripts without spaces, its function words.

**Words.** In scripts without spaces every syllable could end a word. Sequences of up to `LONGEST` syllables that are
frequent, or that the encoder's vocabulary has, are candidates. The text is cut into the most probable of them
(`Language.cut`), their counts are taken anew from that cut, and so on, `ROUNDS` times: hard expectation maximisation of a
unigram model.

**Function words** are frequent and carry little: with g the mean gate of `meaning` of a word, and m that of all words,
those that at least 10^(g / m - BAR) of the sentences have. A word with a mean gate must be in 2% of the sentences, one with
half of that in .6%. No list takes part, so they are those of whatever language the text is in. English text
keeps the list of `Language`, which is as good there (docs/languages.md); fewer than `ENOUGH` sentences of another language
teach none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..batch_hardkuma import token_roles, vocabulary_tokens
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import score_texts
from ..words_hardkuma import ENGLISH, UNSPACED_RUN, Language, find_words, script_of, syllables

SEEN = 0.01  # share of the letters that makes a script one that the head has seen
LONGEST, OFTEN, ROUNDS, LARGEST = 4, 5, 3, 10_000  # syllables of a word, occurrences, rounds, words of a lexicon
BAR, ENOUGH = 2.75, 1000  # chosen on STS-B dev, 2.5 or 2.75
ENGLISH_SHARE = 0.15  # of words in the English list: .28 to .52 in English text, .03 to .05 in other languages
GATED = 3000  # sentences whose gates are looked at
SAMPLE = 20_000  # sentences that scripts and frequencies are taken from


def learn_words(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Language:
    """Scripts and words of these texts. Function words are English until `learn_function_words` has seen gates.

    >>> from hardkuma import load_released
    >>> learn_words(["我们喜欢东京", "他们喜欢北京", "我们在北京"] * 5, load_released()[1]).scripts
    'cjk'
    """
    sample = _sample(texts, SAMPLE, seed)
    letters = Counter(script_of(letter) for text in sample for letter in text if letter.isalpha())
    scripts = [script for script, count in letters.most_common() if count >= SEEN * letters.total()]
    unspaced = sum(len(run[0]) for text in sample for run in UNSPACED_RUN.finditer(text))
    lexicon = _learn_lexicon(sample, tokenizer) if unspaced >= SEEN * letters.total() else []
    return Language(lexicon=" ".join(lexicon), scripts=" ".join(scripts) or ENGLISH.scripts)


def _learn_lexicon(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Words of scripts without spaces, most frequent first."""
    runs = Counter(match[0] for text in texts for match in UNSPACED_RUN.finditer(text))
    known = {text for _, text, _ in vocabulary_tokens(tokenizer)}
    counts: Counter[str] = Counter()
    for run, number in runs.items():
        edges = syllables(run, 0, len(run))
        for i in range(len(edges)):
            for j in range(i + 1, min(i + LONGEST, len(edges) - 1) + 1):
                counts[run[edges[i] : edges[j]]] += number
    counts = Counter({word: count for word, count in counts.items() if count >= OFTEN or word in known})
    for _ in range(ROUNDS):
        language = Language(lexicon=" ".join(word for word, _ in counts.most_common()))
        counts = Counter()
        for run, number in runs.items():
            for start, end in language.cut(run, 0, len(run)):
                counts[run[start:end]] += number
        counts = Counter({word: count for word, count in counts.items() if count > 1})
    return [word for word, _ in counts.most_common(LARGEST)]


def learn_function_words(model: HardKumaModel, texts: Sequence[str], seed: int = 0, batch_size: int = 32) -> Language:
    """The model's language with the function words of these texts, by the gates of `meaning` (or of the first selector)."""
    language = model.config.language
    if is_english(texts, seed):
        return replace(language, function_words=ENGLISH.function_words)
    if len(texts) < ENOUGH:
        return replace(language, function_words="")
    sentences: Counter[str] = Counter()
    sample = _sample(texts, SAMPLE, seed)
    for text in sample:
        sentences.update({_plain(text[start:end]) for start, end in find_words(text, language)})
    gates: dict[str, list[float]] = {}
    for scored in score_texts(model, _sample(sample, GATED, seed), batch_size=batch_size):
        for number, value in enumerate(scored.probabilities):
            gates.setdefault(_plain(scored.word(number)), []).append(value)
    mean = max(float(np.mean([value for values in gates.values() for value in values] or [0.0])), 1e-6)
    found = [
        word
        for word, count in sentences.most_common()
        if word in gates and _is_written(word) and count >= len(sample) * 10 ** (np.mean(gates[word]) / mean - BAR)
    ]
    return replace(language, function_words=" ".join(found))


def is_english(texts: Sequence[str], seed: int = 0) -> bool:
    """Whether these texts have the function words of English.

    >>> is_english(["This is the house of my friends."]), is_english(["Das ist das Haus meiner Freunde."])
    (True, False)
    """
    words = [text[start:end] for text in _sample(texts, ENOUGH, seed) for start, end in find_words(text)]
    return sum(map(ENGLISH.is_function_word, words)) > ENGLISH_SHARE * len(words)


def set_language(model: HardKumaModel, language: Language) -> None:
    """Make this the language of a model: of its words, of its decisions, of the roles of its tokens."""
    model.config.language = language
    roles = model.gate_head.roles
    if roles is not None:
        roles.copy_(token_roles(model.tokenizer, len(roles), language))


def _sample(texts: Sequence[str], number: int, seed: int) -> list[str]:
    rows = np.random.default_rng(seed).permutation(len(texts))[:number]
    return [texts[int(row)] for row in np.sort(rows)]


def _plain(word: str) -> str:
    return word.replace("’", "'").lower()


def _is_written(word: str) -> bool:
    return word.replace("'", "").isalpha()
