"""The interrupt flag: the first signal is noted, the second acts, and afterwards all is as before."""

from __future__ import annotations

import signal

import pytest

from hardkuma.training.interrupts import InterruptFlag


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_noted_and_the_second_acts_as_before(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, frame: heard.append(number))
    try:
        with InterruptFlag() as interrupt:
            assert not interrupt.is_set
            signal.raise_signal(number)
            assert interrupt.is_set and heard == []
            signal.raise_signal(number)
            assert heard == [number]
        signal.raise_signal(number)
        assert heard == [number, number]
    finally:
        signal.signal(number, before)


def test_handlers_come_back_when_nothing_happened() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with InterruptFlag() as interrupt:
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert not interrupt.is_set
