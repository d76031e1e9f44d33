"""The surface view: the class of a word's written form, and one log-odds per class learned from the gates themselves.

An uncased encoder cannot see form. These classes can be computed from the original text alone, for scripts with and
without case; the model shifts a gate's logit by the log-odds of its word's class when it is given `surface_ids`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import Tensor

Span = tuple[int, int]

SURFACE_CLASSES = (
    "unknown",  # 0: special tokens, padding, or no information; never shifts a gate
    "symbol",  # no letter and no digit
    "digit",  # any digit
    "lower",  # letters, all lower case
    "initial_start",  # capital first letter, at the start of a sentence
    "initial_inside",  # capital first letter, elsewhere
    "capitals",  # two or more letters, all capital
    "single_capital",  # one capital letter by itself, not at the start of a sentence
    "mixed",  # capitals after a small letter: iPhone, eBay, mRNA
    "caseless",  # letters of a script without case
    "handle",  # begins with @ or #
)
NUM_SURFACE_CLASSES = len(SURFACE_CLASSES)
CAPITAL_CLASSES = ("initial_start", "initial_inside", "capitals", "single_capital", "mixed")
_ID = {name: index for index, name in enumerate(SURFACE_CLASSES)}
_CAPITALISED = (_ID["initial_inside"], _ID["single_capital"])

# English function words, which name nothing: where words are selected at a rate, they come after all others.
_GRAMMAR = """
    a about above across after again against all along although am among an and another any are aren't around as at be
    because been before being below between both but by can can't cannot could couldn't did didn't do does doesn't doing
    don't done during each either else etc even ever every few for from further had hadn't has hasn't have haven't having
    he he'd he'll he's her here hers herself him himself his how however i i'd i'll i'm i've if in into is isn't it it'll
    it's its itself just let's may me might mine more most much must my myself neither no nor not of off on once only onto
    or other others ought our ours ourselves out over own per quite rather really same shall shan't she she'd she'll she's
    should shouldn't since so some such than that that's the their theirs them themselves then there there's these they
    they'd they'll they're they've this those though through thus till to too toward towards under unless until up upon us
    very via was wasn't we we'd we'll we're we've were weren't what what's when where whether which while who who's whom
    whose why will with within without won't would wouldn't yet you you'd you'll you're you've your yours yourself
    yourselves 's
