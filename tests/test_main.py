"""The `hardkuma` command as a user runs it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

import hardkuma
from hardkuma import HardKumaModel, continues_batch, surface_batch
from hardkuma.__main__ import COMMANDS, DELEGATED_COMMANDS, main
from tests.forks import COMMAND, ForkServer


@pytest.fixture
def folder(make_model: Callable, tmp_path: Path) -> Path:
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_gates_of_arguments_and_of_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["gates", "--model", str(folder), "--rate", "0.2", "marie curie moved to paris", "a team won"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"[\[\]]", "", line) for line in lines] == ["marie curie moved to paris", "a team won"]
    assert all(line.count("[") == 1 for line in lines), "a fifth of five words is one; never none"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"einstein moved\n")))
    assert main(["gates", "--model", str(folder), "--numbers"]) == 0
    assert re.search(r"einstein \d\.\d\d  moved \d\.\d\d", capsys.readouterr().out)


def test_broken_pipe_is_no_error(folder: Path, forks: ForkServer, tmp_path: Path) -> None:
    """`hardkuma gates ... | head -1`."""
    (tmp_path / "texts.txt").write_text("marie curie moved to paris\n" * 3000)
    reader, writer = os.pipe()
    with (tmp_path / "texts.txt").open() as texts:
        process = forks.start(COMMAND, "gates", "--model", folder, stdin=texts.fileno(), stdout=writer)
    os.close(writer)
    with os.fdopen(reader) as shown:
        assert re.sub(r"[\[\]]", "", shown.readline()) == "marie curie moved to paris\n"
    assert process.wait() == 0 and "Traceback" not in process.stderr and "Broken" not in process.stderr


def test_train_is_handed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    assert "accelerate launch" in capsys.readouterr().out
    assert main(["train", "--max-sentence", "3"]) == 2
    assert "did you mean 'max_sentences'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--epoks", "3"], ["--model.target_rat", "0.3"], ["--model.target_rate", "3"], ["--epochs"]]
)
def test_a_wrong_option_of_train_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["train", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("hardkuma train: ") and words[0].lstrip("-").removeprefix("model.")[:6] in said


def test_bare_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of([]) == 0
    shown = capsys.readouterr()
    assert "start here:" in shown.out and all(name in shown.out for name in COMMANDS) and not shown.err


def test_the_folder_of_a_run_leads_to_its_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gates", "--model", str(folder.parent), "x"]) == 1
    assert f"this folder has no config.json; did you mean {folder}?\n" in capsys.readouterr().err


def test_benchmark_is_handed_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "tiny.conll"
    corpus.write_text("Marie B-PER\nmoved O\nto O\nParis B-LOC\n\nrain O\nagain O\nin O\nRome B-LOC\n")
    words = ["benchmark", "--data", str(corpus), "--output", str(tmp_path / "out"), "--methods", "random", "capitals"]
    assert main([*words, "--quiet", "--bootstrap", "20"]) == 0
    assert "capital letters" in capsys.readouterr().out.lower()
    assert main(["benchmark", "--data", str(tmp_path / "nowhere"), "--quiet"]) == 1
    assert "nowhere" in capsys.readouterr().err


def status_of(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as stopped:
        return int(stopped.code)


ALIASES = {"terms": "keyphrases"}  # two names of one command


@pytest.mark.parametrize("name", [*COMMANDS, *DELEGATED_COMMANDS])
def test_help_teaches_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"  hardkuma {ALIASES.get(name, name)} " in shown and ("example" in shown or name in ("train", "encoder"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--version"]) == 0
    assert capsys.readouterr().out == f"hardkuma {hardkuma.__version__}\n"


def test_help_lists_every_command_without_loading_anything() -> None:
    code = "import sys; from hardkuma.__main__ import build_parser; print(build_parser().format_help()); "
    code += "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, "help imports heavy packages"
    assert all(f"    {name} " in done.stdout or f"    {name}\n" in done.stdout for name in (*COMMANDS, *DELEGATED_COMMANDS))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["gates", "--file", "nowhere.txt"], "nowhere.txt: no such file"),
        (["gates", "--model", "no/such/folder", "x"], "no/such/folder"),
        (["gates", "--model", "./folder", "x"], "'./folder': no such folder"),
        (["gates", "--device", "meta", "x"], "device 'meta' cannot be used"),
        (["gates", "--output", "no/such/x.txt", "x"], "no/such is not a folder"),
        (["gates", "--model", "nobody/nothing", "x"], "'nobody/nothing': no such folder, and not to be had from the Hub"),
        (["gates", "--model", ".", "x"], "--model .: this folder has no config.json"),
        (["gates", "--model", __file__, "x"], "test_main.py: this is a file; give the folder of a checkpoint"),
        (["gates", "--file", "-", "--input-format", "parquet"], "cannot be read from standard input"),
        (["adapt", "--data", "nowhere.txt", "--output", "out"], "nowhere.txt: no such file"),
        (["adapt", "--data", "nowhere.txt", "--output", __file__], "test_main.py is a file; give a folder to save into"),
        (["export", "native", "--output", __file__], "test_main.py is a file; give a folder to save into"),
        (["gates", "--file", ""], "this is a folder, not a file"),
    ],
)
def test_faulty_input_is_one_sentence_and_exit_one(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status_of(words) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("hardkuma: ") and complaint in shown.err and shown.err.count("\n") == 1 and not shown.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--quiet"], "required: COMMAND"),
        (["gates", "--bogus"], "--bogus"),
        (["gates", "--selektor=x", "one"], "--selektor=x; did you mean --selector?"),
        (["demo", "--prot", "80"], "--prot 80; did you mean --port?"),
        (["pair", "a"], "required: B"),
        (["pair", __file__, "x"], "is a file, and pair takes texts; files: hardkuma diff"),
        (["diff", "We meet at 3 pm.", "We meet at 5 pm."], "is no file; for two texts: hardkuma pair"),
        (["export", "pdf", "x"], "'pdf'"),
        (["nothing"], "'nothing'"),
        (["keyphrase", "x.txt"], "did you mean keyphrases?"),
        (["gates", "--format", "jsonlines", "x"], "did you mean jsonl?"),
        (["keyphrases", "--top_n", "5", "x.txt"], "--top_n; did you mean --number?"),
        (["search", "notes", "--top-k=5", "x"], "--top-k=5 x; did you mean --number?"),
        (["gates", "--rate", "7", "x"], "rate must be a fraction in (0, 1], got 7.0."),
        (["gates", "--rate", "0.1", "--threshold", "0.5", "x"], "give one of rate, threshold and keep"),
        (["gates", "--batch-size", "0", "x"], "--batch-size must be a whole number >= 1, got 0."),
        (["gates", "--file", "nowhere.txt", "x"], "texts or --file, not both"),
        (["gates", "--field", "body", "x"], "--field names a column of --file"),
        (["gates", "--output", "x.doc", "x"], "the suffix '.doc' names no format"),
        (["gates", "--input-format", "tsv", "x"], "--input-format is the format of --file"),
        (["gates", "--columns", "id", "--format", "jsonl"], "--columns names columns of --file"),
        (["gates", "--columns", "id", "--file", "a.csv"], "--columns is for the formats jsonl, csv, tsv, parquet"),
        (["gates", "--selector", "all", "--format", "csv", "x"], "a row of csv has the words of one selector: name one"),
        (["gates", "--columns", "rate", "--file", "a.csv", "--format", "jsonl"], "every record has a field of this name"),
        (["gates", "--columns", "rates", "--file", "a.csv", "--format", "jsonl"], "every record has a field of this name"),
        (["gates", "--resume", "--file", "-", "--output", "x.txt"], "--resume needs --file and --output"),
        (["benchmark"], "required: --data"),
        (["benchmark", "--data", "x", "--sample", "0"], "--sample must be a whole number >= 1, got 0."),
        (["benchmark", "--data", "x", "--bootstrap", "-1"], "--bootstrap must be a whole number >= 1, got -1."),
        (["benchmark", "--data", "x", "--seeds", "0", "-1"], "--seeds must be >= 0, got -1."),
        (["benchmark", "--data", "x", "--model", "none", "--model", "y"], "--model none leaves gates out"),
        (["search", "notes", " "], "the question is empty."),
        (["gates", "--format", "parquet", "x"], "Parquet is written to a file"),
        (["gates", "--format", "jsonl", "--numbers", "x"], "--numbers belongs to the format text"),
        (["gates", "--resume", "--output", "x.txt", "x"], "--resume needs --file and --output"),
        (["pair", "--rate", "0", "a", "b"], "rate must be a fraction in (0, 1], got 0.0."),
        (["adapt", "--data", "x.txt", "--output", "out", "--batch-size", "0"], "--batch-size must be a whole number"),
        (["export", "native", "--output", "out", "--sentences", "1"], "--sentences must be at least 2, got 1."),
        (["export", "onnx", "--output", "out", "--field", "body"], "--field names a column of --data"),
        (["demo", "--port", "99999"], "--port must be in 1 to 65535, got 99999."),
    ],
)
def test_wrong_usage_exits_two(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("hardkuma") and shown.endswith(" --help\n") and complaint in shown
    assert shown.count("\n") == 1, "one line, and where to read more"


def test_colours_where_they_are_wanted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(**settings: str) -> str:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.setenv(name, settings.get(name, ""))
        assert main(["gates", "--model", str(folder), "--rate", "1", "marie\x07 moved"]) == 0
        return capsys.readouterr().out

    assert "\033[" not in shown() and "[marie]" in shown(NO_COLOR="1", FORCE_COLOR="1")
    forced = shown(FORCE_COLOR="1")
    assert "\033[" in forced and "\x07" not in forced, "what may be a terminal gets no control characters"


def test_interrupted_while_waiting_for_input_exits_130(folder: Path, forks: ForkServer) -> None:
    (source, typed), (shown, screen) = os.pipe(), os.pipe()
    process = forks.start(COMMAND, "gates", "--model", folder, "--format", "html", stdin=source, stdout=screen)
    os.close(source)
    os.close(screen)
    with os.fdopen(typed, "w") as keyboard, os.fdopen(shown) as page:
        keyboard.write("a team won\n" * 600)  # more than one chunk, so that it answers once and then waits
        keyboard.flush()
        assert page.readline().startswith("<!DOCTYPE html>")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130 and "Traceback" not in process.stderr


def test_the_released_head_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.is_progress_bar_enabled()
    assert main(["gates", "Marie Curie moved to Paris because she had to."]) == 0
    shown = capsys.readouterr()
    assert "[Paris]" in shown.out and "Loading weights" not in shown.err
    hardkuma.load_released()
    assert "Loading weights" not in capsys.readouterr().err and logging.is_progress_bar_enabled() == before


def test_pair(capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["pair", "A cat sleeps on the mat.", "My cat is <b>asleep</b> on the sofa."]
    assert main(pair) == 0
    shown = capsys.readouterr().out
    assert "A [cat] " in shown and "My [cat] is" in shown and re.search(r"similarity 0\.\d{3}", shown)
    assert re.search(r"^B  .*\{.*sofa\}\.$", shown, re.M) and "differs in" in shown
    assert "without one side's words" in shown and "\033" not in shown
    assert main([*pair, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["faithfulness"]["similarity_without"]["carrying"] < found["similarity"]
    assert main([*pair, "--format", "html"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!DOCTYPE html>") and "<b>asleep" not in page and page.endswith("</html>\n")
    assert "carries" in page and "<span>probability " not in page, "the legend is that of a pair"
    assert main(["pair", "A cat sleeps on the mat.", "My cat is called Tom."]) == 0
    assert "\ntogether: cat - cat\n" in capsys.readouterr().out, "and no function word"
    assert main(["pair", "", "x"]) == 0
    assert "no word carries it" in capsys.readouterr().out


def test_adapt_changes_the_surface_view_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "some.jsonl"
    data.write_text(
        "".join(json.dumps({"body": text}) + "\n" for text in ["Marie moved to Paris in 1891 .", "a team WON"] * 40)
    )
    output = tmp_path / "adapted"
    words = ["adapt", "--model", str(folder), "--data", str(data), "--field", "body", "--output", str(output), "--quiet"]
    assert main(words) == 0
    assert "from 80 texts" in capsys.readouterr().out
    before, after = HardKumaModel.from_pretrained(folder), HardKumaModel.from_pretrained(output)
    changed = {name for name, tensor in after.state_dict().items() if not torch.equal(tensor, before.state_dict()[name])}
    assert changed == {"gate_head.surface_log_odds"}
    # The same numbers as one pass by hand.
    inputs = before.tokenizer(["Marie moved to Paris in 1891 .", "a team WON"], padding=True, return_offsets_mapping=True,
                              return_tensors="pt")  # fmt: skip
    inputs["surface_ids"] = surface_batch(["Marie moved to Paris in 1891 .", "a team WON"], inputs.pop("offset_mapping"))
    expected = before.adapt_surface([dict(inputs)] * 40)
    assert torch.allclose(after.gate_head.surface_log_odds, expected, atol=1e-4)
    card = (output / "README.md").read_text()
    assert "80 texts of `some.jsonl`" in card and str(tmp_path) not in card


@pytest.mark.parametrize("words", [["adapt", "--output", "out", "--data"], ["search", "index", "--build"]])
def test_a_field_of_plain_text_is_refused_before_anything_is_loaded(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hardkuma.common.models.load_model", lambda *_: pytest.fail("a model was loaded"))
    Path("some.txt").write_text("marie\n")
    assert main([*words, "some.txt", "--field", "body"]) == 1
    said = capsys.readouterr().err
    assert "some.txt: the format 'text' has no columns; leave out --field\n" in said


def test_adapt_names_the_selectors(make_two: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, texts = make_two(), ["Marie moved to Paris in 1891 .", "a team WON"]
    model.save_pretrained(tmp_path / "two")
    (tmp_path / "some.txt").write_text("".join(f"{text}\n" for text in texts * 20))
    words = ["adapt", "--model", str(tmp_path / "two"), "--data", str(tmp_path / "some.txt"), "--quiet"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"lower +0\.00 +-?\d\.\d\d  meaning\n +lower +0\.00 +-?\d\.\d\d  entities\n", shown)
    # By the words of the text, which the vocabulary of this model does not know.
    inputs = model.tokenizer(texts, padding=True, return_offsets_mapping=True, return_tensors="pt")
    offsets = inputs.pop("offset_mapping")
    inputs |= {"surface_ids": surface_batch(texts, offsets), "continues": continues_batch(texts, offsets)}
    expected = model.adapt_surface([dict(inputs)] * 20)
    after = HardKumaModel.from_pretrained(tmp_path / "out").gate_head.surface_log_odds
    assert torch.allclose(after, expected, atol=1e-4) and not torch.allclose(after[0], after[1])


def test_little_text_adapts_little(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = HardKumaModel.from_pretrained(folder)
    model.gate_head.surface_log_odds[:, 1:] = 2.41
    model.save_pretrained(folder)
    data = tmp_path / "wiki.txt"
    data.write_text(" = Marie = \n Marie moved to <unk> . \n a team won \n Marie moved . \n")
    output = tmp_path / "adapted"
    assert main(["adapt", "--model", str(folder), "--data", str(data), "--output", str(output), "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "left out: 1 headings, 1 sentences with <unk>." in said and "2 texts are few" in said
    after = HardKumaModel.from_pretrained(output).gate_head.surface_log_odds
    assert (after[:, 1:] - 2.41).abs().max() < 0.3, "three tokens against a hundred"
    assert not torch.equal(after, model.gate_head.surface_log_odds)


def test_a_recipe_is_named_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # The recipe is read (else the complaint would be about it), and then the wrong value is named.
    assert main(["train", "recipes/contrastive.yaml", "--train.epochs", "0"]) == 2
    assert "epochs must be" in capsys.readouterr().err
    assert main(["train", "recipes/none.yaml"]) == 1
    assert "those that come along: " in capsys.readouterr().err


def test_the_benchmark_has_the_released_gates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "tiny.conll"
    corpus.write_text("Marie B-PER\nmoved O\nto O\nParis B-LOC\n\nrain O\nagain O\nin O\nRome B-LOC\n")
    words = ["benchmark", "--data", str(corpus), "--output", str(tmp_path / "out"), "--methods", "gates", "capitals"]
    assert main([*words, "--quiet", "--bootstrap", "20", "--no-lower"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"^\|.*gates", shown.out, re.M | re.I) and "needs a HardKuma checkpoint" not in shown.out + shown.err


def test_demo_is_handed_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not installed
    assert status_of(["demo"]) == 1
    assert "pip install" in capsys.readouterr().err


def test_ctrl_c_ends_the_demo_with_130(forks: ForkServer) -> None:
    pytest.importorskip("uvicorn")
    shown, screen = os.pipe()
    process = forks.start(COMMAND, "demo", stdout=screen)
    os.close(screen)
    with os.fdopen(shown) as page:
        assert "The demo is at http" in next(line for line in page if "demo" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130 and "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("words", "option"), [(["train", "--data", "[body.jsonl]"], "--column"), (["terms", "body.jsonl"], "--field")]
)
def test_an_error_about_a_file_names_the_option_of_the_command(
    words: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("body.jsonl").write_text('{"body": "marie moved to paris"}\n')
    assert main(words) == 1
    said = capsys.readouterr().err
    assert f"no column 'text' or 'sentence' among 'body'; name one of these with {option}" in said
    assert ("--field" in said) == (option == "--field")
