"""Which code made a result: versions of Python, of the packages that matter, and the revision of this checkout."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

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