"""

# Words that deny what follows, and words that link the parts of a name: Museum of Modern Art, Mies van der Rohe.
NEGATIONS = frozenset("cannot neither never no nobody none nor not nothing without".split())  # noqa: SIM905
LINKS = frozenset("al bin da de del den der des di dos du el ibn la las le los of ter van von y zu".split())  # noqa: SIM905
# What a word is to its neighbours; 0 for all others, which are content. (1 and 2 are roles of tokens: batch_hardkuma.py.)
FUNCTION, LINK, NEGATION = 3, 4, 5


@dataclass(frozen=True)
class Language:
    """What a head knows of the language of its training text (`training/language.py` learns it): English by default.

    All are words in one line, as config.json has them.

    Attributes:
        function_words: in lower case.
        lexicon: words of scripts that put no space between words, most frequent first; without any, `find_words` goes by
            syllables and changes of script.
        scripts: that the text was written in, as in `script_of`.

    >>> german = Language(function_words="der die das und", scripts="latin")
    >>> german.is_function_word("Die"), german.is_function_word("the"), Language().is_function_word("the")
    (True, False, True)
    """

    function_words: str = " ".join(_GRAMMAR.split())
    lexicon: str = ""
    scripts: str = "latin"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, str):
                raise ValueError(f"{name} of a language must be words in one line, got {value!r:.60}.")

    @classmethod
    def make(cls, values: Any) -> Language:
        """From a mapping, as config files have it; English from None."""
        if values is None:
            return cls()
        known = [ours.name for ours in fields(cls)]
        if not isinstance(values, Mapping) and all(hasattr(values, name) for name in known):
            values = {name: getattr(values, name) for name in known}
        if not isinstance(values, Mapping) or not set(values) <= set(known):
            raise ValueError(f"language must be a mapping of {', '.join(known)}; got {values!r:.80}.")
        return cls(**values)

    @cached_property
    def _function_words(self) -> frozenset[str]:
        return frozenset(self.function_words.split())

    @cached_property
    def _costs(self) -> dict[str, float]:
        """By Zipf's law the n-th most frequent word has a probability of about 1 / (n log N)."""
        words = self.lexicon.split()
        scale = math.log(max(len(words), 3))
        return {word: math.log((number + 1) * scale) for number, word in enumerate(words)}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._costs), default=0)

    def is_function_word(self, word: str) -> bool:
        """Whether a word is a function word, however it is written.

        >>> [Language().is_function_word(word) for word in ("The", "don’t", "Who", "WHO")]
        [True, True, True, False]
        """
        # In capitals it may be a name: WHO, US, IT. A single letter may not.
        return word.replace("’", "'").lower() in self._function_words and (len(word) == 1 or not word.isupper())

    def word_role(self, word: str) -> int:
        """FUNCTION, LINK or NEGATION, however the word is written; 0 for a content word.

        >>> [Language().word_role(word) for word in ("The", "of", "NOT", "don’t", "Rome")]
        [3, 4, 5, 5, 0]
        """
        plain = word.replace("’", "'").lower()
        if plain in NEGATIONS or plain.endswith("n't"):
            return NEGATION
        if plain in LINKS and word == plain:
            return LINK
        return FUNCTION if self.is_function_word(word) else 0

    def cut(self, text: str, start: int, end: int) -> list[Span]:
        """The words of text[start:end], characters of scripts without spaces: those of the lexicon that make it most
        probable, and syllables where it knows none. Neighbouring Hiragana that it does not know is one word; so are
        neighbouring Han characters of a text with Hiragana, where it knows no word at all.

        >>> text = "東京は大きい都市です"
        >>> [text[a:b] for a, b in Language().cut(text, 0, len(text))]
        ['東京', 'は', '大', 'きい', '都市', 'です']
        >>> [text[a:b] for a, b in Language(lexicon="です 大きい 東京").cut(text, 0, len(text))]
        ['東京', 'は', '大きい', '都', '市', 'です']
        """
        edges = syllables(text, start, end)
        words = self._most_probable(text, edges) if self._costs else list(pairwise(edges))
        japanese = not self._costs and _HIRAGANA.search(text) is not None
        joined: list[Span] = []
        before = None
        for first, past in words:
            known = text[first:past] in self._costs
            script = None if known else "kana" if _HIRAGANA.match(text, first) else "han" if japanese else None
            if script is not None and script == before:
                joined[-1] = joined[-1][0], past
            else:
                joined.append((first, past))
            before = script
        return joined

    def _most_probable(self, text: str, edges: list[int]) -> list[Span]:
        """The words between edges of syllables whose costs have the least sum (Viterbi's algorithm)."""
        costs, longest = self._costs, self._longest
        unknown = math.log((len(costs) + 1) * math.log(max(len(costs), 3))) + UNKNOWN
        best, back = [0.0], [0]
        for i in range(1, len(edges)):
            found = (best[i - 1] + costs.get(text[edges[i - 1] : edges[i]], unknown), i - 1)
            for j in range(i - 2, -1, -1):
                if edges[i] - edges[j] > longest:
                    break
                cost = costs.get(text[edges[j] : edges[i]])
                if cost is not None and best[j] + cost < found[0]:
                    found = (best[j] + cost, j)
            best.append(found[0])
            back.append(found[1])
        words, i = [], len(edges) - 1
        while i:
            words.append((edges[back[i]], edges[i]))
            i = back[i]
        return words[::-1]

    def unseen_script(self, text: str) -> str | None:
        """The script of most letters of a text, if the training text had none of it.

        >>> Language().unseen_script("Москва"), Language().unseen_script("Paris and Москва")
        ('cyrillic', None)
        """
        if text.isascii() and "latin" in self.scripts:
            return None
        scripts = Counter(script_of(letter) for letter in text if letter.isalpha())
        unseen = Counter({script: count for script, count in scripts.items() if script not in self.scripts.split()})
        return unseen.most_common(1)[0][0] if 2 * unseen.total() > scripts.total() else None

    def note(self, text: str, words: Sequence[Span]) -> str | None:
        """What a reader of the answer should know: the text is of a script or language that the head has not seen. None
        where nothing shows that.

        >>> Language().note("Москва - столица России.", [(0, 6), (9, 16), (17, 23)])
        'written in a script that the head has not seen (cyrillic)'
        """
        script = self.unseen_script(text)
        if script is not None:
            return f"written in a script that the head has not seen ({script})"
        # THE QUICK FOX is English, too: a word in capitals counts, though it may be a name.
        known = sum(self.is_function_word(text[start:end].lower()) for start, end in words)
        if self.function_words and len(words) >= TELLING and known <= LEAST_KNOWN * len(words):
            return f"{known} of {len(words)} words are function words that the head knows: another language, or a list"
        return None


