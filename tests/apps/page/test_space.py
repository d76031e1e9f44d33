"""A Space starts from its own folder, with its own copy of the code, as it would on the Hub."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from hardkuma.apps.page.space import write_space
from tests.forks import ForkServer

pytestmark = pytest.mark.skipif(find_spec("uvicorn") is None, reason="the demo needs uvicorn: pip install 'hardkuma[demo]'")

# What is printed must be seen although the process is ended from outside.
START = """
import sys, runpy
sys.stdout.reconfigure(line_buffering=True)
import hardkuma
print(hardkuma.__file__)
sys.argv[1:] = ["--host", "127.0.0.1", "--port", "{port}"]
runpy.run_path("app.py")
"""
# What the Hub puts before a Space, and whose pages show it.
ASKED = {"Host": "someone-hardkuma.hf.space"}


@pytest.mark.parametrize("own", [False, True])
def test_a_space_is_complete(own: bool, make_model: Callable, forks: ForkServer, tmp_path: Path) -> None:
    for _ in range(2):  # written again, it is the same
        write_space(tmp_path / "space", make_model() if own else None)
    card = (tmp_path / "space" / "README.md").read_text(encoding="utf-8")
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["sdk"] == "docker"
    docker = (tmp_path / "space" / "Dockerfile").read_text(encoding="utf-8")
    assert f"EXPOSE {metadata['app_port']}\n" in docker and 'CMD ["python", "app.py"]' in docker
    started = (tmp_path / "space" / "app.py").read_text(encoding="utf-8")
    assert f"'--host', '0.0.0.0', '--port', '{metadata['app_port']}'" in started
    assert len(metadata["short_description"]) <= 60  # the Hub's limit
    requirements = (tmp_path / "space" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert requirements and all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in requirements)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = forks.start(START.replace("{port}", str(port)), cwd=tmp_path / "space")
    page, policy = None, ""
    while page is None and process.poll() is None:
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/", headers=ASKED)
        with contextlib.suppress(OSError), urllib.request.urlopen(asked) as answer:
            page, policy = answer.read().decode(), answer.headers["content-security-policy"]
        time.sleep(0.2)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait()
    assert page and "<title>HardKuma</title>" in page, process.stdout + process.stderr
    assert policy.endswith("; frame-ancestors https://huggingface.co")
    assert process.stdout.startswith(str(tmp_path / "space" / "hardkuma")) and f"http://127.0.0.1:{port}" in process.stdout
