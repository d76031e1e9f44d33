"""The examples in the docstrings, run under the package's own name."""

import doctest
import importlib
from pathlib import Path

import pytest

import hardkuma.corpora

FOLDER = Path(hardkuma.corpora.__file__).parent
MODULES = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"hardkuma.corpora.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_name_is_documented_by_an_example() -> None:
    corpora = importlib.import_module("hardkuma.corpora")
    for name in corpora.__all__:
        thing = getattr(corpora, name)
        if callable(thing):
            assert ">>>" in (thing.__doc__ or ""), name
