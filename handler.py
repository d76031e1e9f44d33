"""Custom handler for Inference Endpoints: the gates of one text or many.

    {"inputs": "Marie Curie moved to Paris.", "parameters": {"rate": 0.2}}      -> one record
    {"inputs": ["a text", "another"], "parameters": {"threshold": 0.5}}         -> a list of records
    {"inputs": "a text", "parameters": {"selector": "entities"}}                -> a record of that selector, by its name

Records are those of the pipeline `token-gates`. The endpoint's server answers any exception with status 400 and
{"error": message}; every message here says what was wrong with the request. Environment variables bound a request:
HARDKUMA_MAX_CHARACTERS (of one text, 20000) and HARDKUMA_MAX_TEXTS (of one request, 128). Requests are answered one by one;
HARDKUMA_MAX_WAITING of them wait (32), each HARDKUMA_MAX_SECONDS at most (60), and others are told to try again.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import pipeline

MAX_CHARACTERS = 20_000
MAX_TEXTS = 128
MAX_WAITING = 32
MAX_SECONDS = 60

# What a request may set: name -> type.
PARAMETERS = {"rate": float, "threshold": float, "use_surface": bool, "selector": str}


class RequestError(ValueError):
    """A request without an answer, with the status that fits: 400 (malformed), 413 (too large), 422 (bad values) or 503
    (too many at once)."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Turns:
    """One at a time: the others wait, but not too many of them and not too long.

    Without a bound every request of a crowd is answered late, most of them after whoever asked has given up.

    >>> turns = Turns(waiting=0, seconds=1)
    >>> with turns.take():
    ...     with turns.take():
    ...         pass
    Traceback (most recent call last):
    hardkuma.handler.RequestError: Busy: 0 others are waiting already. Try again in a moment.

    Args:
        waiting: how many may wait beside the one whose turn it is.
        seconds: how long each may wait.
    """

    def __init__(self, waiting: int, seconds: float):
        self.waiting, self.seconds = waiting, seconds
        self._turn, self._count = threading.Lock(), threading.Lock()
        self._present = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for one's turn, and have it until the block ends; a `RequestError` where that cannot be."""
        with self._count:
            if self._present > self.waiting:
                raise RequestError(503, f"Busy: {self.waiting} others are waiting already. Try again in a moment.")
            self._present += 1
        try:
            if not self._turn.acquire(timeout=self.seconds):
                raise RequestError(
                    503, f"Busy: the turn did not come within {self.seconds} seconds. Try again in a moment."
                )
            try:
                yield
            finally:
                self._turn.release()
        finally:
            with self._count:
                self._present -= 1


class EndpointHandler:
    """What the endpoint's server makes once, with the folder of the checkpoint, and calls for each request."""

    def __init__(self, path: str = ""):
        self.max_characters = _limit("HARDKUMA_MAX_CHARACTERS", MAX_CHARACTERS)
        self.max_texts = _limit("HARDKUMA_MAX_TEXTS", MAX_TEXTS)
        # A task of the checkpoint's own, which transformers does not list.
        self.pipeline: Any = pipeline("token-gates", model=str(path), trust_remote_code=True)  # type: ignore[call-overload]
        # The server calls from several threads, and a tokenizer can be used by one at a time.
        self._turns = Turns(_limit("HARDKUMA_MAX_WAITING", MAX_WAITING), _limit("HARDKUMA_MAX_SECONDS", MAX_SECONDS))

    def __call__(self, data: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]]:
        """Answer one request; raises `RequestError` for one that is at fault, or too many.

        Args:
            data: {"inputs": text or list of texts, "parameters": {...}}; see the module.
        """
        if not isinstance(data, dict) or "inputs" not in data:
            raise RequestError(400, 'the body must be an object with "inputs": a text or a list of texts.')
        unknown = sorted(set(data) - {"inputs", "parameters"})
        if unknown:
            raise RequestError(400, f'unknown field {unknown[0]!r} beside "inputs"; options go into "parameters".')
        inputs = data["inputs"]
        parameters = _read_parameters(data.get("parameters"))
        self._check_texts(inputs)
        with self._turns.take():
            try:
                return self.pipeline(inputs, **parameters)
            except ValueError as error:
                raise RequestError(422, str(error)) from error

    def _check_texts(self, inputs: Any) -> None:
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
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise RequestError(400, f"text number {number} holds half of a surrogate pair, which is no character.")


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
            raise RequestError(400, f"unknown parameter {name!r}; known: {', '.join(PARAMETERS)}.")
    return {name: _read(name, value) for name, value in parameters.items() if value is not None}


def _read(name: str, value: Any) -> Any:
    wanted = PARAMETERS[name]
    if wanted is not float:
        if not isinstance(value, wanted):
            said = "true or false" if wanted is bool else "a text"
            raise RequestError(422, f"parameter {name!r} must be {said}, got {value!r:.60}.")
        return value
    try:
        # Numbers with a point in a query string arrive as text.
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RequestError(422, f"parameter {name!r} must be a number, got {value!r:.60}.")
    return number
