"""Backends: onnxruntime gives the gates of the model, is chosen by measurement, and keeps its exports."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hardkuma.apps.export.backends as backends
import hardkuma.apps.export.onnx as graphs
from hardkuma import HardKumaModel, TokenGatesPipeline, find_differences, gate_records, score_texts
from hardkuma.__main__ import main
from hardkuma.apps.export.backends import OnnxGates, choose_backend, measure_speed
from hardkuma.checkpoint_hardkuma import CHECKPOINT_CODE
from hardkuma.encoder_hardkuma import fingerprint
from hardkuma.scoring_hardkuma import stream_records
from tests.conftest import SENTENCES, build_two_selectors

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
load = pytest.importorskip("onnx").load
pytestmark = pytest.mark.xdist_group("backends")  # what is traced is traced once

LONG = " ".join(SENTENCES * 4)
TEXTS = [*SENTENCES, "", "…", "Paris", LONG, "einstein's U.S. museum, 1891"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache, shared by the tests here. Tracing a graph takes seconds, so each is traced once in all."""
    folder = tmp_path_factory.mktemp("cache")
    traced: dict[tuple[str, str | None], bytes] = {}
    write_graph = backends.write_graph

    def write_once(graph: graphs.GateGraph, path: Path, feed: dict[str, torch.Tensor]) -> None:
        key = fingerprint(graph.model), graph.selector
        if key not in traced:
            write_graph(graph, path, feed)
            traced[key] = path.read_bytes()
        path.write_bytes(traced[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(folder))
        patch.setattr(backends, "write_graph", write_once)
        yield folder / "hardkuma"


@pytest.fixture(scope="module")
def folder(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with two selectors of words, which read the last layer. A second one would be traced as the first."""
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    torch.manual_seed(0)
    surfaced(
        build_two_selectors(layers=1, selectors={name: {"layer": -1} for name in ("meaning", "entities")})
    ).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def two(folder: Path) -> HardKumaModel:
    return HardKumaModel.from_pretrained(folder).eval()


def probabilities(model: object, texts: list[str] = TEXTS, **options: object) -> np.ndarray:
    scored = score_texts(model, texts, **{"selector": "entities"} | options)
    return np.concatenate([np.array(item.probabilities) for item in scored])


def surfaced(model: HardKumaModel) -> HardKumaModel:
    model.gate_head.surface_log_odds.normal_()[:, 0] = 0.0  # the unknown class, which shifts nothing
    return model


def test_records_are_those_of_the_model(two: HardKumaModel) -> None:
    gates = OnnxGates(two, threads=2, precision="fp32")
    for options in ({"rate": 0.3}, {"batch_size": 2}, {"use_surface": False}):
        found_records, wanted_records = (gate_records(one, TEXTS, selector="entities", **options) for one in (gates, two))
        for ours, theirs in zip(found_records, wanted_records, strict=True):
            assert [w["selected"] for w in ours["words"]] == [w["selected"] for w in theirs["words"]]
            assert [(s["start"], s["end"]) for s in ours["spans"]] == [(s["start"], s["end"]) for s in theirs["spans"]]
            found, wanted = ([w["probability"] for w in record["words"]] for record in (ours, theirs))
            assert found == pytest.approx(wanted, abs=1e-5) and ours["windows"] == theirs["windows"]
    check_tensors(gates, two, "entities")


def check_tensors(gates: OnnxGates, model: HardKumaModel, selector: str | None) -> None:
    """Without words it is the vocabulary that says what continues, as for the model."""
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    found, wanted = (next(one.gate_batches([inputs], selector)) for one in (gates, model))
    assert torch.allclose(found, wanted, atol=1e-5)


def test_all_selectors_side_by_side_and_changed_weights_are_another_export(cache: Path) -> None:
    """Of an encoder without attention, and with one read: the quickest to trace. tests/apps/export/test_onnx.py has all."""
    read = {"reads": ["state"], "layer": -1}
    model = surfaced(build_two_selectors("hardkuma_static", selectors={"meaning": read, "entities": read}))
    gates = OnnxGates(model, precision="fp32")

    def check_records() -> None:
        ours, theirs = (gate_records(one, TEXTS, selector="all") for one in (gates, model))
        for one, other in zip(ours, theirs, strict=True):
            for word, wanted in zip(one["words"], other["words"], strict=True):
                assert word["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-5)
                assert word["selected"] == wanted["selected"]
        check_tensors(gates, model, None)

    check_records()
    keys = {gates._key(None)}
    for parameters in (model.encoder.parameters(), model.gate_head.parameters()):
        before = probabilities(model)
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(0.3 * torch.randn_like(parameter))
        assert not np.allclose(before, probabilities(model), atol=1e-3)
        check_records()  # not those of the old weights
        keys.add(gates._key(None))
    assert len(keys) == 3
    assert OnnxGates(model, precision="int8").prepare() == "fp32", "there is nothing to quantise"


def test_int8_is_close_and_does_not_mind_the_order(two: HardKumaModel, cache: Path) -> None:
    gates = OnnxGates(two, precision="int8")
    assert gates.prepare("entities") == "int8"
    nodes = [node for node in load(gates._candidates("entities")[0]).graph.node if node.op_type == "MatMulInteger"]
    assert len(nodes) == 6 and all(len(node.input) == 3 for node in nodes), (
        "those of a layer, without zero points of weights"
    )
    found, wanted = probabilities(gates), probabilities(two)
    assert 0 < np.abs(found - wanted).mean() < backends.INT8_TOLERANCE and np.corrcoef(found, wanted)[0, 1] > 0.95
    assert np.array_equal(found, probabilities(gates)), "the same batches have the same gates"
    turned = score_texts(gates, TEXTS[::-1], selector="entities")[::-1]
    assert (
        np.abs(np.concatenate([np.array(item.probabilities) for item in turned]) - wanted).mean() < backends.INT8_TOLERANCE
    )


def test_int8_that_is_too_far_off_is_not_taken(two: HardKumaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(backends, "INT8_TOLERANCE", 0.0)
    said: list[str] = []
    gates = OnnxGates(two, precision="int8", log=said.append)
    assert gates.prepare("entities") == "fp32" and "fp32 is used" in said[1]
    assert np.allclose(probabilities(gates), probabilities(two), atol=1e-5)


def test_an_export_is_made_once(two: HardKumaModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    OnnxGates(two, precision="fp32").prepare("entities")
    monkeypatch.setattr(backends, "make_export", lambda *_: pytest.fail("it was made again"))
    again = OnnxGates(two, precision="fp32", log=said.append)
    assert again.is_at_hand("entities") and again.prepare("entities") == "fp32" and not said
    # Another precision, selector or weight is another export.
    names = {backends.export_key(two, *what) for what in (("entities", "fp32"), ("entities", "int8"), ("meaning", "fp32"))}
    changed = type(two)(two.config)
    assert len(names | {backends.export_key(changed, "entities", "fp32")}) == 4
    assert not list(cache.glob(".*")), "nothing is left over"


def test_changed_code_is_another_export() -> None:
    names = {path.name for path in backends.code_files()}
    assert names > set(CHECKPOINT_CODE) - {"handler.py"} and "onnx.py" in names


@pytest.mark.parametrize("harm", [lambda data: data[:1000], lambda data: data[:-9] + b"x" + data[-8:], lambda data: b""])
def test_a_damaged_export_is_made_again(harm: Callable[[bytes], bytes], two: HardKumaModel) -> None:
    whole = OnnxGates(two, precision="fp32")
    whole.prepare("entities")
    [path] = whole._candidates("entities")
    path.write_bytes(harm(path.read_bytes()))
    said: list[str] = []
    gates = OnnxGates(two, precision="fp32", log=said.append)
    assert not gates.is_at_hand("entities")
    assert np.allclose(probabilities(gates), probabilities(two), atol=1e-5)
    assert "is damaged" in said[0] and "exporting the selector 'entities'" in said[1] and "exported in" in said[2]
    assert OnnxGates(two, precision="fp32").is_at_hand("entities"), "and whole again"


def test_a_damaged_export_in_a_folder_of_somebody_else(
    two: HardKumaModel, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    whole = OnnxGates(two, precision="fp32")
    whole.prepare("entities")
    [path] = whole._candidates("entities")
    path.write_bytes(b"")
    said: list[str] = []
    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(backends, "_keep", refuse)
    gates = OnnxGates(two, precision="fp32", log=said.append)
    assert np.allclose(probabilities(gates), probabilities(two), atol=1e-5)
    assert "is damaged" in said[0] and "cannot be kept (read-only)" in said[-1] and path.exists()


def test_a_cache_that_cannot_be_written(two: HardKumaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    said: list[str] = []
    gates = OnnxGates(two, precision="fp32", log=said.append)
    assert gates.prepare("entities") == "fp32" and "cannot be kept" in said[-1]
    assert np.allclose(probabilities(gates), probabilities(two), atol=1e-5)


# ---- choosing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("faster", "slower"), [("torch", "onnx"), ("onnx", "torch")])
def test_auto_takes_the_faster_one_and_says_so(
    faster: str, slower: str, two: HardKumaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        backends, "measure_speed", lambda gates, selector: 9.0 if (gates is two) == (faster == "torch") else 3.0
    )
    said: list[str] = []
    chosen = choose_backend(two, "auto", "entities", log=said.append)
    assert chosen.name == faster and (chosen.gates is two) == (faster == "torch")
    assert said[-1].startswith(f"backend {faster} (") and f"{faster} 9" in said[-1] and f"{slower} 3" in said[-1]


def test_speed_is_measured_with_both(two: HardKumaModel) -> None:
    assert measure_speed(two, "meaning", seconds=0.05) > 0
    assert measure_speed(OnnxGates(two, precision="fp32"), "entities", seconds=0.05) > 0


@pytest.fixture
def not_exportable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nand a long story")

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(torch.onnx, "export", refuse)


@pytest.mark.usefixtures("not_exportable")
def test_a_model_that_cannot_be_exported(make_two: Callable) -> None:
    two = make_two(layers=1, seed=1)
    reason = r"torch\.onnx cannot export BertModel with these settings \(no such operator\)"
    with pytest.raises(ValueError, match=reason):
        choose_backend(two, "onnx")
    said: list[str] = []
    chosen = choose_backend(two, "auto", log=said.append)
    assert chosen.gates is two and "backend torch, since onnx cannot be had: torch.onnx cannot export BertModel" in said[-1]
    assert two.encoder.config._attn_implementation == "sdpa", "as it was before"


def test_a_graph_that_differs_is_refused(two: HardKumaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(backends, "write_graph", lambda *_: None)
    monkeypatch.setattr(backends, "measure_difference", lambda *_: (0.5, 0.1))
    with pytest.raises(ValueError, match=r"the graph differs from the model by 5.00e-01, more than 0.0001"):
        choose_backend(two, "onnx")


def test_a_missing_package_is_named(two: HardKumaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def find(name: str, package: str | None = None) -> object:
        if name.startswith("onnx"):
            raise ImportError(f"No module named {name!r}")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", find)
    with pytest.raises(ImportError, match=r"No module named 'onnxruntime'.*pip install 'hardkuma\[onnx\]'"):
        choose_backend(two, "onnx")
    said: list[str] = []
    assert choose_backend(two, "auto", log=said.append).gates is two and "pip install 'hardkuma[onnx]'" in said[0]


def test_what_is_refused(two: HardKumaModel, make_model: Callable) -> None:
    with pytest.raises(ValueError, match="backend must be one of torch, onnx, auto; got 'tensorrt'"):
        choose_backend(two, "tensorrt")
    for wrong in ("onnx", choose_backend(two)):
        with pytest.raises(
            ValueError, match=r"such as hardkuma.choose_backend\(model, 'onnx'\).gates; got a (str|Backend)"
        ):
            TokenGatesPipeline(two, backend=wrong)
    with pytest.raises(ValueError, match="training mode"):
        choose_backend(make_model().train(), "onnx")
    with pytest.raises(ValueError, match="no selector 'x': this model has 'meaning', 'entities'"):
        choose_backend(two, "onnx", "x")
    with pytest.raises(ValueError, match="the model is on meta; use the backend torch"):
        OnnxGates(make_model().to("meta"))


def test_an_export_is_not_made_for_a_text(two: HardKumaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    said: list[str] = []
    assert choose_backend(two, "auto", log=said.append, make=False).gates is two and "not exported yet" in said[0]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("flags\t\t: fpu avx2 avx512_vnni", True),
        ("flags\t\t: fpu avx2 avx_vnni", True),
        ("flags\t\t: fpu avx2 avx512f", False),
        ("Features\t: fp asimd asimddp", True),
        ("model name\t: avx512_vnni", False),
    ],
)
def test_flags_of_the_processor(line: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert graphs.has_int8_instructions(f"processor\t: 0\n{line}\n") == wanted
    monkeypatch.setattr(graphs.platform, "system", lambda: "Linux")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: line)
    assert graphs.has_int8_instructions() == wanted


# ---- streams -------------------------------------------------------------------------------------------------------------


def test_parts_come_back_in_order_while_later_ones_are_read(two: HardKumaModel) -> None:
    gates = OnnxGates(two, threads=2, precision="fp32")
    parts, read = [TEXTS[i:] + TEXTS[:i] for i in range(8)], []

    def texts() -> Iterator[list[str]]:
        for number, part in enumerate(parts):
            read.append(number)
            yield part

    found = []
    for number, records in enumerate(stream_records(gates, texts(), batch_size=3, selector="entities")):
        assert [record["text"] for record in records] == parts[number] and number in read
        found += records
    assert len(found) == 8 * len(TEXTS)
    expected = [record for part in parts for record in gate_records(two, part, selector="entities")]
    assert [w["probability"] for r in found for w in r["words"]] == pytest.approx(
        [w["probability"] for r in expected for w in r["words"]], abs=1e-5
    )


def test_a_stream_that_fails_or_is_left(two: HardKumaModel) -> None:
    gates = OnnxGates(two, threads=2, precision="fp32")

    def texts() -> Iterator[list[str]]:
        yield TEXTS
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(stream_records(gates, texts(), selector="entities"))
    stream = stream_records(gates, iter([TEXTS] * 50), batch_size=1, selector="entities")
    next(stream)
    stream.close()
    assert len(gate_records(gates, TEXTS, selector="entities")) == len(TEXTS), "and others go on"
    assert [len(records) for records in stream_records(gates, [[], [""], []], selector="entities")] == [0, 1, 0]
    assert gate_records(gates, [], selector="entities") == [] == gate_records(two, [])


def test_numbers_that_are_none_are_said(two: HardKumaModel) -> None:
    gates = OnnxGates(two, precision="fp32")
    session = gates._session("entities")

    class Broken:
        def get_inputs(self) -> list[object]:
            return session.get_inputs()

        def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.full(feed["input_ids"].shape, np.nan, dtype=np.float32)]

    gates._sessions["entities"] = Broken()
    with pytest.raises(ValueError, match="onnxruntime returned NaN or infinity"):
        gate_records(gates, TEXTS, selector="entities")


# ---- the pipeline and the command ----------------------------------------------------------------------------------------


def test_a_pipeline_with_another_backend(two: HardKumaModel) -> None:
    pipe = TokenGatesPipeline(two, backend=OnnxGates(two, precision="fp32"), selector="entities")
    for record, wanted in zip(pipe(TEXTS), gate_records(two, TEXTS, selector="entities"), strict=True):
        assert [w["start"] for w in record["words"]] == [w["start"] for w in wanted["words"]]
        assert [w["probability"] for w in record["words"]] == pytest.approx(
            [w["probability"] for w in wanted["words"]], abs=1e-5
        )
    with pytest.raises(TypeError, match="backend"):
        pipe("Paris", backend=two)


def test_the_command_resumes_with_the_backend_that_it_began_with(
    folder: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hardkuma.cli import gates
    from hardkuma.cli.writers import PartialOutput

    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # for the tests that follow
    monkeypatch.setattr(gates, "CHUNK_TEXTS", 5)
    monkeypatch.setattr(gates, "EXPORT_BYTES", 0)
    file = tmp_path / "in.txt"
    file.write_text("\n".join(text for text in TEXTS * 3) + "\n")
    words = ["gates", "--quiet", "--model", str(folder), "--file", str(file), "--selector", "entities"]
    onnx_words = [*words, "--backend", "onnx", "--output", str(tmp_path / "whole.jsonl")]
    assert main(onnx_words) == 0
    whole = (tmp_path / "whole.jsonl").read_bytes()
    assert len(whole.splitlines()) == 3 * len(TEXTS)
    assert main([*onnx_words, "--resume"]) == 0 and "is complete already" in capsys.readouterr().err
    # Auto takes onnx, is interrupted, and goes on with onnx although torch would now be faster.
    add, speeds, added = PartialOutput.add, {"torch": 1.0, "onnx": 2.0}, []

    def stop_at_third(self: PartialOutput, rows: int, content: bytes) -> None:
        if len(added) == 2:
            raise KeyboardInterrupt
        added.append(rows)
        add(self, rows, content)

    monkeypatch.setattr(
        backends, "measure_speed", lambda gates, selector: speeds["torch" if isinstance(gates, HardKumaModel) else "onnx"]
    )
    monkeypatch.setattr(PartialOutput, "add", stop_at_third)
    auto = [*words, "--backend", "auto", "--output", str(tmp_path / "auto.jsonl")]
    assert main(auto) != 0
    assert "backend onnx (int8)" in capsys.readouterr().err or not graphs.has_int8_instructions()
    monkeypatch.setattr(PartialOutput, "add", add)
    speeds["torch"] = 3.0
    assert main([*auto, "--resume"]) == 0
    assert (tmp_path / "auto.jsonl").read_bytes() == whole
    # Another backend would write other bytes.
    with PartialOutput(tmp_path / "auto.jsonl") as partial:
        partial.begin({"backend": ["onnx", "int8"]})
        partial.add(1, b"")
    assert main([*words, "--backend", "torch", "--output", str(tmp_path / "auto.jsonl"), "--resume"]) == 1
    assert "other settings (backend, " in capsys.readouterr().err


def test_what_the_command_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gates", "--engine", "ray", "--input", "in", "--output", "out", "--backend", "onnx"])
    assert "--backend onnx does not go with --engine ray" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["gates", "--backend", "jax", "Paris"])
    assert "invalid choice: 'jax'" in capsys.readouterr().err


def test_states_and_embeddings_are_those_of_the_model(two: HardKumaModel) -> None:
    onnx = OnnxGates(two, threads=2, precision="fp32")
    inputs = two.tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    found, wanted = onnx.encode_tokens(ids, mask), two.encode_tokens(ids, mask)
    assert torch.allclose(found["anchor"], wanted["anchor"], atol=1e-5)
    assert torch.allclose(found["states"][mask.bool()], wanted["states"][mask.bool()], atol=1e-4)
    pairs = [(SENTENCES[0], SENTENCES[1]), ("", "paris")]
    ours, theirs = (find_differences(one, pairs)[0]["a"]["words"] for one in (onnx, two))
    assert [word["differs"] for word in ours] == pytest.approx([word["differs"] for word in theirs], abs=1e-3)
    with pytest.raises(ValueError, match="'anchor' alone, got 'rationale'"):
        onnx.sentence_features(ids, mask, embedding="rationale")
