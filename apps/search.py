"""Search with reasons: an index of passages by the encoder's own embeddings, in memory or in a folder; passages of files.

    INDEX/index.json        what it is: format, encoder, counts, digests
    INDEX/passages.jsonl    a passage a line: text, source, row
    INDEX/vectors.npy       their unit vectors, fp32
    INDEX/vectors.faiss     from 50,000 passages on, where faiss is installed: a graph for approximate search (HNSW)

Nothing in it is executed when it is read (no pickle). A folder that was changed or made with another encoder is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint_hardkuma import staged
from ..common.packages import available, require
from ..common.text import STANDARD_INPUT
from ..data.cleaning import count_words
from ..data.readers import read_rows
from ..data.sentences import split_sentences
from ..scoring_hardkuma import check_count, encodable
from .pairs import explain_pairs
from .reading import AnchorModel, embed_anchors

FORMAT = "hardkuma-index-1"
RECORD, PASSAGES, VECTORS, GRAPH = "index.json", "passages.jsonl", "vectors.npy", "vectors.faiss"
EXACT_LIMIT = 50_000
CHUNK = 1024
# Encoders see the beginning of a text alone; this much they see whole.
MAX_WORDS = 100
# Of the graph: neighbours of a passage, and candidates looked at while building and searching.
NEIGHBOURS, BUILD_WIDTH, SEARCH_WIDTH = 32, 100, 128


@dataclass(frozen=True)
class Passage:
    """A text, the name of the file that it comes from, and its row there, from 1."""

    text: str
    source: str = ""
    row: int = 0


@dataclass(frozen=True, repr=False)
class Match:
    """A passage that was found.

    Attributes:
        passage: itself.
        similarity: the cosine of question and passage.
        pair: what `explain_pair(question, passage)` gives, with the passage as "b"; None where it was not asked for.
    """

    passage: Passage
    similarity: float
    pair: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """
        >>> Match(Passage("Rain fell."), 0.5)
        Match(0.500, 'Rain fell.', words=[])
        """
        text = self.passage.text
        return f"Match({self.similarity:.3f}, {text if len(text) <= 60 else text[:59] + '…'!r}, words={self.words})"

    @property
    def words(self) -> list[str]:
        """The words of the passage that carry the match, in reading order; none where it is not explained.

        >>> Match(Passage("Rain fell."), 0.5).words
        []
        """
        if self.pair is None or not self.pair["explained"]:
            return []
        return [word["word"] for word in self.pair["b"]["words"] if word["carries"]]


class SearchIndex:
    """Passages with their vectors.

    >>> from hardkuma import load_released
    >>> model, _ = load_released()
    >>> index = SearchIndex.build(model, ["Rain fell all night.", "He sold his old car.", "She sings in a choir."])
    >>> best = index.search(model, "What was the weather like?", number=1)[0]
    >>> best.passage.text
    'Rain fell all night.'
    """

    def __init__(self, passages: Sequence[Passage], vectors: np.ndarray, encoder: str, graph: Any = None):
        self.passages, self.vectors, self.encoder, self._graph = passages, vectors, encoder, graph

    @classmethod
    def build(cls, model: AnchorModel, passages: Iterable[Passage | str], batch_size: int = 32) -> SearchIndex:
        """Encode passages; those that are the same text are kept, each with its source.

        Args:
            model: a HardKumaModel in eval mode, with its tokenizer.
            passages: texts, or texts with their sources (`read_passages`).
            batch_size: texts per forward pass.
        """
        check_count("batch_size", batch_size)
        if isinstance(passages, str):
            raise ValueError("passages must be a list of texts, got one string; wrap it: [text].")
        kept: list[Passage] = []
        parts: list[np.ndarray] = []
        for chunk in _chunks(_as_passage(item) for item in passages):
            kept += chunk
            parts.append(embed_anchors(model, [passage.text for passage in chunk], batch_size).numpy())
        if not kept:
            raise ValueError("there is no passage to index: give at least one text.")
        vectors = np.concatenate(parts)
        return cls(kept, vectors, model.encoder_fingerprint(), _make_graph(vectors))

    def search(
        self, model: AnchorModel, question: str, number: int = 5, *, explain: bool = True, **options: Any
    ) -> list[Match]:
        """The passages nearest to a question, nearest first.

        Args:
            model: with the encoder that the index was made with.
            question: any text.
            number: how many passages, at most.
            explain: say which words carry each match.
            options: of `explain_pair`.
        """
        check_count("number", number)
        if not isinstance(question, str):
            raise ValueError(f"question must be a text (str), got a {type(question).__name__}: {question!r:.60}.")
        self._check_encoder(model)
        vector = embed_anchors(model, [question]).numpy()
        number = min(number, len(self.passages))
        if self._graph is not None:
            similarities, rows = (values[0] for values in self._graph.search(vector, number))
        else:
            cosines = self.vectors @ vector[0]
            rows = np.argsort(-cosines, kind="stable")[:number]
            similarities = cosines[rows]
        passages = [self.passages[row] for row in rows.tolist()]
        pairs: Sequence[dict[str, Any] | None] = [None] * number
        if explain:
            pairs = explain_pairs(model, [(question, passage.text) for passage in passages], **options)
        cosines = np.clip(similarities, -1.0, 1.0).tolist()  # unit vectors are so but for rounding
        return [Match(*match) for match in zip(passages, cosines, pairs, strict=True)]

    def save(self, folder: str | Path) -> None:
        """Write the folder, whole; an index that is there already is replaced, anything else is not."""
        target = check_target(folder)
        with staged(target) as stage:
            lines = (json.dumps(asdict(passage), ensure_ascii=False) + "\n" for passage in self.passages)
            (stage / PASSAGES).write_text("".join(lines), encoding="utf-8", errors="surrogatepass")
            np.save(stage / VECTORS, self.vectors, allow_pickle=False)
            if self._graph is not None:
                require("faiss", "search").write_index(self._graph, str(stage / GRAPH))
            names = [PASSAGES, VECTORS, *([GRAPH] if self._graph is not None else [])]
            record = {
                "format": FORMAT,
                "encoder": self.encoder,
                "passages": len(self.passages),
                "dimension": int(self.vectors.shape[1]),
                "digests": {name: _digest(stage / name) for name in names},
            }
            (stage / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        if self._graph is None:
            (target / GRAPH).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | Path) -> SearchIndex:
        """Read a folder that `save` has written; ValueError where it is damaged or no index at all."""
        root = Path(folder)
        if root.is_file():
            raise NotADirectoryError(
                f"{root} is a file, not an index; make one of it: hardkuma search INDEX --build {root}"
            )
        if not (root / RECORD).is_file():
            raise FileNotFoundError(f"{root} is no index (no {RECORD}); make one with: hardkuma search {root} --build FILE")
        fix = "make it again with: hardkuma search INDEX --build FILE"
        try:
            record = json.loads((root / RECORD).read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError(f"its format is {record['format']!r}, not {FORMAT!r}")
            digests = record["digests"]
            if not {PASSAGES, VECTORS} <= set(digests) <= {PASSAGES, VECTORS, GRAPH} or not isinstance(
                record["encoder"], str
            ):
                raise ValueError(f"{RECORD} does not name the files and the encoder of an index")
            for name, digest in digests.items():
                if _digest(root / name) != digest:
                    raise ValueError(f"{name} is not what was written")
            vectors = np.load(root / VECTORS, mmap_mode="r", allow_pickle=False)
            text = (root / PASSAGES).read_text(encoding="utf-8", errors="surrogatepass")
            passages = [_read_passage(line) for line in text.split("\n") if line]
            if (
                vectors.dtype != np.float32
                or vectors.shape != (len(passages), record["dimension"])
                or len(passages) != record["passages"]
            ):
                raise ValueError(f"{len(passages)} passages and vectors of shape {vectors.shape} do not belong together")
            graph = None
            if GRAPH in digests and available("faiss"):
                graph = require("faiss", "search").read_index(str(root / GRAPH))
                if (graph.ntotal, graph.d) != vectors.shape:
                    raise ValueError(f"{GRAPH} holds {graph.ntotal} vectors of {graph.d} numbers, not those of {VECTORS}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError) as error:
            raise ValueError(f"the index {root} cannot be used ({error}); {fix}") from error
        return cls(passages, vectors, record["encoder"], graph)

    def _check_encoder(self, model: AnchorModel) -> None:
        own = model.encoder_fingerprint()
        if self.encoder != own:
            raise ValueError(
                f"the index was made with an encoder whose fingerprint is {self.encoder}, and this model's is {own}; "
                "search with the same --model, or make the index again."
            )


def read_passages(
    paths: Iterable[str | os.PathLike[str]], format: str | None = None, column: str | None = None
) -> Iterator[Passage]:
    """Every row of the files that has text, in order; a row of more than 100 words is cut between sentences.

    Half of a surrogate pair, which JSON and names of files can hold and no UTF-8 stream, becomes U+FFFD.

    >>> import tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "two.txt")
    >>> _ = open(name, "w").write("Rain fell.\\n\\nIt was cold.\\n")
    >>> [(passage.text, passage.source, passage.row) for passage in read_passages([name])]
    [('Rain fell.', 'two.txt', 1), ('It was cold.', 'two.txt', 3)]
    """
    for path in paths:
        source = "standard input" if os.fspath(path) == STANDARD_INPUT else Path(path).name
        for row, text in enumerate(read_rows(path, format, column), start=1):
            for piece in cut_passage(encodable(text)):
                yield Passage(piece, encodable(source), row)


def cut_passage(text: str, max_words: int = MAX_WORDS) -> list[str]:
    """Pieces of at most `max_words` words, cut between sentences (a longer sentence stays whole); [] for a blank text.

    >>> cut_passage("It rained. It was cold. We stayed.", max_words=5)
    ['It rained. It was cold.', 'We stayed.']
    """
    if count_words(text) <= max_words:
        return [text.strip()] if text.strip() else []
    pieces: list[str] = []
    size = max_words
    for sentence in split_sentences(text):
        words = count_words(sentence)
        if size + words > max_words:
            pieces.append(sentence)
            size = words
        else:
            pieces[-1] += f" {sentence}"
            size += words
    return pieces


def check_target(folder: str | Path) -> Path:
    """The folder, if an index may be written there: it is not there yet, is empty, or holds one.

    >>> check_target(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileExistsError: ...search.py is not an index (no index.json in it); give another folder.
    """
    target = Path(folder)
    if target.exists() and not (target / RECORD).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} is not an index (no {RECORD} in it); give another folder.")
    return target


def _as_passage(item: Passage | str) -> Passage:
    if isinstance(item, Passage):
        return item
    if not isinstance(item, str):
        raise ValueError(f"passages must be texts or Passage, got a {type(item).__name__}: {item!r:.60}.")
    return Passage(item)


def _read_passage(line: str) -> Passage:
    passage = Passage(**json.loads(line))
    if not isinstance(passage.text, str) or not isinstance(passage.source, str) or type(passage.row) is not int:
        raise ValueError(f"a passage is not a text, the name of its source and the number of its row: {line[:60]!r}")
    return passage


def _chunks(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    rest = iter(passages)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _make_graph(vectors: np.ndarray) -> Any:
    """A graph for approximate search, from EXACT_LIMIT vectors on and where faiss is installed; None: the plain matrix."""
    if len(vectors) < EXACT_LIMIT or not available("faiss"):
        return None
    faiss = require("faiss", "search")
    graph = faiss.IndexHNSWFlat(vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = BUILD_WIDTH, SEARCH_WIDTH
    graph.add(vectors)
    return graph


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
