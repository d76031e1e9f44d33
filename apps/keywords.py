"""Key phrases by the calls that users of KeyBERT and BERTopic know; what they give is that of `stream_terms`.

from hardkuma import KeyphraseExtractor                            # from keybert import KeyBERT
model = KeyphraseExtractor()                                       # KeyBERT()
model.extract_keywords(document, top_n=10)                         # the same call

BERTopic(representation_model=[KeyphraseExtractor()])              # phrases of the documents of each topic
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..common.models import load_model
from ..scoring_hardkuma import GateModel, check_count, check_options, safe_text
from .candidates import fold_words
from .terms import MAX_WORDS, Record, find_terms, stream_terms

Keywords = list[tuple[str, float]]
ALL_PHRASES = 1 << 20

# What KeyBERT takes and we do not need, by name: what to do instead.
_OTHER = {
    "min_df": "count the `find_terms` of all documents instead",
    "vectorizer": "give phrases by candidates=",
    "seed_keywords": "phrases are ranked by the document alone",
    "doc_embeddings": "the document is read in the same pass",
    "word_embeddings": "the document is read in the same pass",
}


class KeyphraseExtractor:
    """Key phrases with KeyBERT's call, one pass of the encoder a document.

    Args:
        model: a checkpoint folder or Hub id, or a model; by default the released gate head.
        batch_size: as in `score_texts`.

    >>> keywords = KeyphraseExtractor().extract_keywords("The kraken is a sea monster.", top_n=2)
    >>> [phrase for phrase, _ in keywords]
    ['kraken', 'sea monster']
    """

    def __init__(self, model: str | GateModel | None = None, *, batch_size: int = 32):
        self.model = load_model(model) if model is None or isinstance(model, str) else model
        self.batch_size = batch_size

    def extract_keywords(
        self,
        docs: str | Iterable[str],
        candidates: Any = None,
        keyphrase_ngram_range: tuple[int, int] = (1, MAX_WORDS),
        stop_words: str | Sequence[str] | None = "english",
        top_n: int = 5,
        use_maxsum: bool = False,
        use_mmr: bool = False,
        diversity: float = 0.5,
        nr_candidates: int = 20,
        highlight: bool = False,
        threshold: float | None = None,
        **others: Any,
    ) -> Keywords | list[Keywords]:
        """(phrase, score) of a document, the best first; of several documents a list of these. The score is that of
        `find_terms`, which grows with the words of a phrase and may exceed 1; it is no cosine, as KeyBERT's is.

        Args:
            docs: a document, or several.
            candidates: strings for all documents, as in KeyBERT; or what `find_terms` takes: a spaCy document, or a list of
                spans or (start, end), of one document; a list of these of several.
            keyphrase_ngram_range: the fewest and the most words of a phrase; a longer one is left out, not shortened.
            stop_words: further words that no phrase holds. English function words never do.
            top_n: how many phrases, at most.
            use_mmr: phrases that are unlike each other, by `diversity`; later ones may have low scores. `use_maxsum` does
                the same; `nr_candidates` and `threshold` (which KeyBERT has for its language models) are of no account.
            highlight: print the document with its phrases, in brackets.
        """
        check_options("extract_keywords", [name for name in others if name not in _OTHER], self.extract_keywords)
        for name, value in others.items():
            if value is not None and (name, value) != ("min_df", 1):
                raise ValueError(f"{name} is KeyBERT's, and not needed here: {_OTHER[name]}; leave it out.")
        fewest, most = keyphrase_ngram_range
        check_count("the first of keyphrase_ngram_range", fewest)
        if most < fewest:
            raise ValueError(f"keyphrase_ngram_range must be (fewest, most) words, got {tuple(keyphrase_ngram_range)}.")
        check_count("top_n", top_n)
        texts = [docs] if isinstance(docs, str) else list(docs)
        unwanted = set() if stop_words is None or isinstance(stop_words, str) else {fold_words(word) for word in stop_words}
        rows = stream_terms(
            self.model,
            texts,
            top_n if fewest == 1 and not unwanted else ALL_PHRASES,
            candidates=_for_each(candidates, len(texts), isinstance(docs, str)),
            max_words=most,
            diversity=diversity if use_mmr or use_maxsum else 0.0,
            batch_size=self.batch_size,
        )
        results: list[Keywords] = []
        for text, terms in zip(texts, rows, strict=True):
            kept = [term for term in terms if _is_wanted(fold_words(term["text"]), fewest, unwanted)][:top_n]
            if highlight:
                print(safe_text(_bracketed(text, kept)))
            results.append([(term["text"], term["score"]) for term in kept])
        return results[0] if isinstance(docs, str) else results

    def extract_topics(
        self, topic_model: Any, documents: Any, c_tf_idf: Any, topics: Mapping[Any, Keywords]
    ) -> dict[Any, Keywords]:
        """BERTopic's representation of topics: the key phrases of each topic's documents.

        Args:
            topic_model: a BERTopic model; its `top_n_words` says how many phrases a topic has.
            documents: a data frame with columns Document and Topic.
            c_tf_idf: not looked at.
            topics: words and weights of each topic, which stay where its documents have no phrase.
        """
        number = getattr(topic_model, "top_n_words", 10)
        by_topic: dict[Any, list[str]] = {label: [] for label in topics}
        for text, label in zip(documents["Document"], documents["Topic"], strict=True):
            if label in by_topic:
                by_topic[label].append(str(text))
        found = {
            label: find_terms(self.model, texts, number, batch_size=self.batch_size) for label, texts in by_topic.items()
        }
        return {
            label: [(term["text"], term["score"]) for term in terms] or list(topics[label][:number])
            for label, terms in found.items()
        }


def _for_each(candidates: Any, number: int, single: bool) -> list[Any] | None:
    """Candidates of each document."""
    if candidates is None:
        return None
    if isinstance(candidates, Sequence) and all(isinstance(item, str) for item in candidates):
        return [candidates] * number
    return [candidates] if single else list(candidates)


def _is_wanted(key: tuple[str, ...], fewest: int, unwanted: set[tuple[str, ...]]) -> bool:
    return len(key) >= fewest and not any((word,) in unwanted for word in key)


def _bracketed(text: str, terms: Sequence[Record]) -> str:
    """The text with brackets around its phrases, the longest of those that overlap."""
    places = sorted({(place["start"], -place["end"]) for term in terms for place in term["places"]})
    result, last = [], 0
    for start, negative in places:
        if start >= last:
            result += [text[last:start], "[", text[start:-negative], "]"]
            last = -negative
    return "".join([*result, text[last:]])
