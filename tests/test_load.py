"""Handler and page with ten clients at once for a second; benchmarks/hostile_clients.py has fifty for a minute."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hardkuma import load_released

CLIENTS, SECONDS, MOST = 10, 1, 400


@pytest.fixture(scope="module")
def load() -> Iterator[ModuleType]:
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "hostile_clients.py"
    spec = importlib.util.spec_from_file_location("load_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "load_benchmark", module)  # where its dataclasses look
        spec.loader.exec_module(module)
        yield module


def a_few(questions: list) -> list:
    """One of each name but the longest: the known answers are to be had quickly."""
    names = {question.name: question for question in questions if question.name != "the longest text"}
    texts = [question for question in questions if question.name == "a text"][:6]
    return [*texts, *(question for name, question in names.items() if name != "a text")]


def check(load: ModuleType, address: str, target: str) -> None:
    questions = a_few(load.QUESTIONS[target]())
    answers = load.known_answers(address, questions)
    tally = load.crowd(address, questions, answers, CLIENTS, SECONDS, MOST)
    assert not tally.wrong and tally.right > 0
    assert load.known_answers(address, questions) == answers, "it answers as before"


@pytest.mark.slow
def test_handler(load: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARDKUMA_MAX_WAITING", "3")  # so that some are refused
    load_released()[0].save_pretrained(tmp_path / "model")
    server = load.serve_handler(tmp_path / "model")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        check(load, f"http://127.0.0.1:{server.server_port}", "handler")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_page(load: ModuleType) -> None:
    pytest.importorskip("uvicorn", reason="the demo needs uvicorn: pip install 'hardkuma[demo]'")
    from hardkuma.apps.page.app import build_app
    from hardkuma.apps.page.serve import serving

    with serving(build_app(load_released()[0])) as url:
        check(load, url.rstrip("/"), "page")


def test_a_wrong_answer_would_be_seen(load: ModuleType) -> None:
    server = load.Server(("127.0.0.1", 0), load.Service)
    server.handler = lambda body: {"text": body["inputs"]}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        questions = [load.Question(name, "/", load.as_json({"inputs": name})) for name in ("a", "b")]
        answers = load.known_answers(address, questions)
        assert answers == [{"text": "a"}, {"text": "b"}]
        assert not load.crowd(address, questions, answers, 2, 2, most=10).wrong
        server.handler = lambda body: {"text": "a"}
        assert {line[0] for line in load.crowd(address, questions, answers, 2, 2, most=10).wrong} == {"b"}
    finally:
        server.shutdown()
        server.server_close()
