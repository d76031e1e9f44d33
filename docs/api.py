"""Write docs/api.md: every public name with its docstring and the example in it, which a test runs.

python docs/api.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hardkuma

# Methods of transformers that ours replace, and that everybody calls.
CALLED = ("forward", "from_pretrained", "save_pretrained", "push_to_hub")
PAGE = Path(__file__).parent / "api.md"
HEAD = """\
# API

Every public name of `hardkuma`, from its docstring (`python docs/api.py` writes this page). The tests run the examples.
"""


def signature(thing: Any) -> str:
    """Without the quotes around annotations, on a line for each argument where one would be long."""
    found = inspect.signature(thing)
    shown = _plain(str(found))
    if len(shown) <= 90:
        return shown
    inside = "".join(f"    {_plain(str(argument))},\n" for argument in found.parameters.values())
    returned = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    return f"(\n{inside}){returned}"


def _plain(text: str) -> str:
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return text if len(text) <= 300 else re.sub(r" = .*", " = ...", text)


def members(cls: type) -> Iterator[tuple[str, str, Any]]:
    """Public methods and properties that say what they do and that no library has: its own manual does. Each with the name
    of the class that has it."""
    for name, thing in inspect.getmembers(cls):
        owners = [base for base in cls.__mro__ if name in vars(base)]
        ours = [base for base in owners if base.__module__.startswith("hardkuma.")]
        wanted = ours and not name.startswith("_") and (ours == owners or name in CALLED)
        if wanted and (inspect.isroutine(thing) or isinstance(thing, property)) and inspect.getdoc(thing):
            yield name, f"{ours[0].__qualname__}.{name}", thing


def entry(title: str, thing: Any, depth: int) -> str:
    """Heading, signature and docstring."""
    shown = "" if isinstance(thing, (type, property)) else signature(thing)
    return f"{'#' * depth} `{title}`\n\n```text\n{title}{shown}\n\n{inspect.getdoc(thing)}\n```\n"


def render() -> str:
    """The page: names in the package's own order, what classes share at the first of them."""
    parts, seen = [HEAD], set()
    for name in hardkuma.__all__:
        thing = getattr(hardkuma, name)
        if name == "__version__":
            continue
        parts.append(entry(name, thing, 2))
        for member, known_as, found in members(thing) if isinstance(thing, type) else ():
            if known_as not in seen:
                seen.add(known_as)
                parts.append(entry(f"{name}.{member}", found, 3))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