def syllables(text: str, start: int, end: int) -> list[int]:
    """Where syllables of text[start:end] begin, in scripts without spaces, and where the last one ends.

    >>> syllables("เมืองไทย", 0, 8)
    [0, 5, 8]
    """
    return [start, *(match.end() for match in _SYLLABLE.finditer(text, start, end))]


UNKNOWN = 3.0  # how much less probable a syllable that a lexicon has not is than its last word
# Of English texts .01 are noted with these (WNUT17 and UD-EWT dev), of Spanish, French, Dutch and German ones .71 to .96.
TELLING, LEAST_KNOWN = 8, 0.1  # words that show a language, and the share of known function words up to which they do


@lru_cache(maxsize=1 << 14)
def script_of(letter: str) -> str:
    """The script of a letter, in lower case, by its name in Unicode.

    >>> [script_of(letter) for letter in "aЖ東กé"]
    ['latin', 'cyrillic', 'cjk', 'thai', 'latin']
    """
    return unicodedata.name(letter, "unknown").split()[0].split("-")[0].lower()


_SENTENCE_ENDS = frozenset(".!?…。！？؟।\n")
_OPENERS = frozenset("\"'“”‘’«»‹›([{（「『¿¡*-–—•")


def _marks() -> str:
    """Combining marks (Devanagari vowels, decomposed accents, ...) as ranges of a regular expression's class."""
    # All blocks that hold any; the variation selectors at the end of Unicode are listed by hand.
    marks = [i for i in range(0x300, 0x1F000) if unicodedata.category(chr(i))[0] == "M"]
    edges = [i for i, mark in enumerate(marks) if i == 0 or mark != marks[i - 1] + 1]
    ranges = [(marks[i], marks[j - 1]) for i, j in pairwise([*edges, len(marks)])]
    return "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges) + "\U000e0100-\U000e01ef"


# Scripts that put no space between words, as ranges of a regular expression's class: Han, Hiragana, Thai, Lao, Burmese,
# Khmer. (Katakana spells single foreign words.)
UNSPACED = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e01-\u0e3a\u0e40-\u0e4f\u0e80-\u0ecf\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\ua9e0-\ua9ef\uaa60-\uaa7f\u1780-\u17d3"
)


