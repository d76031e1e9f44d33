"""The house: which room may call which. CONTRIBUTING.md has the picture; this is what holds it up."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "hardkuma"

# Each room with the rooms that it may call, all of them further in. `travelling` are the files of every checkpoint;
# `hardkuma` is the root's __init__, which holds the version and, unimported, the public names.
ROOMS = {
    "hardkuma": set(),
    "travelling": set(),
    "common": {"travelling"},
    "rendering": set(),
    "corpora": {"common", "travelling"},
    "attribution": {"common", "corpora", "travelling"},
    "augmentation": {"attribution", "common", "travelling"},
    "evaluation": {"attribution", "common", "corpora", "hardkuma", "rendering", "travelling"},
    "training": {"common", "corpora", "evaluation", "travelling"},
    "contrast": {"attribution", "augmentation", "common", "evaluation", "training", "travelling"},
    "exporting": {"common", "corpora", "travelling"},
    "search": {"common", "corpora", "travelling"},
    "demo": {"attribution", "common", "corpora", "rendering", "search", "travelling"},
    "engines": {"common", "travelling"},
    "spacy_component": {"common", "travelling"},
    "train": {"common", "rendering", "training", "travelling"},
    "commands": {
        "common",
        "contrast",
        "corpora",
        "engines",
        "attribution",
        "demo",
        "evaluation",
        "exporting",
        "hardkuma",
        "rendering",
        "search",
        "train",
        "travelling",
    },
    "__main__": {"commands", "common", "hardkuma"},
}
OUTSIDE = {"benchmarks", "build", "docs", "runs", "tests"}  # not part of the package, or not ours to import


def modules() -> dict[str, Path]:
    """Every module of the package by its full name."""
    rooms = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in OUTSIDE and path.name[0] != "."]
    paths = [*ROOT.glob("*.py"), *(path for room in rooms for path in room.rglob("*.py"))]
    paths = [path.relative_to(ROOT) for path in paths]
    return {
        ".".join([PACKAGE, *path.with_suffix("").parts]).removesuffix(".__init__"): path for path in sorted(paths)
    }  # fmt: skip


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that this one imports, inside of functions too."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    targets: set[str] = set()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    if path.name == "__init__.py":
        # What a package shows to type checkers is imported by nobody.
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            targets |= {f"{source}.{alias.name}" if f"{source}.{alias.name}" in known else source for alias in node.names}
        elif isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
    return (targets & set(known)) - {name}


def room(name: str) -> str:
    _, _, inside = name.partition(".")
    first = inside.split(".")[0]
    if not first:
        return PACKAGE
    return "travelling" if first.endswith("_hardkuma") or first == "handler" else first


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    assert len(known) > 80  # else the walk misses the house
    return {name: imported(name, path, known) for name, path in known.items()}


def test_every_room_is_listed(graph: dict[str, set[str]]) -> None:
    assert {room(name) for name in graph} == set(ROOMS)


def test_rooms_call_only_rooms_further_in(graph: dict[str, set[str]]) -> None:
    wrong = [
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in sorted(targets)
        if room(target) not in ROOMS[room(name)] | {room(name)}
    ]
    assert not wrong


def test_there_is_no_cycle_among_rooms_or_modules(graph: dict[str, set[str]]) -> None:
    list(TopologicalSorter(ROOMS).static_order())  # raises CycleError
    # A package's __init__ that re-exports its modules is imported by whoever imports one of them: that is no cycle.
    known = modules()
    plain = {name: targets for name, targets in graph.items() if known[name].name != "__init__.py"}
    list(TopologicalSorter(plain).static_order())


def test_a_back_door_would_be_seen() -> None:
    known = {"hardkuma.cli.gates": Path("x"), "hardkuma.data.rows": Path("data/rows.py")}
    assert room("hardkuma.scoring_hardkuma") == "travelling" and room("hardkuma.cli.gates") == "commands"
    assert "commands" not in ROOMS["corpora"] and imported("hardkuma.data.rows", Path("data/rows.py"), known) == set()


def test_contributing_draws_these_rooms() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^\| `(\w+)", text, flags=re.MULTILINE))
    assert drawn == set(ROOMS) - {"hardkuma"}
