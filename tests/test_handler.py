"""The endpoint's handler over HTTP, loaded and called as the endpoint toolkit does."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from hardkuma import HardKumaModel, gate_records
from tests.conftest import SENTENCES

Ask = Callable[..., tuple[int, Any]]


def load_handler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """handler.py from a checkpoint's folder, by its path: it is in no package there."""
    spec = importlib.util.spec_from_file_location("handler", folder / "handler.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, "handler", module)
    spec.loader.exec_module(module)
    return module


class Service(BaseHTTPRequestHandler):
    """JSON in and out; query parameters become "parameters", whole numbers and true/false of them converted; any exception
    is status 400 with its message."""

    def do_POST(self) -> None:
        status, answer = 200, None
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            query = dict(parse_qsl(urlsplit(self.path).query))
            if query and "parameters" not in body:
                words = {"true": True, "false": False}
                body["parameters"] = {k: int(v) if v.isnumeric() else words.get(v, v) for k, v in query.items()}
            answer = self.server.handler(body)
        except Exception as error:
            status, answer = 400, {"error": str(error)}
        content = json.dumps(answer, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, minilm: HardKumaModel) -> Path:
    folder = tmp_path_factory.mktemp("endpoint") / "repository"
    minilm.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def handler(folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDKUMA_MAX_TEXTS", "12")
        patch.setenv("HARDKUMA_MAX_CHARACTERS", "4000")
        yield load_handler(folder, patch).EndpointHandler(str(folder))


@pytest.fixture(scope="module")
def ask(handler: Any) -> Iterator[Ask]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.handler = handler
    threading.Thread(target=server.serve_forever, daemon=True).start()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(body: Any, query: str = "") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/{query}", data)
        try:
            with opener.open(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    yield ask
    server.shutdown()
    server.server_close()


def test_one_text_and_many_texts(ask: Ask, minilm: HardKumaModel) -> None:
    text = "Marie Curie moved to Paris in 1891 🙂."
    assert ask({"inputs": text}) == (200, gate_records(minilm, [text])[0])
    status, records = ask({"inputs": SENTENCES, "parameters": {"rate": 0.3, "use_surface": False}})
    assert status == 200 and records == gate_records(minilm, SENTENCES, rate=0.3, use_surface=False)
    assert ask({"inputs": []}) == (200, []) and ask({"inputs": "", "parameters": None})[1]["words"] == []
    long = "The annual report was not approved. " * 100
    assert ask({"inputs": long})[1]["windows"] > 1


def test_parameters_in_the_query(ask: Ask, minilm: HardKumaModel) -> None:
    expected = gate_records(minilm, ["Rain again in Paris"], rate=0.25)[0]
    assert ask({"inputs": "Rain again in Paris"}, "?rate=0.25&use_surface=true&selector=meaning") == (200, expected)


BAD = [
    ([], 'object with "inputs"', 400),
    ({"text": "x"}, 'object with "inputs"', 400),
    ({"inputs": 7}, "number 0 is of type int", 400),
    ({"inputs": None}, "number 0 is of type NoneType", 400),
    ({"inputs": ["ok", ["nested"]]}, "number 1 is of type list", 400),
    ({"inputs": {"a": "x", "b": "y"}}, "two texts are compared by hardkuma.explain_pair of the package", 400),
    ({"inputs": "x", "rate": 0.2}, "unknown field 'rate' beside", 400),
    ({"inputs": "x", "parameters": [1]}, '"parameters" must be an object, got list', 400),
    ({"inputs": "x", "parameters": {"treshold": 0.2}}, "unknown parameter 'treshold'; known: rate,", 400),
    ({"inputs": "x", "parameters": {"seed": 1}}, "unknown parameter 'seed'", 400),
    ({"inputs": "x", "parameters": {"rate": 20}}, "rate must be a fraction in (0, 1], got 20.0", 422),
    ({"inputs": "x", "parameters": {"rate": "much"}}, "parameter 'rate' must be a number, got 'much'", 422),
    ({"inputs": "x", "parameters": {"rate": float("nan")}}, "parameter 'rate' must be a number, got nan", 422),
    ({"inputs": "x", "parameters": {"rate": 0.2, "threshold": 0.5}}, "give one of rate, threshold and keep", 422),
    ({"inputs": "x", "parameters": {"selector": 1}}, "parameter 'selector' must be a text, got 1", 422),
    ({"inputs": "x", "parameters": {"selector": "x"}}, "no selector 'x': this model has 'meaning'", 422),
    ({"inputs": "x", "parameters": {"rate": [0.5]}}, "parameter 'rate' must be a number, got [0.5]", 422),
    ({"inputs": "x", "parameters": {"use_surface": "perhaps"}}, "must be true or false, got 'perhaps'", 422),
    ({"inputs": "x", "parameters": {"rate": 10**400}}, "parameter 'rate' must be a number, got 1000", 422),
    ({"inputs": ["x", "half \ud83d"]}, "text number 1 holds half of a surrogate pair", 400),
    ({"inputs": ["x"] * 13}, "13 texts in one request; at most 12", 413),
    ({"inputs": ["x", "y" * 4001]}, "text number 1 has 4001 characters; at most 4000", 413),
]


@pytest.mark.parametrize(("body", "message", "status"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_faulty_requests_are_400_with_a_reason(body: Any, message: str, status: int, ask: Ask, handler: Any) -> None:
    code, answer = ask(body)
    assert code == 400 and list(answer) == ["error"] and message in answer["error"]
    with pytest.raises(ValueError) as caught:
        handler(body)
    assert caught.value.status == status, "for servers that look at it"


def test_what_is_not_json(ask: Ask) -> None:
    assert ask(b"{")[0] == 400
    assert "surrogate" in ask(b'{"inputs": "half \\ud83d of a pair"}')[1]["error"]


def test_many_at_once_are_answered_one_by_one(ask: Ask, handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer can be used by one thread at a time, so two requests must not be inside at the same time."""
    inside, most = [], []

    def slow(inputs: str) -> dict[str, str]:
        inside.append(inputs)
        most.append(len(inside))
        time.sleep(0.02)
        inside.remove(inputs)
        return {"text": inputs}

    monkeypatch.setattr(handler, "pipeline", slow)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: ask({"inputs": text}), SENTENCES))
    assert answers == [(200, {"text": text}) for text in SENTENCES] and max(most) == 1


def test_turns_are_taken_one_by_one_by_few_and_not_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_handler(folder, monkeypatch)
    turns, order = module.Turns(waiting=2, seconds=2), []

    def take(name: str) -> str:
        try:
            with turns.take():
                order.append(name)
        except ValueError as error:
            return f"{error.status} {error}"
        return "had it"

    with ThreadPoolExecutor(2) as pool, turns.take():
        waiting = [pool.submit(take, name) for name in "ab"]
        while len(turns._line) < 3:
            time.sleep(0.01)
        assert take("c") == "429 Busy: 2 others are waiting already. Try again in 5 seconds." and order == []
        late = {future.result() for future in waiting}
    assert late == {"503 Busy: the turn did not come within 2 seconds. Try again in a moment."}
    assert take("d") == "had it" and order == ["d"] and not turns._line, "nothing is left behind"
    with pytest.raises(KeyError), turns.take():
        raise KeyError("what fails in a turn gives it back")
    assert take("e") == "had it"


def test_a_crowd_is_told_to_come_again(ask: Ask, handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = threading.Event()
    monkeypatch.setattr(handler, "pipeline", lambda inputs: served.wait(20) and {"text": inputs})
    monkeypatch.setattr(handler._turns, "waiting", 2)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, {"inputs": "a text"}) for _ in range(8)]
        while sum(answer.done() for answer in answers) < 5:
            time.sleep(0.01)
        served.set()
    assert sorted(status for status, _ in (answer.result() for answer in answers)) == [200] * 3 + [400] * 5
    assert {body["error"] for status, body in (answer.result() for answer in answers) if status == 400} == {
        "Busy: 2 others are waiting already. Try again in 5 seconds."
    }


def test_turns_come_in_order_and_who_leaves_gives_up_the_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_handler(folder, monkeypatch)
    turns, order = module.Turns(waiting=3, seconds=20), []
    tickets = [module.Ticket(20) for _ in range(3)]

    def take(number: int) -> int:
        try:
            with turns.take(tickets[number]):
                order.append(number)
        except module.RequestError as error:
            return error.status
        return 200

    with ThreadPoolExecutor(3) as pool:
        with turns.take():
            waiting = []
            for number in range(3):
                waiting.append(pool.submit(take, number))
                while len(turns._line) < number + 2:
                    time.sleep(0.01)
            turns.leave(tickets[1])
            assert waiting[1].result(timeout=5) == 499, "at once, not when its turn comes"
            assert len(turns._line) == 3
        assert [future.result() for future in waiting] == [200, 499, 200]
    assert order == [0, 2]


def test_a_request_stops_between_batches_when_its_time_is_over(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    counting = handler.pipeline.model.encoder.register_forward_hook(lambda *_: passes.append(1) or time.sleep(0.3))
    monkeypatch.setattr(handler.pipeline.gate_model, "batch_tokens", 8)
    try:
        monkeypatch.setattr(handler._turns, "seconds", 0.5)
        with pytest.raises(ValueError, match=r"There is no answer after 0\.5 seconds") as caught:
            handler({"inputs": ["marie curie moved to paris in 1891"] * 10})
        assert caught.value.status == 503 and 1 <= len(passes) <= 3
    finally:
        counting.remove()
    monkeypatch.undo()
    assert handler({"inputs": "Rain again."})["words"], "nothing is left behind"


def test_batches_are_bounded_by_tokens(handler: Any) -> None:
    shapes = []
    encoder = handler.pipeline.model.encoder
    with encoder.register_forward_pre_hook(lambda _, args, kwargs: shapes.append(kwargs), with_kwargs=True):
        handler({"inputs": ["the ferry leaves at noon " * 100] * 12})
    tokens = [next(value for value in kwargs.values() if hasattr(value, "shape")).shape[:2].numel() for kwargs in shapes]
    assert len(tokens) > 2 and max(tokens) <= 2048


def test_tokens_of_a_request_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARDKUMA_MAX_CHARACTERS", raising=False)
    handler = load_handler(folder, monkeypatch).EndpointHandler(str(folder))
    start = time.monotonic()
    with pytest.raises(ValueError, match="more than 16384 tokens together: send several requests") as caught:
        handler({"inputs": ["." * 20_000] * 6})
    assert caught.value.status == 413 and time.monotonic() - start < 5, "it took 44 seconds"
    monkeypatch.setenv("HARDKUMA_MAX_TOKENS", "10")
    handler = load_handler(folder, monkeypatch).EndpointHandler(str(folder))
    assert len(handler({"inputs": ["Rain again.", "Rain."]})) == 2, "5 and 4, with those at the ends"
    with pytest.raises(ValueError, match="more than 10 tokens"):
        handler({"inputs": ["Rain again.", "Rain", "Rain"]})


@pytest.mark.parametrize("body", [{"x" * 10**6: 1, "inputs": "x"}, {"inputs": "x", "parameters": {"x" * 10**6: 1}}])
def test_what_was_sent_is_not_repeated_at_length(body: Any, handler: Any) -> None:
    with pytest.raises(ValueError, match="unknown") as caught:
        handler(body)
    assert len(str(caught.value)) < 300
    with pytest.raises(ValueError, match="has 1000000 characters; at most 200"):
        handler({"inputs": "x", "parameters": {"selector": "x" * 10**6}})


def test_limits_come_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_handler(folder, monkeypatch)
    monkeypatch.setenv("HARDKUMA_MAX_TEXTS", "none")
    with pytest.raises(ValueError, match="HARDKUMA_MAX_TEXTS must be a whole number >= 1, got 'none'"):
        module.EndpointHandler(str(folder))
    monkeypatch.delenv("HARDKUMA_MAX_TEXTS")
    assert module.EndpointHandler(str(folder)).max_texts == module.MAX_TEXTS
