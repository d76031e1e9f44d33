"""Packages: optional ones imported when first used, and the versions that made a result."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import ModuleType

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
