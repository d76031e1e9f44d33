"""KeyBERT's call and BERTopic's: the same scripts with another import and class."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from hardkuma import KeyphraseExtractor, find_terms, stream_terms
from hardkuma.common.models import load_released

DOCUMENT = "Supervised learning is the machine learning task of learning a function from labelled training data."
OTHER = "The ferry to the island was cancelled because of heavy fog."
SCRIPT = """
from keybert import KeyBERT
kw_model = KeyBERT()
keywords = kw_model.extract_keywords(doc, keyphrase_ngram_range=(1, 2), stop_words=None)
several = kw_model.extract_keywords([doc, doc], stop_words="english", use_mmr=True, diversity=0.7, top_n=2)
none = kw_model.extract_keywords("", top_n=10)
"""


@pytest.fixture(scope="module")
def extractor() -> KeyphraseExtractor:
    return KeyphraseExtractor(load_released()[0])


def test_the_script_of_a_keybert_user() -> None:
    ours = SCRIPT.replace("from keybert import KeyBERT", "from hardkuma import KeyphraseExtractor").replace(
        "KeyBERT()", "KeyphraseExtractor()"
    )
    names: dict[str, object] = {"doc": DOCUMENT}
    exec(ours, names)
    keywords, several = names["keywords"], names["several"]
    assert isinstance(keywords, list) and 0 < len(keywords) <= 5
    assert all(isinstance(phrase, str) and isinstance(score, float) for phrase, score in keywords)
    assert all(len(phrase.split()) <= 2 for phrase, _ in keywords)
    assert [score for _, score in keywords] == sorted((score for _, score in keywords), reverse=True)
    assert isinstance(several, list) and len(several) == 2 and len(several[0]) == 2
    for (phrase, score), (other, again) in zip(*several, strict=True):  # a batch moves the seventh digit
        assert phrase == other and score == pytest.approx(again, abs=1e-5)
    assert names["none"] == []


def rounded(keywords: object) -> list[tuple[str, float]]:
    """Scores depend on the batch in the seventh digit."""
    assert isinstance(keywords, list)
    return [(phrase, round(score, 4)) for phrase, score in keywords]


def test_phrases_are_those_of_find_terms(extractor: KeyphraseExtractor) -> None:
    rows = stream_terms(extractor.model, [DOCUMENT, OTHER], 10)
    expected = [rounded([(term["text"], term["score"]) for term in row]) for row in rows]
    assert [rounded(row) for row in extractor.extract_keywords([DOCUMENT, OTHER], top_n=10)] == expected
    assert [rounded(row) for row in extractor.extract_keywords(iter([DOCUMENT]), top_n=10)] == expected[:1]
    assert extractor.extract_keywords([]) == []
    longer = extractor.extract_keywords(DOCUMENT, keyphrase_ngram_range=(2, 3), top_n=10)
    assert rounded(longer) == [pair for pair in expected[0] if len(pair[0].split()) in (2, 3)] != []
    without = extractor.extract_keywords(DOCUMENT, stop_words=["Learning"], top_n=10)
    assert rounded(without) == [pair for pair in expected[0] if "learning" not in pair[0].lower().split()] != expected[0]
    given = extractor.extract_keywords([DOCUMENT, OTHER], candidates=["training data", "fog"])
    assert [[phrase for phrase, _ in row] for row in given] == [["training data"], ["fog"]]
    start = OTHER.index("island")
    assert [p for p, _ in extractor.extract_keywords(OTHER, candidates=[(start, start + 6)])] == ["island"]


def test_highlight_and_what_is_not_ours(extractor: KeyphraseExtractor, capsys: pytest.CaptureFixture[str]) -> None:
    extractor.extract_keywords("\x1b[31mThe ferry sank.", candidates=["ferry"], highlight=True)
    shown = capsys.readouterr().out
    assert "[ferry]" in shown and "\x1b" not in shown
    assert extractor.extract_keywords(OTHER, min_df=1, vectorizer=None) == extractor.extract_keywords(OTHER)
    with pytest.raises(ValueError, match="seed_keywords is KeyBERT's"):
        extractor.extract_keywords(OTHER, seed_keywords=["fog"])
    with pytest.raises(TypeError, match=r"^extract_keywords\(\) has no option 'topn'; did you mean top_n\?$"):
        extractor.extract_keywords(OTHER, topn=3)
    with pytest.raises(ValueError, match=r"must be \(fewest, most\) words, got \(2, 1\)"):
        extractor.extract_keywords(OTHER, keyphrase_ngram_range=(2, 1))
    with pytest.raises(ValueError, match="top_n must be a whole number >= 1, got 0"):
        extractor.extract_keywords(OTHER, top_n=0)


def test_topics_get_the_phrases_of_their_documents(extractor: KeyphraseExtractor) -> None:
    """By BERTopic's own call, with the columns that its data frame has."""
    documents = {"Document": [DOCUMENT, OTHER, DOCUMENT, "!"], "Topic": [0, 1, 0, 2]}
    given = {0: [("learning", 0.1)], 1: [("ferry", 0.1)], 2: [("mark", 0.2), ("x", 0.1)]}
    model = ModuleType("a topic model")
    model.top_n_words = 3
    topics = extractor.extract_topics(model, documents, None, given)
    expected = find_terms(extractor.model, [DOCUMENT, DOCUMENT], 3)
    assert rounded(topics[0]) == rounded([(term["text"], term["score"]) for term in expected]) and len(topics[1]) == 3
    assert topics[2] == given[2], "where there is no phrase, the words stay"


def test_bertopic_takes_it(extractor: KeyphraseExtractor) -> None:
    pytest.importorskip("bertopic")
    from bertopic import BERTopic
    from bertopic.backend import BaseEmbedder
    from bertopic.cluster import BaseCluster
    from bertopic.dimensionality import BaseDimensionalityReduction

    documents, labels = [DOCUMENT, OTHER] * 4, [0, 1] * 4
    topic_model = BERTopic(
        embedding_model=BaseEmbedder(),
        umap_model=BaseDimensionalityReduction(),
        hdbscan_model=BaseCluster(),
        representation_model=[extractor],
    ).fit(documents, y=labels)
    words = {word for topic in set(topic_model.topics_) for word, _ in topic_model.get_topic(topic)}
    assert any("ferry" in word for word in words) and any(len(word.split()) > 1 for word in words)
    assert "bertopic" in sys.modules