def _word_pattern() -> re.Pattern[str]:
    marks = _marks()
    letters = rf"[^\W_{UNSPACED}]++"
    # Where nothing shows the end of a word; `Language.cut` says where words end in there.
    unspaced = rf"(?![{marks}])(?:[{UNSPACED}][{marks}\u30fc]*+)++"
    # Letters with their marks, joined by an inner apostrophe, hyphen (a soft one too), full stop, & or _, by Hebrew geresh
    # or gershayim, or by a zero-width (non-)joiner.
    # An 's that ends a word is a word of its own: it is no part of the name before it.
    clitic = r"['’][sS](?![^\W_])"
    # A comma before three digits, after a digit, separates thousands.
    thousands = r"(?<=\d),(?=\d{3}(?!\d))"
    joined = rf"(?:(?!{clitic})(?:['’.\-&_\u00ad\u05f3\u05f4\u200c\u200d]|{thousands})?(?:{letters}|[{marks}]++))*+"
    picture = "[\U0001f000-\U0001faff\u2600-\u27bf\u231a\u231b\u23e9-\u23fa\u2b1b\u2b1c\u2b50\u2b55\u3297\u3299]"
    # One emoji of several characters: two letters of a flag, or pictures with modifiers glued by zero-width joiners.
    dressed = rf"{picture}[{marks}\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*+"
    # Signs that are pictures only if the selector after them says so.
    signs = (
        "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u25a0-\u25ff\u2900-\u297f\u2b00-\u2bff\u3030\u303d"
    )
    emoji = rf"[\U0001f1e6-\U0001f1ff]{{2}}|{dressed}(?:\u200d{dressed})*+|[{signs}]\ufe0f"
    # An address is one word. (Names before the @ have at most 64 characters, so a long run without one costs little.)
    address = r"[A-Za-z0-9][A-Za-z0-9._+\-]{0,63}+@[A-Za-z0-9][A-Za-z0-9\-]*+(?:\.[A-Za-z0-9][A-Za-z0-9\-]*+)++"
    return re.compile(rf"{address}|[@#]?{letters}{joined}|[@#]?(?P<unspaced>{unspaced})|(?<=[^\W_]){clitic}|{emoji}")


def _syllable_pattern() -> re.Pattern[str]:
    """Syllables as far as letters show them; a final consonant is one that has no vowel or mark of its own behind it."""
    marks = _marks()
    # Thai and Lao: a vowel written before its consonant, one consonant or two, marks, a vowel behind, a final consonant.
    # Some letters are vowels or consonants; between two consonants they are vowels.
    spaced_vowels = []
    for consonants, finals, second, silent, leading, behind, either in (
        ("ก-ฮ", "กขคฆงจชซญ-ปพ-วศ-สฬ", "รลว", "ห", "เ-ไ", "ะาำๅ", "วอ"),
        ("ກ-ຮໜ-ໟ", "ກງຍດນບມວຣລ", "ຣລວຼ", "ຫ", "ເ-ໄ", "ະາຳຽ", "ວອ"),
    ):
        vowels, final = rf"{marks}{behind}", rf"[{finals}](?![{marks}{behind}])"
        cluster = rf"(?:[{second}]|(?<=[{silent}])[{consonants}])(?=[{vowels}]|[{either}]{final})"
        rhyme = rf"[{marks}]*+(?:[{behind}]|[{either}](?={final})|(?<=ี)ย(?={final}))?"
        spaced_vowels.append(rf"[{leading}]?+[{consonants}](?:{cluster})?{rhyme}(?:{final}[{marks}]*+)?")
    # Khmer and Burmese: a sign below a consonant joins the next one to it; asat ends a Burmese syllable.
    khmer = rf"[\u1780-\u17b3](?:\u17d2[\u1780-\u17b3]|[{marks}])*(?:[\u1780-\u17a2](?:\u17cb|(?![{marks}])))?"
    closed = rf"[\u1000-\u1021]\u1037?\u103a[{marks}]*"
    burmese = rf"[\u1000-\u102a\u103f\u1050-\u108f](?:\u1039[\u1000-\u1021]|[{marks}])*(?:{closed})*"
    # Everything else is a character with its marks, with the small letters of Kana, and with what repeats it.
    small = "\u3005\u3041\u3043\u3045\u3047\u3049\u3063\u3083\u3085\u3087\u308e\u309d\u309e\u30fc"
    single = rf"[{UNSPACED}{marks}][{marks}{small}]*+"
    return re.compile("|".join([*spaced_vowels, khmer, burmese, single]))


