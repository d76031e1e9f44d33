"""Optional packages: imported when first used; one clear sentence when they are missing."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


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
