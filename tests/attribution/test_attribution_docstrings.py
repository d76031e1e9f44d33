"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hardkuma.attribution as package

MODULES = [name for _, name, _ in pkgutil.iter_modules(package.__path__)]
NEEDS = {"integrated_gradients": "captum", "shapley": "shap", "keybert_keywords": "keybert", "yake_keywords": "yake"}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    module = importlib.import_module(f"hardkuma.attribution.{name}")
    assert doctest.testmod(module).failed == 0
    assert module.__doc__
