"""Every example in a docstring runs, and modules stay small."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import hardkuma.attribution
import hardkuma.evaluation as package

MODULES = [name for _, name, _ in pkgutil.iter_modules(package.__path__)]
NEEDS = {"metrics": "evaluate", "plots": "matplotlib", "informativeness": "wordfreq"}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    module = importlib.import_module(f"hardkuma.evaluation.{name}")
    assert doctest.testmod(module).failed == 0
    assert module.__doc__


@pytest.mark.parametrize("folder", [hardkuma.attribution, package])
def test_modules_are_small(folder: object) -> None:
    for path in Path(folder.__file__).parent.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 400, path.name
