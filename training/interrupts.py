"""Ctrl-C between steps instead of within one."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class InterruptFlag:
    """While active, SIGINT and SIGTERM set the flag and do nothing else; a second one acts as it did before.

    >>> with InterruptFlag() as interrupt:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> interrupt.is_set
    True
    """

    def __init__(self) -> None:
        self.is_set = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> InterruptFlag:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._set)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        signal.signal(number, self._handlers[number])
