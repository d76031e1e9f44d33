"""Custom handler for Inference Endpoints: the gates of one text or many.

    {"inputs": "Marie Curie moved to Paris.", "parameters": {"rate": 0.2}}      -> one record
    {"inputs": ["a text", "another"], "parameters": {"threshold": 0.5}}         -> a list of records
    {"inputs": "a text", "parameters": {"selector": "entities"}}                -> a record of that selector, by its name

Records are those of the pipeline `token-gates`. The endpoint's server answers any exception with status 400 and
{"error": message}; every message here says what was wrong with the request, and the exception has the `status` that fits.
Environment variables bound a request: HARDKUMA_MAX_CHARACTERS (of one text, 20000), HARDKUMA_MAX_TEXTS (of one request,
128), HARDKUMA_MAX_TOKENS (of all its texts, 16384) and HARDKUMA_MAX_SECONDS (from its coming to its answer, 60). Requests
are answered one by one, in the order of their coming; HARDKUMA_MAX_WAITING of them wait (32), and others are told to try
again. The page of `hardkuma demo` takes its turns and counts its tokens by what is here.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase, pipeline

MAX_CHARACTERS = 20_000
MAX_TEXTS = 128
MAX_TOKENS = 16_384
MAX_WAITING = 32
MAX_SECONDS = 60
MAX_NAME = 200  # characters of a selector's name
RETRY_SECONDS = 5  # after which a client that was turned away may come again
# Tokens of a batch, padding counted. A request is stopped between batches, so that they must not take long.
BATCH_TOKENS = 2_048

# What a request may set: name -> type.
PARAMETERS = {"rate": float, "threshold": float, "keep": float, "phrases": bool, "use_surface": bool, "selector": str}

_SURROGATE = re.compile("[\ud800-\udfff]")


class RequestError(ValueError):
    """A request without an answer, with the status that fits: 400 (malformed), 413 (too large), 422 (bad values), 429 (too
    many at once), 499 (nobody waits for it any more) or 503 (out of time)."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Ticket:
    """One request: the time that it has, and whether anybody still waits for it.

    >>> ticket = Ticket(seconds=60)
    >>> ticket.check()
    >>> ticket.left = True
    >>> ticket.check()
    Traceback (most recent call last):
    hardkuma.handler.RequestError: Nobody waits for the answer any more.

    Args:
        seconds: from now to its answer.
    """

    def __init__(self, seconds: float):
        self.seconds, self.left = seconds, False
        self._end = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def check(self, *_: Any) -> None:
        """A `RequestError` where there is no reason to go on; a forward hook may be called with anything."""
        if self.left:
            raise RequestError(499, "Nobody waits for the answer any more.")
        if not self.remaining:
            raise RequestError(503, f"There is no answer after {self.seconds:g} seconds. Ask for less, or try again later.")


class Turns:
    """One at a time, in the order of coming: the others wait, but not too many of them and not too long.

    Without a bound every request of a crowd is answered late, most of them after whoever asked has given up.

    >>> turns = Turns(waiting=0, seconds=1)
    >>> with turns.take():
    ...     with turns.take():
    ...         pass
    Traceback (most recent call last):
    hardkuma.handler.RequestError: Busy: 0 others are waiting already. Try again in 5 seconds.

    Args:
        waiting: how many may wait beside the one whose turn it is.
        seconds: that a request has, if its ticket does not say otherwise.
        encoder: asks before every pass, while it is someone's turn, whether to go on.
    """

    def __init__(self, waiting: int, seconds: float, encoder: nn.Module | None = None):
        self.waiting, self.seconds, self.encoder = waiting, seconds, encoder
        self._line: deque[Ticket] = deque()  # the first of them has the turn
        self._change = threading.Condition()

    @contextmanager
    def take(self, ticket: Ticket | None = None) -> Iterator[None]:
        """Wait for one's turn, and have it until the block ends; a `RequestError` where that cannot be."""
        own = Ticket(self.seconds) if ticket is None else ticket
        with self._change:
            if len(self._line) > self.waiting:
                raise RequestError(
                    429, f"Busy: {self.waiting} others are waiting already. Try again in {RETRY_SECONDS} seconds."
                )
            self._line.append(own)
        try:
            with self._change:
                self._change.wait_for(lambda: self._line[0] is own or own.left, own.remaining)
                if self._line[0] is not own and not own.left:
                    raise RequestError(
                        503, f"Busy: the turn did not come within {own.seconds:g} seconds. Try again in a moment."
                    )
            own.check()
            with nullcontext() if self.encoder is None else self.encoder.register_forward_pre_hook(own.check):
                yield
        finally:
            with self._change:
                self._line.remove(own)
                self._change.notify_all()

    def leave(self, ticket: Ticket) -> None:
        """Nobody waits for this one any more: it gives up its place, or stops before the encoder's next pass."""
        with self._change:
            ticket.left = True
            self._change.notify_all()


