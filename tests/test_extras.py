"""Each way to use the package, in an environment that has the package, the named extras, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import make_site

ROOT = Path(__file__).resolve().parents[1]
TEXT = "Marie Curie moved from Warsaw to Paris."

RELEASED = """
from hardkuma import load_released
model, tokenizer = load_released()
"""
CASES = {
    "gates": ("encoder", ["gates", TEXT]),
    "gates-parquet": ("encoder parquet", ["gates", TEXT, "--output", "out.parquet"]),
    "gates-html": ("encoder", ["gates", TEXT, "--output", "out.html"]),
    "pair": ("encoder", ["pair", TEXT, "Curie went to France."]),
    "adapt": ("encoder", ["adapt", "--data", "some.txt", "--output", "adapted"]),
    "export-native": ("encoder", ["export", "native", "model", "out", "--sentences", "60"]),
    "export-onnx": ("encoder onnx", ["export", "onnx", "model", "out", "--sentences", "60"]),
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
        "encoder sentence-transformers",
        RELEASED
        + """
from sentence_transformers import SentenceTransformer
model.save_pretrained("gates")
loaded = SentenceTransformer("gates", trust_remote_code=True)
assert loaded.encode(["Paris."]).shape == (1, 384) == loaded.encode(["Paris."], embedding="anchor").shape
""",
    ),
    "pipelines": (
        "encoder",
        RELEASED
        + """
from transformers import pipeline
model.save_pretrained("gates")
record = pipeline("token-gates", model="gates", trust_remote_code=True)("Marie moved to Paris.", rate=0.5)
assert [word["word"] for word in record["words"]] == ["Marie", "moved", "to", "Paris"] and record["rate"] == 0.5
stock = pipeline("token-classification", model="gates", trust_remote_code=True, aggregation_strategy="simple")
assert all(found["entity_group"] in ("O", "ENTITY") for found in stock("Marie moved to Paris."))
""",
    ),
    "handler": (
        "encoder",
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
from hardkuma.demo.page import build_app
from hardkuma.demo.scores import Demo
build_app(model)
assert len(Demo(model).compare("Marie moved to Paris.")) == 4
""",
    ),
    "train": (
        "encoder train",
        """
from hardkuma.train import main
options = ["--max_steps", "2", "--max_sentences", "200", "--held_out", "16", "--output", "run"]
assert main(options) == 0
""",
    ),
}


def requirements(extras: str) -> list[str]:
    """What the package and these extras require, from pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    names = ["torch", "transformers"]
    for extra in extras.split():
        listed = re.search(rf"^{re.escape(extra)} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL).group(1)
        for item in re.findall(r'"([^"]+)"', listed):
            own = re.fullmatch(r"hardkuma\[(.+)\]", item)
            names += requirements(own.group(1).replace(",", " ")) if own else [re.match(r"[\w.-]+", item).group()]
    return names


@pytest.mark.parametrize("case", CASES)
def test_works_with_the_named_extras_alone(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extras, what = CASES[case]
    site = tmp_path / "site"
    site.mkdir()
    make_site(site, requirements(extras))
    (site / "hardkuma").unlink(missing_ok=True)
    (site / "hardkuma").symlink_to(ROOT)
    entry = site / "hardkuma-0.dist-info"  # spaCy finds its factory by the entry point of an installed package
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: hardkuma\nVersion: 0\n")
    (entry / "entry_points.txt").write_text("[spacy_factories]\nhardkuma = hardkuma.spacy_component:create\n")
    if "model" in what:
        from hardkuma import load_released

        load_released()[0].save_pretrained(tmp_path / "model")
    (tmp_path / "some.txt").write_text("Marie moved to Paris.\nRain again in Warsaw.\n")
    code = what
    if isinstance(what, list):
        code = f"import sys; from hardkuma.__main__ import main; sys.exit(main({json.dumps(what)}))"
    # -S leaves the machine's own packages out.
    environment = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if case.startswith("gates-"):
        assert (tmp_path / what[-1]).stat().st_size > 100
    if case == "gates":
        assert "Marie" in done.stdout


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    make_site(site, requirements("encoder"))
    (site / "hardkuma").symlink_to(ROOT)
    code = 'import sys; from hardkuma.__main__ import main; sys.exit(main(["gates", "Paris", "--output", "x.parquet"]))'
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1 and "pip install 'hardkuma[parquet]'" in done.stderr and "Traceback" not in done.stderr