UNSPACED_RUN = re.compile(f"[{UNSPACED}{_marks()}\u30fc]+")
_WORD, _SYLLABLE, _HIRAGANA = _word_pattern(), _syllable_pattern(), re.compile("[\u3041-\u309f]")
ENGLISH = Language()


def find_words(text: str, language: Language = ENGLISH) -> list[Span]:
    """Character spans of words: letters, digits and marks, joined by an inner apostrophe, hyphen, full stop, & or _.

    A comma that separates thousands belongs to its number, a leading @ or # to its word. An e-mail address is one word. An
    emoji, however many characters it is made of, is a word; so is a final 's. In scripts without spaces (Chinese, Thai,
    ...) words are what the language says; see `Language.cut`.

    >>> text = "@Ana met O'Neil's friend in the U.S., ok? 4,500 of 1,2"
    >>> [text[start:end] for start, end in find_words(text)]
    ['@Ana', 'met', "O'Neil", "'s", 'friend', 'in', 'the', 'U.S', 'ok', '4,500', 'of', '1', '2']
    """
    words: list[Span] = []
    for match in _WORD.finditer(text):
        if match["unspaced"] is None:
            words.append(match.span())
        else:
            first, *others = language.cut(text, *match.span("unspaced"))
            words += [(match.start(), first[1]), *others]  # with its @ or #
    return words


def starts_sentence(text: str, start: int) -> bool:
    """Whether a word beginning at `start` opens a sentence: nothing but opening marks between it and a sentence end.

    >>> starts_sentence("Go. “Now”", 5), starts_sentence("Go now", 3)
    (True, False)
    """
    i = start - 1
    while i >= 0 and (text[i] in _OPENERS or text[i].isspace()):
        if text[i] == "\n":
            return True
        i -= 1
    return i < 0 or text[i] in _SENTENCE_ENDS


def word_class(word: str, at_start: bool = False) -> int:
    """Class id of one word's form.

    >>> [SURFACE_CLASSES[word_class(w)] for w in ["Paris", "NATO", "iPhone", "walks", "4x4", "東京", "@ana", "…"]]
    ['initial_inside', 'capitals', 'mixed', 'lower', 'digit', 'caseless', 'handle', 'symbol']
    """
    return (_remembered_class if len(word) <= LONGEST_REMEMBERED else _word_class)(word, at_start)


def _word_class(word: str, at_start: bool) -> int:
    if word[:1] in ("@", "#") and len(word) > 1:
        return _ID["handle"]
    letters = [c for c in word if c.isalpha()]
    if any(c.isdigit() for c in word):
        return _ID["digit"]
    if not letters:
        return _ID["symbol"]
    upper = [c.isupper() or c.istitle() for c in letters]
    lower = [c.islower() for c in letters]
    if not any(upper) and not any(lower):
        return _ID["caseless"]
    if not any(upper):
        return _ID["lower"]
    if upper[0] and len(letters) > 1 and not any(lower):
        return _ID["capitals"]
    if not upper[0]:
        return _ID["mixed"]
    if at_start:
        return _ID["initial_start"]
    return _ID["single_capital"] if len(letters) == 1 else _ID["initial_inside"]


# Words come again and again, but what is long does not: so many characters a word bound the memory, to some 20 MB.
LONGEST_REMEMBERED = 32
_remembered_class = lru_cache(maxsize=1 << 16)(_word_class)


def word_classes(text: str, words: Iterable[Span]) -> list[int]:
    """Class of each word of a text.

    >>> [SURFACE_CLASSES[kind] for kind in word_classes("Go to Paris", [(0, 2), (3, 5), (6, 11)])]
    ['initial_start', 'lower', 'initial_inside']
    """
    kinds = []
    for start, end in words:
        word = text[start:end]
        kind = word_class(word)
        # Where a sentence starts makes a difference for capital letters alone.
        if kind in _CAPITALISED and starts_sentence(text, start):
            kind = word_class(word, True)
        kinds.append(kind)
    return kinds


