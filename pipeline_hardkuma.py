"""What `pipeline(task, model=folder, trust_remote_code=True)` gives: `token-gates`, the words of texts with their gates,
and `token-classification` (or `ner`), the same gates in the stock pipeline's format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Pipeline, PreTrainedTokenizerBase, TokenClassificationPipeline
from transformers.pipelines.token_classification import AggregationStrategy

from .checkpoint_hardkuma import HardKumaPreTrainedModel
from .configuration_hardkuma import ENTITIES
from .scoring_hardkuma import (
    ALL,
    GateModel,
    Record,
    ScoredText,
    Windows,
    WordTokens,
    check_count,
    check_options,
    check_selection,
    encodable,
    reads_shapes,
    score_texts,
    select_texts,
    window_overlap,
)
from .words_hardkuma import Span, SurfaceIndex, WordIndex, find_words

BATCH_SIZE = 32
# Batches that are read ahead from a stream, so that texts of like length can run together.
BATCHES_AHEAD = 16


class TokenGatesPipeline(Pipeline):
    """Words with character offsets, selection probability and decision, and spans of selected words.

    One text gives one record, a list gives a list, anything else that can be iterated over (a generator, a data set) gives
    a generator that reads only a little ahead. A record is what `ScoredText.select` returns. Options of the pipeline and of
    each call:

        rate: select this fraction of each text's words, the most probable ones, rounded up; in (0, 1]. The record's
            "rate" is what this comes to: 0.3 of 7 words are 3, a rate of 0.43.
        threshold: select words above this probability instead.
        keep: select the fewest words whose own embedding has at least this cosine with the text's; in (0, 1].
        phrases: with a rate or threshold, complete phrases, so that names stay whole (default: False).
        use_surface: apply the word-shape log-odds that the model holds (default: True).
        selector: the name of a selector (default: "meaning", or the first).
        batch_size: texts, or windows over long texts, per forward pass (default: 32); results do not depend on it.

    Of the pipeline alone:

        backend: what computes the gates in place of the model, such as `hardkuma.choose_backend(model, "onnx").gates`.

    >>> from hardkuma import HardKumaModel
    >>> pipe = TokenGatesPipeline(HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval(), rate=0.4)
    >>> record = pipe("Marie Curie moved to Paris.")
    >>> [word["word"] for word in record["words"]], len(pipe(["Rain again.", ""], rate=0.5))
    (['Marie', 'Curie', 'moved', 'to', 'Paris'], 2)
    """

    # transformers declares these as None where it means true or false.
    _load_tokenizer = True  # type: ignore[assignment]
    _load_processor = _load_image_processor = False  # type: ignore[assignment]
    _load_video_processor = _load_feature_extractor = False  # type: ignore[assignment]

    def __init__(
        self,
        model: HardKumaPreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        backend: GateModel | None = None,
        **options: Any,
    ):
        if tokenizer is not None:
            model.tokenizer = tokenizer
        if backend is not None and not hasattr(backend, "gate_batches"):
            raise ValueError(
                "backend must be what computes the gates, such as hardkuma.choose_backend(model, 'onnx').gates; "
                f"got {_described(backend)}."
            )
        # Inside of a token classifier is the same model.
        super().__init__(model=model._base(), tokenizer=cast(Any, model.tokenizer), **options)
        self.gate_model: GateModel = model._base() if backend is None else backend

    # Names of options are listed, so that a misspelt one is an error; the base class would take any.
    def _sanitize_parameters(
        self,
        rate: float | None = None,
        threshold: float | None = None,
        keep: float | None = None,
        phrases: bool | None = None,
        use_surface: bool | None = None,
        selector: str | None = None,
        **others: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        check_options("TokenGatesPipeline", others, self._sanitize_parameters)
        check_selection(rate, threshold, keep)
        if selector == ALL:
            raise ValueError(f"a pipeline goes by one selector; model.gate_records(texts, selector={ALL!r}) by all.")
        forward = {"use_surface": use_surface, "selector": selector}
        # The rate of a call replaces the pipeline's threshold and the other way round, so they go together.
        given = {"rate": rate, "threshold": threshold, "keep": keep}
        decision: dict[str, Any] = given if any(value is not None for value in given.values()) else {}
        if phrases is not None:
            decision["phrases"] = phrases
        return {}, {name: value for name, value in forward.items() if value is not None}, decision

    def __call__(  # type: ignore[override] # options have names here
        self, inputs: str | Iterable[str], *, batch_size: int | None = None, num_workers: int | None = None, **options: Any
    ) -> Record | list[Record] | Iterator[Record]:
        """Gates of one text or of many; see the class. `num_workers` is taken as by other pipelines, and of no use here."""
        own = BATCH_SIZE if self._batch_size is None else self._batch_size
        batch_size = own if batch_size is None else batch_size
        check_count("batch_size", batch_size)
        _, forward, decision = self._sanitize_parameters(**options)
        forward = {**self._forward_params, **forward, "batch_size": batch_size}
        decision = {**self._postprocess_params, **decision}
        if isinstance(inputs, str):
            return self.run_single(inputs, {}, forward, decision)[0]
        if isinstance(inputs, (list, tuple)):
            return self.run_single(inputs, {}, forward, decision)
        if hasattr(inputs, "columns"):
            raise ValueError(f"inputs must be texts, got a {type(inputs).__name__}; pass one of its columns.")
        if isinstance(inputs, (bytes, dict)) or (not hasattr(inputs, "__getitem__") and not isinstance(inputs, Iterable)):
            raise ValueError(f"inputs must be a text, or a list or stream of texts; got {_described(inputs)}.")
        return self._stream(_each(inputs), forward, decision, batch_size)

    def _stream(
        self, texts: Iterator[Any], forward: dict[str, Any], decision: dict[str, Any], batch_size: int
    ) -> Iterator[Record]:
        ahead, ended = batch_size, False  # the first records come soon
        while not ended:
            chunk: list[Any] = []
            failure = None
            try:
                while len(chunk) < ahead:
                    chunk.append(next(texts))
            except StopIteration:
                ended = True
            except Exception as error:
                ended, failure = True, error  # once what was read before it has been answered
            if chunk:
                yield from self.run_single(chunk, {}, forward, decision)
            if failure is not None:
                raise failure
            ahead = batch_size * BATCHES_AHEAD

    # Between its steps this pipeline hands on texts and their words, where others have tensors.
    def preprocess(self, input_: str | Iterable[str]) -> list[str]:  # type: ignore[override]
        """The texts as a list; anything that is not a text is refused."""
        texts = [input_] if isinstance(input_, str) else list(input_)
        for text in texts:
            if not isinstance(text, str):
                hint = "; for a column of a data set pass KeyDataset(dataset, 'text')" if isinstance(text, dict) else ""
                raise ValueError(f"inputs must be texts (str); got {_described(text)}{hint}.")
        return texts

    def _forward(self, input_tensors: list[str], **options: Any) -> list[ScoredText]:  # type: ignore[override]
        return score_texts(self.gate_model, input_tensors, **options)

    def postprocess(self, model_outputs: list[ScoredText], **decision: Any) -> list[Record]:  # type: ignore[override]
        """Decide as was asked for."""
        return select_texts(self.gate_model, model_outputs, **decision)


def _each(inputs: Any) -> Iterator[Any]:
    """The items of a stream, or of a data set that only has a length and items by number."""
    if not hasattr(inputs, "__iter__") and hasattr(inputs, "__len__"):
        return (inputs[i] for i in range(len(inputs)))
    return iter(inputs)


def _described(value: Any) -> str:
    return f"a {type(value).__name__}: {value!r:.60}"


# What the stock pipeline calls its ways to make a word of its tokens.
_OF_WORDS = {AggregationStrategy.FIRST: "first", AggregationStrategy.AVERAGE: "mean", AggregationStrategy.MAX: "max"}
# What goes past the model, from one step of the pipeline to the next.
_CARRIED = ("sentence", "words", "overlap", "offset_mapping", "special_tokens_mask", "is_last")


class GateClassificationPipeline(TokenClassificationPipeline):
    """The stock token-classification pipeline, with what it leaves out: word shapes, windows, the model's threshold, words.

    Calls, options and output are those of transformers' `TokenClassificationPipeline`. What differs:

    - The model sees how words are written (the surface view), from the text as it was given.
    - A text longer than the encoder takes runs in overlapping windows, whatever the strategy; nothing is cut. `stride` sets
      the overlap in tokens (default: a quarter of a window).
    - `ENTITY` is what exceeds the model's own threshold (or `threshold=`), not 1/2; "score" is the label's probability.
    - `first`, `average` and `max` take words as all other interfaces do (`find_words`, or those of `is_split_into_words`),
      each with the probability of its first token, the mean, or the largest as elsewhere: `max` selects what `token-gates`
      does with the same selector, if any word passes the threshold. What is outside of every word is `O`.
    - `none` and `simple` show tokens, punctuation too, each with its own gate.
    - The "word" of a group is the text from "start" to "end", as it is written there.

    Further options: `threshold`, `use_surface` and `selector`, as of `TokenGatesPipeline`, but of several selectors
    "entities" is the default (or the first).

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> pipe = GateClassificationPipeline(model, aggregation_strategy="max", threshold=0.0)
    >>> [(item["entity_group"], item["start"], item["end"]) for item in pipe("Marie Curie moved, to Paris.")]
    [('ENTITY', 0, 17), ('ENTITY', 19, 27)]
    """

    model: HardKumaPreTrainedModel
    tokenizer: PreTrainedTokenizerBase  # type: ignore[assignment] # never None here

    def __init__(self, model: HardKumaPreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, **options: Any):
        self.gate_model: GateModel = model._base()
        if tokenizer is not None:
            model.tokenizer = tokenizer
        if not model.tokenizer.is_fast:
            raise ValueError(f"{type(model.tokenizer).__name__} gives no character offsets; use a fast tokenizer.")
        super().__init__(model=model, tokenizer=cast(Any, model.tokenizer), **options)

    def check_model_type(self, supported_models: Any) -> None:
        """Ours is no class that transformers would list."""

    def _sanitize_parameters(  # type: ignore[override] # the base class's options are in `stock`
        self,
        threshold: float | None = None,
        use_surface: bool | None = None,
        selector: str | None = None,
        stride: int | None = None,
        **stock: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        check_selection(None, threshold)
        if stride is not None:
            longest = self.gate_model.max_length - self.tokenizer.num_special_tokens_to_add()
            if isinstance(stride, bool) or not isinstance(stride, int) or not 0 <= stride < longest:
                raise ValueError(f"stride must be a whole number in [0, {longest - 1}], got {stride!r}.")
        preprocess, forward, postprocess = super()._sanitize_parameters(**stock)
        # What a call does not name is left to the pipeline's own options.
        if use_surface is not None:
            preprocess["use_surface"] = use_surface
        if stride is not None:
            preprocess["overlap"] = stride
        if selector is not None:
            self.model.config.find_selector(selector)
            forward["selector"] = selector
        if threshold is not None:
            postprocess["threshold"] = threshold
        return preprocess, forward, postprocess

    def preprocess(  # type: ignore[override] # options have names here
        self,
        sentence: str | list[str],
        offset_mapping: list[list[Span]] | None = None,
        is_split_into_words: bool = False,
        delimiter: str = " ",
        use_surface: bool = True,
        overlap: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The windows of one text in its order, as the model takes them, each (1, length)."""
        text, words = _join(sentence, delimiter) if is_split_into_words else (_check_text(sentence), None)
        length = self.gate_model.max_length
        overlap = window_overlap(length) if overlap is None else overlap
        encoded = self.tokenizer(
            [encodable(text) if words is None else [encodable(word) for word in sentence]],
            is_split_into_words=is_split_into_words,
            truncation=True,
            max_length=length,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=True,
            return_special_tokens_mask=True,
        )
        own_words = find_words(text, self.model.config.language)
        surface = SurfaceIndex([text], [own_words]) if use_surface and reads_shapes(self.gate_model) else None
        spoken = own_words if words is None else [(start, end) for start, end in words if end > start]
        index = WordIndex([spoken], [len(text)])
        count = len(encoded["input_ids"])
        # A tokenizer that cuts on the left gives the last window first.
        order = range(count)[::-1] if self.tokenizer.truncation_side == "left" else range(count)
        for number in order:
            offsets = encoded["offset_mapping"][number]
            if words is not None:
                offsets = _move(offsets, encoded.word_ids(number), words)
            if offset_mapping is not None:
                offsets = _check_offsets(offset_mapping[0], len(offsets), count)
            names = [name for name in encoded if name not in ("offset_mapping", "overflow_to_sample_mapping")]
            window = {name: torch.tensor([encoded[name][number]]) for name in names}
            if not offsets:  # no text, and a tokenizer that adds nothing: one position that counts for nothing
                offsets = [(0, 0)]
                window = {name: torch.tensor([[int(name == "special_tokens_mask")]]) for name in names}
            spans = torch.tensor([list(offsets)])
            if surface is not None:
                window["surface_ids"] = surface.ids(torch.tensor([0]), *spans.unbind(-1))
            window["continues"] = index.continues(torch.tensor([0]), *spans.unbind(-1))
            carried = {"sentence": text, "words": words} if number == order[0] else {"sentence": None, "words": None}
            yield {
                **window,
                **carried,
                "overlap": overlap,
                "offset_mapping": spans,
                "is_last": number == order[-1],
            }

    def _forward(  # type: ignore[override] # transformers says ModelOutput, and returns dictionaries too
        self, model_inputs: dict[str, Any], selector: str | None = None
    ) -> dict[str, Any]:
        carried = {name: model_inputs.pop(name) for name in _CARRIED}
        config = self.model.config
        name = config.names[config.find_selector(selector, default=ENTITIES)]
        probs = next(self.gate_model.gate_batches([model_inputs], name))
        return {"probabilities": probs.float(), **carried, **model_inputs}

    def postprocess(  # type: ignore[override] # options have names here
        self,
        all_outputs: list[dict[str, Any]],
        aggregation_strategy: AggregationStrategy = AggregationStrategy.NONE,
        ignore_labels: list[str] | None = None,
        threshold: float | None = None,
    ) -> list[dict[str, Any]]:
        """The entities of one text, in the stock pipeline's format, from the outputs of its windows."""
        threshold = self.model.config.decision_threshold if threshold is None else threshold
        ignored = ["O"] if ignore_labels is None else ignore_labels
        text, words = all_outputs[0]["sentence"], all_outputs[0]["words"]
        language = self.model.config.language
        words = find_words(text, language) if words is None else [(start, end) for start, end in words if end > start]
        whole = _WholeText(all_outputs, text, words)
        units = self._tokens(whole)
        if aggregation_strategy in _OF_WORDS:
            units = _word_units(whole, units, _OF_WORDS[aggregation_strategy])
        entities = [self._decide(unit, threshold) for unit in units]
        if aggregation_strategy != AggregationStrategy.NONE:
            entities = _grouped(entities, text)
        return [item for item in entities if item.get("entity", item.get("entity_group")) not in ignored]

    def _tokens(self, whole: _WholeText) -> list[dict[str, Any]]:
        """Tokens of the whole text, as the stock pipeline describes them."""
        special, scores = torch.zeros(len(whole.ids)), _label_scores(whole.values)
        strategy = AggregationStrategy.NONE
        units = self.gather_pre_entities(
            whole.text, whole.ids.numpy(), scores, whole.offsets.tolist(), special.numpy(), strategy
        )
        return [{**unit, "index": unit["index"] + whole.lead} for unit in units]

    def _decide(self, unit: dict[str, Any], threshold: float) -> dict[str, Any]:
        label = int(float(unit["scores"][1]) > threshold)
        names: Mapping[Any, str] = self.model.config.id2label or {}
        entity = {"entity": names[label], "score": unit["scores"][label]}
        return entity | {name: unit[name] for name in ("index", "word", "start", "end") if name in unit}


