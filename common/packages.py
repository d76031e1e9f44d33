"""Packages: optional ones imported when first used, names given out lazily, and the versions that made a result."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

# What numbers may depend on; packages that are not installed are left out.
PACKAGES = (
    "hardkuma",
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "safetensors",
    "sentence-transformers",
    "numpy",
    "captum",
    "shap",
    "wordfreq",
    "scikit-learn",
    "keybert",
    "yake",
)


def require(module: str, extra: str) -> ModuleType:
    """Import a module, or say which extra brings it.

    >>> require("math", "benchmark").sqrt(4)
    2.0
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"the package {module.split('.')[0]!r} is needed here ({error}); install it with: "
            f"pip install 'hardkuma[{extra}]'"
        ) from error


def available(module: str) -> bool:
    """Whether a module can be imported, without importing it.

    >>> available("math"), available("no_such_module")
    (True, False)
    """
    return importlib.util.find_spec(module) is not None


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562) that imports its modules when their names are first asked for.

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


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions by name, "python" first and this code's git "revision" last where there is one.

    >>> list(versions(["torch", "no-such-package"]))[:2]
    ['python', 'torch']
    """
    known = {"python": platform.python_version()}
    for name in packages:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    revision = _revision()
    return known if revision is None else {**known, "revision": revision}


def _revision() -> str | None:
    try:
        git = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:  # no git here
        return None
    return git.stdout.strip() if git.returncode == 0 else None
