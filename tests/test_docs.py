"""What the documents say is run: README snippets, docstring examples, the rules for files that travel."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hardkuma.__main__ import COMMANDS, build_parser, main
from hardkuma.checkpoint_hardkuma import CHECKPOINT_CODE
from hardkuma.evaluation.tables import BEGIN, END
from hardkuma.training.arguments import parse_arguments
from hardkuma.training.recipe import load_recipe
from tests.forks import ForkServer
from tests.test_structure import modules

ROOT = Path(__file__).resolve().parents[1]


SOURCES = {name: (ROOT / path).read_text(encoding="utf-8") for name, path in modules().items()}
# Optional packages, by the module whose examples need them.
NEEDS = {
    "hardkuma.evaluation.baselines.keywords": "keybert",
    "hardkuma.evaluation.baselines.shapley": "shap",
    "hardkuma.apps.page.app": "starlette",
    "hardkuma.apps.page.guard": "starlette",
    "hardkuma.apps.page.serve": "uvicorn",
    "hardkuma.apps.ray.tables": "pandas",
    "hardkuma.common.arrow": "pyarrow",
    "hardkuma.evaluation.report": "matplotlib",
    "hardkuma.apps.spacy_component": "spacy",
}


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if ">>>" in source])
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert result.attempted > 0 == result.failed


def test_modules_say_what_they_are() -> None:
    for name, source in SOURCES.items():
        assert ast.get_docstring(ast.parse(source)), name


def test_public_names_of_corpora_have_an_example() -> None:
    corpora = importlib.import_module("hardkuma.data")
    for name in corpora.__all__:
        thing = getattr(corpora, name)
        if callable(thing):
            assert ">>>" in (thing.__doc__ or ""), name


def test_public_functions_have_docstrings_and_types() -> None:
    for name in CHECKPOINT_CODE:
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{name}: {node.name}"
            if isinstance(node, ast.FunctionDef):
                assert node.returns is not None, f"{name}: {node.name}"


DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def blocks_of(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if blocks_of(name, "python")])
def test_python_snippets_run_and_print_what_they_say(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`>>>` snippets are doctests; plain ones must run. They share one namespace, as a reader's session would."""
    monkeypatch.chdir(tmp_path)
    blocks = [block.replace("path/to/clone", str(ROOT)) for block in blocks_of(document, "python")]
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, names, f"{document}[{number}]", document, 0)
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
            runner.run(test, clear_globs=False)
            assert runner.summarize().attempted > 0 == runner.summarize().failed
            names = test.globs
        else:
            exec(compile(block, f"{document}[{number}]", "exec"), names)


def anchors_of(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"(?m)^#+ (.+)$", text)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_of_documents_lead_to_files_and_headings_that_exist(document: str) -> None:
    path = ROOT / document
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        assert page.exists(), target
        assert not anchor or anchor in anchors_of(page.read_text(encoding="utf-8")), target


def rows_of(text: str) -> list[list[str]]:
    """The cells of all rows of Markdown tables."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_readme_has_the_figures_of_the_benchmark() -> None:
    measured, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/results.md", "README.md"))
    rows = rows_of(measured[measured.index(BEGIN) : measured.index(END)])
    faithful = {cells[0]: f"{cells[2]} / {cells[4]}" for cells in rows if len(cells) == 7}
    said = next(cells for cells in rows_of(readme) if cells[0].startswith("words that carry a sentence"))
    assert said[1] == faithful["**HardKuma gates, meaning (max)**"]
    for method in ("SHAP (permutation)", "KeyBERT"):
        assert faithful[method] in said[2], method
    names = next(cells for cells in rows if cells[0].startswith("**HardKuma gates, entities, surface view"))
    for cell, corpus in zip(names[3:5], ("names without labels, WNUT17 test", "the same, wikigold"), strict=True):
        assert next(cells for cells in rows_of(readme) if cells[0].startswith(corpus))[1] == cell


def test_readme_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks_of("README.md", "console") for line in block.splitlines()]
    assert len(lines) >= 4
    for command, printed in zip(lines[::2], lines[1::2], strict=True):
        program, *arguments = shlex.split(command.removeprefix("$ "))
        assert program == "hardkuma" and main(arguments) == 0
        assert capsys.readouterr().out == f"{printed}\n"


def command_lines() -> list[list[str]]:
    """The words of every `hardkuma COMMAND ...` in the documents' shell blocks and in the commands' own help."""
    shells = ("sh", "bash", "console")
    shown = [block for document in DOCUMENTS for shell in shells for block in blocks_of(document, shell)]
    shown += [command.EXAMPLES for command in COMMANDS.values()]
    shown = [re.sub(r"\s*\\\n\s*", " ", text) for text in shown]  # a line that goes on
    lines = [line.strip().removeprefix("$ ") for text in shown for line in text.splitlines()]
    # In help a comment stands behind many spaces.
    found = [shlex.split(re.split(r" {2,}| [#>|] ", line)[0]) for line in lines if line.startswith("hardkuma ")]
    return [words[1:] for words in found if words[1] in COMMANDS]


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_command_lines_that_are_shown_are_understood(words: list[str]) -> None:
    parsed = build_parser().parse_args(words)
    parsed.check(parsed)
    for file in getattr(parsed, "build", None) or []:
        assert Path(file).suffix, f"{file} is no file: an option has taken the question"


def lines_with(program: str) -> list[list[str]]:
    """The words of every shell line of the documents that has this program, from the program on; `\\` joins lines."""
    shown = [re.sub(r"\s*\\\n\s*", " ", block) for document in DOCUMENTS for block in blocks_of(document, "sh")]
    lines = [shlex.split(line, comments=True) for block in shown for line in block.splitlines() if program in line]
    return [words[words.index(program) :] for words in lines if program in words]


def training_lines() -> list[list[str]]:
    return lines_with("train.py") + [words[1:] for words in lines_with("hardkuma") if words[1:2] == ["train"]]


@pytest.mark.parametrize("words", training_lines(), ids=" ".join)
def test_training_lines_that_are_shown_are_understood(words: list[str]) -> None:
    """Names of recipes and keys; what a line reads need not be there."""
    arguments = parse_arguments(words[1:], "train.py", "")
    assert not isinstance(arguments, str)
    assert load_recipe(arguments.recipe, arguments.overrides).selectors


@pytest.mark.parametrize("document", DOCUMENTS)
def test_scripts_that_are_named_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for name in re.findall(
        r"((?:benchmarks|tests|docs|recipes|training|apps|evaluation)/[\w/.-]*\.(?:py|yaml|jsonl))", text
    ):
        assert (ROOT / name).is_file() or name == "recipes/NAME.yaml", name


def test_package_import_is_lazy(forks: ForkServer) -> None:
    """`import hardkuma` must not import torch: command-line help and tools stay quick."""
    code = "import sys, hardkuma; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    loaded = "[name for name in sys.modules if name.startswith('hardkuma.')]"
    code = f"import sys, hardkuma; assert not {loaded}; dir(hardkuma); hardkuma.HardKumaConfig; print({loaded})"
    assert "hardkuma.configuration_hardkuma" in forks.run(code).stdout
    import hardkuma

    with pytest.raises(AttributeError, match="has no attribute 'Nothing'; it has: HardKumaConfig"):
        _ = hardkuma.Nothing