class WordIndex:
    """The words of several texts in one sorted list, so that tokens of any of them are found by binary search.

    Attributes:
        firsts: for each text the number of its first word; one entry more than there are texts.
        size: the number of words of all texts.

    >>> index = WordIndex([[(0, 5), (6, 11)], [(0, 2)]], [12, 2])
    >>> index.firsts, index.size
    ([0, 2, 3], 3)
    """

    def __init__(self, words: Sequence[Sequence[Span]], lengths: Sequence[int]):
        self.firsts = [0, *accumulate(len(row) for row in words)]
        self.size = self.firsts[-1]
        # One line of characters on which the texts follow each other.
        bases = [0, *accumulate(lengths)]
        self._bases = torch.tensor(bases[:-1])
        spans = torch.tensor(list(chain.from_iterable(words)), dtype=torch.long).reshape(-1, 2)
        shift = self._bases.repeat_interleave(torch.tensor([len(row) for row in words], dtype=torch.long))[:, None]
        self._starts, self._ends = (spans + shift).T.contiguous()

    def touched(self, owners: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """The first word that each token touches, and how many it touches; both (batch, length).

        Args:
            owners: (batch,) the text of each row, or (batch, length) that of each token.
            starts, ends: (batch, length) character offsets of the tokens; an empty token touches nothing.

        >>> index = WordIndex([[(0, 5), (6, 11)], [(0, 2)]], [12, 2])
        >>> index.touched(torch.tensor([0]), torch.tensor([[0, 0, 5, 11]]), torch.tensor([[0, 5, 11, 12]]))[1]
        tensor([[0, 1, 1, 0]])
        """
        base = self._bases[owners if owners.ndim == 2 else owners[:, None]]
        first = torch.searchsorted(self._ends, starts + base, right=True)
        past = torch.searchsorted(self._starts, ends + base)
        return first, torch.where(ends > starts, past - first, 0).clamp_min(0)

    def continues(self, owners: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """Which tokens go on with the word of the token before them, (batch, length) bool; arguments as of `touched`.

        A token over several words belongs to the first of them; a token of no word is by itself.

        >>> index = WordIndex([[(0, 5), (6, 11)]], [12])
        >>> index.continues(torch.tensor([0]), torch.tensor([[0, 0, 3, 6, 11]]), torch.tensor([[0, 3, 5, 11, 12]]))
        tensor([[False, False,  True, False, False]])
        """
        first, count = self.touched(owners, starts, ends)
        word = torch.where(count > 0, first, -1)
        result = torch.zeros_like(word, dtype=torch.bool)
        result[:, 1:] = (word[:, 1:] == word[:, :-1]) & (word[:, 1:] >= 0)
        return result


def check_words(text: str, words: Sequence[Span]) -> None:
    """Words must be sorted, not empty, not overlapping and inside of their text.

    >>> check_words("Marie moved", [(0, 5), (4, 11)])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: word (4, 11) of a text of 11 characters is empty, outside of it, or before the end of the word before (5)...
    """
    before = 0
    for start, end in words:
        if not before <= start < end <= len(text):
            raise ValueError(
                f"word {(start, end)} of a text of {len(text)} characters is empty, outside of it, or before the end of "
                f"the word before ({before}); give (start, end) pairs in reading order, non-empty and non-overlapping."
            )
        before = end


class SurfaceIndex:
    """Words of several texts with their classes, made once, for any number of windows over these texts; `index` is that of
    the words, where there is one already.

    >>> index = SurfaceIndex(["Visit Paris!"], [find_words("Visit Paris!")])
    >>> starts, ends = torch.tensor([[0, 0, 6, 8, 11]]), torch.tensor([[0, 5, 8, 11, 12]])
    >>> index.ids(torch.tensor([0]), starts, ends)
    tensor([[0, 4, 5, 5, 1]])
    """

    def __init__(self, texts: Sequence[str], words: Sequence[Sequence[Span]], index: WordIndex | None = None):
        self.texts = texts
        self.index = WordIndex(words, [len(text) for text in texts]) if index is None else index
        kinds = [kind for text, row in zip(texts, words, strict=True) for kind in word_classes(text, row)]
        # One more, so that the number of a word that does not exist can be looked up.
        self._kinds = torch.tensor([*kinds, _ID["symbol"]])

    def ids(self, owners: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """Class of each token's word, (batch, length); arguments as of `WordIndex.touched`.

        A token over several words takes the class of the first that is more than a symbol.
        """
        first, count = self.index.touched(owners, starts, ends)
        ids = (ends > starts).long() * _ID["symbol"]
        # From the last word that a token touches to the first, which then stays.
        for nth in range(int(count.max()) - 1 if count.numel() else -1, -1, -1):
            kinds = self._kinds[(first + nth).clamp_max(len(self._kinds) - 1)]
            ids = torch.where((count > nth) & (kinds != _ID["symbol"]), kinds, ids)
        # A token of nothing but white space has no class.
        bare = ((ids == _ID["symbol"]) & (count == 0)).nonzero(as_tuple=True)
        owners = owners if owners.ndim == 2 else owners[:, None].expand_as(starts)
        spots = zip(owners[bare].tolist(), starts[bare].tolist(), ends[bare].tolist(), strict=True)
        blank = [self.texts[owner][start:end].isspace() for owner, start, end in spots]
        ids[bare] = torch.where(torch.tensor(blank, dtype=torch.bool), 0, ids[bare])
        return ids


def capitals_speak(classes: Tensor) -> Tensor:
    """Whether capitals say anything of the words of each row, (batch, 1) bool: not in a title, nor in a shouted text, where
    at least four words have them, and four times as many as are in lower case.

    >>> title = [_ID["initial_start"], *[_ID["initial_inside"]] * 4, _ID["lower"]]
    >>> capitals_speak(torch.tensor([title, [_ID["capitals"]] * 6, [_ID["initial_inside"]] * 4 + [_ID["lower"]] * 2]))
    tensor([[False],
            [False],
            [ True]])
    """
    lower, inside, shouted = (
        (classes == _ID[name]).sum(-1, keepdim=True) for name in ("lower", "initial_inside", "capitals")
    )
    most = torch.maximum(inside, shouted)
    return (most < 4) | (most < 4 * lower)


def capitals_against_lower(log_odds: Tensor) -> Tensor:
    """What capitals alone say, against a word in lower case: (classes,) -> (classes,), 0 for all other classes. Text in
    lower case then has the gates that it has without the surface view.

    >>> capitals_against_lower(torch.arange(11.0))
    tensor([0., 0., 0., 0., 1., 2., 3., 4., 5., 0., 0.])
    """
    capital = [name in CAPITAL_CLASSES for name in SURFACE_CLASSES]
    shifted = log_odds - log_odds[_ID["lower"]]
    return torch.where(torch.tensor(capital, device=log_odds.device), shifted, torch.zeros_like(shifted))


def surface_batch(
    texts: Sequence[str], offset_mapping: Sequence[Sequence[Sequence[int]]] | Tensor, language: Language = ENGLISH
) -> Tensor:
    """Class of each token's word, from the original texts and the tokens' character offsets: (batch, length), long.

    Args:
        texts: the texts that were tokenised.
        offset_mapping: (batch, length, 2) start and end per token, as a fast tokenizer gives with
            `return_offsets_mapping=True`; an empty span (special tokens, padding) gives 0.
        language: `model.config.language`, which says what words are in scripts without spaces.

    >>> surface_batch(["Paris"], [[(0, 0), (0, 5), (0, 0)]])
    tensor([[0, 4, 0]])
    """
    offsets = torch.as_tensor(offset_mapping, dtype=torch.long).reshape(len(texts), -1, 2)
    index = SurfaceIndex(texts, [find_words(text, language) for text in texts])
    return index.ids(torch.arange(len(texts)), offsets[..., 0], offsets[..., 1])


def continues_batch(
    texts: Sequence[str], offset_mapping: Sequence[Sequence[Sequence[int]]] | Tensor, language: Language = ENGLISH
) -> Tensor:
    """1 where a token goes on with the word of the token before it, else 0: (batch, length), long; arguments as of
    `surface_batch`. What models whose gates belong to words take as `continues`.

    >>> continues_batch(["Paris, France"], [[(0, 0), (0, 3), (3, 5), (5, 6), (7, 13), (0, 0)]])
    tensor([[0, 0, 1, 0, 0, 0]])
    """
    offsets = torch.as_tensor(offset_mapping, dtype=torch.long).reshape(len(texts), -1, 2)
    index = WordIndex([find_words(text, language) for text in texts], [len(text) for text in texts])
    return index.continues(torch.arange(len(texts)), offsets[..., 0], offsets[..., 1]).long()


def surface_ids(text: str, offsets: Iterable[Span]) -> list[int]:
    """`surface_batch` for one text.

    >>> surface_ids("Visit Paris!", [(0, 0), (0, 5), (6, 8), (8, 11), (11, 12), (0, 0)])
    [0, 4, 5, 5, 1, 0]
    """
    return surface_batch([text], [list(offsets)])[0].tolist()


class SurfaceStatistics:
    """Mean gate per class over unlabelled text, and the log-odds that follow from it.

    log-odds of class c = w_c (logit(mean gate of c) - logit(mean gate)) + (1 - w_c) old log-odds of c, with
    w_c = n_c / (n_c + shrinkage): rare classes stay close to what they were. Feed it the gates *without* the surface view.

    >>> statistics = SurfaceStatistics(num_selectors=1)
    >>> statistics.update(torch.tensor([[[0.9, 0.1]]]), torch.tensor([[5, 3]]), torch.ones(1, 2))
    >>> statistics.shifts()[0, [0, 3, 5]], statistics.weights(shrinkage=1.0)[[0, 3, 5]]
    (tensor([ 0.0000, -2.1972,  2.1972]), tensor([0.0000, 0.5000, 0.5000]))
    """

    def __init__(self, num_selectors: int = 1):
        self.sums = torch.zeros(num_selectors, NUM_SURFACE_CLASSES, dtype=torch.float64)
        self.counts = torch.zeros(NUM_SURFACE_CLASSES, dtype=torch.float64)

    def update(self, gate_probs: Tensor, ids: Tensor, content: Tensor) -> None:
        """gate_probs: (batch, K, length); ids, content: (batch, length)."""
        keep = content.bool() & (ids > 0)
        classes = ids[keep].cpu()
        self.counts.index_add_(0, classes, torch.ones_like(classes, dtype=torch.float64))
        for k in range(self.sums.shape[0]):
            self.sums[k].index_add_(0, classes, gate_probs[:, k][keep].detach().double().cpu())

    def shifts(self) -> Tensor:
        """(K, classes) fp32: logit of the class's mean gate minus that of all; zero for class 0 and classes never seen."""
        total = self.counts.sum().clamp_min(1.0)
        overall = torch.logit(self.sums.sum(-1, keepdim=True) / total, eps=1e-6)
        mean = self.sums / self.counts.clamp_min(1.0)
        # eps bounds the log-odds of a class whose every gate is 0 or 1.
        shift = torch.logit(mean, eps=1e-3) - overall
        return torch.where(self.counts > 0, shift, torch.zeros_like(shift)).float()

    def weights(self, shrinkage: float) -> Tensor:
        """(classes,) fp32: how much of the way to this text's value each class goes; zero for classes never seen."""
        return (self.counts / (self.counts + shrinkage).clamp_min(1e-12)).float()