def _word_units(whole: _WholeText, tokens: list[dict[str, Any]], aggregate: str) -> list[dict[str, Any]]:
    """Words, and the tokens of no word, which are never selected, in the text's order."""
    spans = whole.offsets[None]
    _, words_touched = whole.index.touched(torch.tensor([0]), spans[..., 0], spans[..., 1])
    never = _label_scores(torch.zeros(1))[0]
    outside = [token for token, number in zip(tokens, words_touched[0].tolist(), strict=True) if number == 0]
    units = [{"scores": never, "start": token["start"], "end": token["end"]} for token in outside]
    scores = _label_scores(whole.word_values(aggregate))
    units += [
        {"scores": value, "start": start, "end": end} for (start, end), value in zip(whole.words, scores, strict=True)
    ]
    return sorted(units, key=lambda unit: (unit["start"], unit["end"]))


def _grouped(entities: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Neighbours of one label as one entity each, spelled as in the text; the stock pipeline would join their tokens."""
    groups = []
    for label, neighbours in groupby(entities, key=lambda entity: entity["entity"]):
        members = list(neighbours)
        start, end = members[0]["start"], members[-1]["end"]
        score = sum(member["score"] for member in members) / len(members)
        groups.append({"entity_group": label, "score": score, "word": text[start:end], "start": start, "end": end})
    return groups


class JoinedTokens:
    """The tokens of one text that lies in several windows, each once and in order; special tokens left out.

    A token takes its value from the window that its word takes it from; a token of no word, from the one in which it stands
    furthest from an edge itself.

    Args:
        windows: of one text, in its order.
        content: (tokens,) bool, false for special tokens.
        overlap: how many content tokens two neighbouring windows share.
        members: the words of the text.

    Attributes:
        firsts: (joined,) the number of each token in `windows`, where it comes first.

    >>> windows = Windows(torch.tensor([0, 0]), torch.tensor([3, 3]), *torch.arange(12).view(2, 6), inputs={})
    >>> members = WordTokens(windows, WordIndex([[]], [12]))
    >>> joined = JoinedTokens(windows, torch.ones(6, dtype=torch.bool), 1, members)
    >>> joined.firsts, joined.values(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    (tensor([0, 1, 2, 4, 5]), tensor([0.1000, 0.2000, 0.4000, 0.5000, 0.6000]))
    """

    def __init__(self, windows: Windows, content: Tensor, overlap: int, members: WordTokens):
        tokens = content.nonzero()[:, 0]
        window = windows.numbers[tokens]
        counts = torch.bincount(window, minlength=len(windows.lengths))
        # What comes before a window: with and without what it repeats of the windows before.
        before, new = counts.cumsum(0) - counts, (counts - overlap).cumsum(0) - (counts - overlap)
        number = new[window] + torch.arange(len(tokens)) - before[window]
        size = int(number.max()) + 1 if len(number) else 0
        self.firsts = tokens.new_full((size,), len(content)).scatter_reduce_(0, number, tokens, "amin")
        margins = windows.margins[tokens]
        widest = margins.new_full((size,), -1).scatter_reduce_(0, number, margins, "amax")
        counting = torch.where(members.touching[tokens], members.counting[tokens], margins == widest[number])
        self._tokens, self._numbers = tokens[counting], number[counting]

    def values(self, token_values: Tensor) -> Tensor:
        """(joined,) values from those of all tokens of all windows, (tokens,); in a tie the largest."""
        of_joined = token_values.new_zeros(len(self.firsts))
        return of_joined.scatter_reduce_(0, self._numbers, token_values[self._tokens], "amax")


class _WholeText:
    """What the windows of one text gave, put together.

    Attributes:
        words, index: of the text.
        ids, offsets, values: (tokens,), (tokens, 2), (tokens,) ids, characters and probabilities; special tokens left out.
        lead: how many special tokens come before the text.
    """

    def __init__(self, outputs: list[dict[str, Any]], text: str, words: list[Span]):
        self.text, self.words, self.index = text, words, WordIndex([words], [len(text)])
        # Rows may be padded, on either side, if windows ran together.
        inside = [output["attention_mask"][0].bool() for output in outputs]

        def flat(name: str) -> Tensor:
            return torch.cat([output[name][0][kept] for output, kept in zip(outputs, inside, strict=True)])

        offsets, content, ids = flat("offset_mapping"), flat("special_tokens_mask") == 0, flat("input_ids")
        lengths = torch.tensor([int(kept.sum()) for kept in inside])
        windows = Windows(torch.zeros_like(lengths), lengths, offsets[:, 0], offsets[:, 1], inputs={})
        self._probabilities, self._members = flat("probabilities"), WordTokens(windows, self.index)
        joined = JoinedTokens(windows, content, outputs[0]["overlap"], self._members)
        self.ids, self.offsets = ids[joined.firsts], offsets[joined.firsts]
        self.values, self.lead = joined.values(self._probabilities), int(joined.firsts[0]) if len(joined.firsts) else 0

    def word_values(self, aggregate: str) -> Tensor:
        """(words,) probabilities of the words."""
        return self._members.values(self._probabilities, aggregate)


def _label_scores(probabilities: Tensor) -> Any:
    """(n,) -> array (n, 2) of the probabilities of `O` and `ENTITY`."""
    return torch.stack([1 - probabilities, probabilities], dim=-1).numpy()


def _check_text(sentence: Any) -> str:
    if not isinstance(sentence, str):
        raise ValueError(f"inputs must be texts (str); got {_described(sentence)}; lists need is_split_into_words=True.")
    return sentence


def _join(words: Any, delimiter: str) -> tuple[str, list[Span]]:
    """The text of words that were given one by one, and where they are in it."""
    if not isinstance(words, list):
        raise ValueError(f"with is_split_into_words=True inputs must be lists of words; got {_described(words)}.")
    ends = list(accumulate(len(word) + len(delimiter) for word in words))
    starts = [0, *ends[:-1]]
    return delimiter.join(words), [(start, start + len(word)) for start, word in zip(starts, words, strict=False)]


def _move(offsets: Sequence[Span], owners: Sequence[int | None], words: Sequence[Span]) -> list[Span]:
    """Offsets inside of words as offsets in their text."""
    shifts = [0 if owner is None else words[owner][0] for owner in owners]
    return [(start + shift, end + shift) for (start, end), shift in zip(offsets, shifts, strict=True)]


def _check_offsets(given: Sequence[Span], tokens: int, windows: int) -> list[Span]:
    if windows > 1 or len(given) != tokens:
        raise ValueError(
            f"offset_mapping has {len(given)} entries, for a text of {tokens} tokens in {windows} windows; give one for "
            "each token of a text that fits into one window, or leave it out."
        )
    return [(int(start), int(end)) for start, end in given]
