"""Who may import whom: an inner package never imports an outer one, and checkpoint code imports itself alone."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from hardkuma.checkpoint_hardkuma import CHECKPOINT_CODE

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"benchmarks", "build", "docs", "runs", "tests"}  # folders of the root that are not part of the package
ALLOWED = {*sys.stdlib_module_names, "torch", "transformers"}  # what checkpoint code imports besides itself
# From inner to outer: a module imports from its own layer and from those before it. `hardkuma` is the root's __init__,
# which holds the version. Checkpoint code is every *_hardkuma.py and handler.py.
ORDER = ["checkpoint code", "hardkuma", "common", "data", "evaluation.baselines", "evaluation", "training", "apps"]
ORDER += ["train", "cli", "__main__"]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the package by its full name, with its path below the root."""
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in OUTSIDE and path.name[0] != "."]
    paths = [*root.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    parts = {path.relative_to(root): path.relative_to(root).with_suffix("").parts for path in sorted(paths)}
    return {".".join(["hardkuma", *names]).removesuffix(".__init__"): path for path, names in parts.items()}


def layer(name: str) -> int:
    """The place in ORDER of a module, behind the last one if it has none."""
    inside = name.removeprefix("hardkuma").removeprefix(".")
    if "." not in inside and (inside.endswith("_hardkuma") or inside == "handler"):
        return 0
    prefixes = (number for number, known in enumerate(ORDER) if f"{inside or 'hardkuma'}.".startswith(f"{known}."))
    return next(prefixes, len(ORDER))


def import_statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """At module level and inside of functions and classes, but not those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from import_statements(node)


def read_graph(root: Path) -> dict[str, set[str]]:
    """For every module of the package the modules of the package that it imports."""
    known, graph = modules(root), {}
    for name, path in known.items():
        targets = graph[name] = set()
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in import_statements(ast.parse((root / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names if alias.name in known)
                continue
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for full in (f"{source}.{alias.name}" for alias in node.names):
                # The root gives out names of any layer (PEP 562): here nothing but the version is taken from it.
                if full in known or (source == "hardkuma" and full != "hardkuma.__version__"):
                    targets.add(full)
                elif source in known:
                    targets.add(source)
        targets.discard(name)
    return graph


def foreign_imports(path: Path) -> list[str]:
    """What a file of checkpoint code imports that no checkpoint has. transformers finds `from .name import thing` alone."""
    found: list[str] = []  # those for type checkers too: transformers looks for every one when a checkpoint is loaded
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] not in ALLOWED]
        elif isinstance(node, ast.ImportFrom) and node.level:
            if node.level > 1 or node.module is None or layer(f"hardkuma.{node.module}") > 0:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] not in ALLOWED:
            found.append(node.module)
    return found


def find_problems(root: Path) -> list[str]:
    """What is against the order, in words; nothing if all is well."""
    graph = read_graph(root)
    problems = [f"{name} is in no layer" for name in graph if layer(name) == len(ORDER)]
    problems += [f"{name} imports {to}" for name, targets in graph.items() for to in targets if layer(to) > layer(name)]
    for path in (path for name, path in modules(root).items() if layer(name) == 0):
        problems += [f"{path}: a checkpoint has no {what}" for what in foreign_imports(root / path)]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        problems.append(f"a cycle: {', '.join(sorted(set(error.args[1])))}")
    return sorted(problems)


def test_the_graph_is_that_of_the_package() -> None:
    graph = read_graph(ROOT)
    assert "hardkuma.gate_head_hardkuma" in graph["hardkuma.modeling_hardkuma"]
    assert "hardkuma.scoring_hardkuma" in graph["hardkuma.cli.gates"]
    assert "hardkuma.evaluation.baselines.registry" in graph["hardkuma.evaluation.baselines"], "an import of an __init__"
    assert {layer(name) for name in graph} == set(range(len(ORDER)))
    assert sum(map(len, graph.values())) > 300 and sum(not targets for targets in graph.values()) < len(graph) / 3


def test_the_package_is_in_order_and_listed() -> None:
    assert find_problems(ROOT) == []
    assert {path.name for name, path in modules().items() if layer(name) == 0} == set(CHECKPOINT_CODE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    assert listed == {name for name, path in modules().items() if path.name == "__init__.py"}


SOUND = {
    "__init__.py": "",
    "modeling_hardkuma.py": "import torch\nfrom .words_hardkuma import find_words",
    "words_hardkuma.py": "import re",
    "common/files.py": "from .. import __version__",
    "data/rows.py": "from ..common import files\nif TYPE_CHECKING:\n    from ..cli import gates",
    "cli/gates.py": "import numpy\ndef run():\n    from ..modeling_hardkuma import Model\n    import hardkuma.data.rows",
}


@pytest.mark.parametrize(
    ("file", "source", "problem"),
    [
        ("data/other.py", "from .rows import x", None),
        ("data/rows.py", "from ..cli import gates", "hardkuma.data.rows imports hardkuma.cli.gates"),
        ("data/rows.py", "def f():\n    import hardkuma.cli.gates", "hardkuma.data.rows imports hardkuma.cli.gates"),
        ("data/rows.py", "from .. import explain_pair", "hardkuma.data.rows imports hardkuma.explain_pair"),
        ("common/files.py", "def f():\n    from . import more", "a cycle: hardkuma.common.files, hardkuma.common.more"),
        ("words_hardkuma.py", "from .modeling_hardkuma import Model", "a cycle: hardkuma.modeling_hardkuma"),
        ("elsewhere/x.py", "", "hardkuma.elsewhere.x is in no layer"),
        ("words_hardkuma.py", "def f():\n    import numpy.linalg", "words_hardkuma.py: a checkpoint has no numpy.linalg"),
        ("words_hardkuma.py", "from hardkuma.x_hardkuma import y", "words_hardkuma.py: a checkpoint has no hardkuma.x"),
        ("words_hardkuma.py", "from . import __version__", "words_hardkuma.py: a checkpoint has no from . import"),
        ("words_hardkuma.py", "from .apps.pairs import x", "words_hardkuma.py: a checkpoint has no from .apps.pairs"),
    ],
)
def test_what_is_against_the_order_is_found(file: str, source: str, problem: str | None, tmp_path: Path) -> None:
    for name, text in {**SOUND, "common/more.py": "from .files import x", file: source}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = find_problems(tmp_path)
    assert found == [] if problem is None else any(line.startswith(problem) for line in found), found


@pytest.mark.xdist_group("structure")
def test_a_group_of_tests_stays_in_one_worker(request: pytest.FixtureRequest) -> None:
    """Where there are workers, pytest-xdist has put the group behind the id: 3.8 does not with pytest 9.2, and then each
    worker makes what the group shares."""
    assert request.node.nodeid.endswith("@structure") == hasattr(request.config, "workerinput")
