"""Public names have types: what a package gives out lazily it also shows to type checkers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import hardkuma


def test_every_export_is_shown_to_type_checkers() -> None:
    tree = ast.parse(Path(hardkuma.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    assert len(blocks) == 1
    shown = {}
    for node in blocks[0].body:
        assert isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names:
            assert alias.asname == alias.name, "only `import x as x` is a re-export"
            shown[alias.name] = node.module
    assert shown == hardkuma._EXPORTS and len(shown) > 5


def test_every_export_is_there() -> None:
    for name, home in hardkuma._EXPORTS.items():
        assert getattr(hardkuma, name) is getattr(importlib.import_module(f"hardkuma.{home}"), name)
        assert name in dir(hardkuma) and name in hardkuma.__all__
