"""Names that a package gives out without importing their modules before they are asked for (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        modules: for each name the module of the package that holds it.

    >>> get, names = lazy_exports("json", {"JSONDecoder": "decoder"})
    >>> get("JSONDecoder").__module__, names()
    ('json.decoder', ['JSONDecoder'])
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has: {', '.join(modules)}")
        return getattr(importlib.import_module(f".{modules[name]}", package), name)

    return get, lambda: sorted(modules)