def exceeds(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], most: int) -> bool:
    """Whether texts have more than so many tokens together; what comes after that many is not looked at.

    >>> from hardkuma import load_released
    >>> exceeds(load_released()[1], ["Rain again.", "Rain."], 9), exceeds(load_released()[1], ["Rain again.", "Rain."], 8)
    (False, True)
    """
    for text in texts:
        most -= len(tokenizer(text, truncation=False, verbose=False)["input_ids"])
        if most < 0:
            return True
    return False


class EndpointHandler:
    """What the endpoint's server makes once, with the folder of the checkpoint, and calls for each request."""

    def __init__(self, path: str = ""):
        self.max_characters = _limit("HARDKUMA_MAX_CHARACTERS", MAX_CHARACTERS)
        self.max_texts = _limit("HARDKUMA_MAX_TEXTS", MAX_TEXTS)
        self.max_tokens = _limit("HARDKUMA_MAX_TOKENS", MAX_TOKENS)
        # A task of the checkpoint's own, which transformers does not list.
        self.pipeline: Any = pipeline("token-gates", model=str(path), trust_remote_code=True)  # type: ignore[call-overload]
        self.pipeline.gate_model.batch_tokens = BATCH_TOKENS
        self._tokenizer = self.pipeline.tokenizer
        # The server calls from several threads, and a tokenizer can be used by one at a time.
        waiting, seconds = _limit("HARDKUMA_MAX_WAITING", MAX_WAITING), _limit("HARDKUMA_MAX_SECONDS", MAX_SECONDS)
        self._turns = Turns(waiting, seconds, self.pipeline.model.encoder)

    def __call__(self, data: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]]:
        """Answer one request; raises `RequestError` for one that is at fault, or too many.

        Args:
            data: {"inputs": text or list of texts, "parameters": {...}}; see the module.
        """
        if not isinstance(data, dict) or "inputs" not in data:
            raise RequestError(400, 'the body must be an object with "inputs": a text or a list of texts.')
        for name in data:
            if name not in ("inputs", "parameters"):
                raise RequestError(400, f'unknown field {name!r:.60} beside "inputs"; options go into "parameters".')
        inputs = data["inputs"]
        parameters = _read_parameters(data.get("parameters"))
        texts = self._check_texts(inputs)
        with self._turns.take():
            if exceeds(self._tokenizer, texts, self.max_tokens):
                raise RequestError(
                    413,
                    f"the texts of the request have more than {self.max_tokens} tokens together: send several requests, or "
                    "shorter texts.",
                )
            try:
                return self.pipeline(inputs, **parameters)
            except RequestError:
                raise
            except ValueError as error:
                raise RequestError(422, str(error)) from error

    def _check_texts(self, inputs: Any) -> list[str]:
        if isinstance(inputs, dict):
            raise RequestError(
                400,
                '"inputs" must be a text or a list of texts, got an object; two texts are compared by '
                "hardkuma.explain_pair of the package, not by this endpoint.",
            )
        texts = inputs if isinstance(inputs, list) else [inputs]
        if len(texts) > self.max_texts:
            raise RequestError(413, f"{len(texts)} texts in one request; at most {self.max_texts}: send several requests.")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise RequestError(400, f'"inputs" must hold texts; number {number} is of type {type(text).__name__}.')
            if len(text) > self.max_characters:
                raise RequestError(
                    413, f"text number {number} has {len(text)} characters; at most {self.max_characters}: split it."
                )
            if _SURROGATE.search(text):
                raise RequestError(400, f"text number {number} holds half of a surrogate pair, which is no character.")
        return texts


def _limit(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"the environment variable {name} must be a whole number >= 1, got {text!r}.")
    return int(text)


def _read_parameters(parameters: Any) -> dict[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(400, f'"parameters" must be an object, got {type(parameters).__name__}.')
    for name in parameters:
        if name not in PARAMETERS:
            raise RequestError(400, f"unknown parameter {name!r:.60}; known: {', '.join(PARAMETERS)}.")
    return {name: _read(name, value) for name, value in parameters.items() if value is not None}


def _read(name: str, value: Any) -> Any:
    wanted = PARAMETERS[name]
    if wanted is not float:
        if not isinstance(value, wanted):
            said = "true or false" if wanted is bool else "a text"
            raise RequestError(422, f"parameter {name!r} must be {said}, got {value!r:.60}.")
        if len(str(value)) > MAX_NAME:  # it would be repeated in the message
            raise RequestError(422, f"parameter {name!r} has {len(str(value))} characters; at most {MAX_NAME}.")
        return value
    try:
        # Numbers with a point in a query string arrive as text.
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RequestError(422, f"parameter {name!r} must be a number, got {value!r:.60}.")
    return number
