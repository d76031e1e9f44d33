"""`pipeline("token-gates", model=folder, trust_remote_code=True)`: the words of texts with their gates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from transformers import Pipeline, PreTrainedModel, PreTrainedTokenizerBase

from .words_hardkuma import Record, ScoredText, check_count, check_selection, score_texts

BATCH_SIZE = 32
# Batches that are read ahead from a stream, so that texts of like length can run together.
BATCHES_AHEAD = 16


class TokenGatesPipeline(Pipeline):
    """Words with character offsets, selection probability and decision, and spans of selected words.

    One text gives one record, a list gives a list, anything else that can be iterated over (a generator, a data set) gives
    a generator that reads only a little ahead. A record is what `ScoredText.select` returns. Options of the pipeline and of
    each call:

        rate: select this fraction of each text's words, the most probable ones; in (0, 1].
        threshold: select words above this probability instead. By default the model's own.
        use_surface: apply the word-shape log-odds that the model holds (default: True).
        selector: which selector, where there are several (default: 0).
        batch_size: texts, or windows over long texts, per forward pass (default: 32); results do not depend on it.

    >>> from hardkuma import HardKumaModel
    >>> pipe = TokenGatesPipeline(HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval(), rate=0.4)
    >>> record = pipe("Marie Curie moved to Paris.")
    >>> [word["word"] for word in record["words"]], len(pipe(["Rain again.", ""], rate=0.5))
    (['Marie', 'Curie', 'moved', 'to', 'Paris'], 2)
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, **options: Any):
        # Inside of a token classifier is the same model.
        model = model._base()
        if tokenizer is not None:
            model.tokenizer = tokenizer
        super().__init__(model=model, tokenizer=model.tokenizer, **options)

    def _sanitize_parameters(
        self,
        rate: float | None = None,
        threshold: float | None = None,
        use_surface: bool | None = None,
        selector: int | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        check_selection(rate, threshold)
        forward = {"use_surface": use_surface, "selector": selector}
        # The rate of a call replaces the pipeline's threshold and the other way round, so they go together.
        decision = {} if rate is None and threshold is None else {"rate": rate, "threshold": threshold}
        return {}, {name: value for name, value in forward.items() if value is not None}, decision

    def __call__(
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

    def preprocess(self, input_: str | Iterable[str]) -> list[str]:
        """The texts as a list; anything that is not a text is refused."""
        texts = [input_] if isinstance(input_, str) else list(input_)
        for text in texts:
            if not isinstance(text, str):
                hint = "; for a column of a data set pass KeyDataset(dataset, 'text')" if isinstance(text, dict) else ""
                raise ValueError(f"inputs must be texts (str); got {_described(text)}{hint}.")
        return texts

    def _forward(self, input_tensors: list[str], **options: Any) -> list[ScoredText]:
        return score_texts(self.model, input_tensors, **options)

    def postprocess(self, model_outputs: list[ScoredText], **decision: Any) -> list[Record]:
        """Decide at the rate or threshold that was asked for."""
        return [scored.select(**decision) for scored in model_outputs]


def _each(inputs: Any) -> Iterator[Any]:
    """The items of a stream, or of a data set that only has a length and items by number."""
    if not hasattr(inputs, "__iter__") and hasattr(inputs, "__len__"):
        return (inputs[i] for i in range(len(inputs)))
    return iter(inputs)


def _described(value: Any) -> str:
    return f"a {type(value).__name__}: {value!r:.60}"
