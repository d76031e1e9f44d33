"""`train.py` from end to end on a tiny encoder: results, resume to the bit, several processes, faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from hardkuma import HardKumaModel, train
from hardkuma.training import resuming, subsets, trainer
from hardkuma.training.recipe import load_recipe
from tests.forks import ForkServer

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def run(arguments: list[str]) -> int:
    AcceleratorState._reset_state(reset_partial_state=True)
    return train.main(arguments)


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_run_leaves_a_folder_that_loads(arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dev = tmp_path / "dev.conll"
    dev.write_text("marie B-PER\nmoved O\nto O\nparis B-LOC\n")
    assert run(arguments(model__rate_constraint="lagrangian", dev=dev)) == 0
    out = capsys.readouterr().out
    assert "Selected words" in out and "Beethoven" in out
    folder = tmp_path / "run" / "model"
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert model(**tokenizer(["marie moved to paris"], return_tensors="pt")).gates.shape == (1, 6)
    assert float(model.gate_head.surface_log_odds.abs().sum()) > 0, "the surface view was estimated"
    names = {path.name for path in folder.iterdir()}
    assert {"README.md", "recipe.yaml", "run.json", "losses.png", "rate.png", "log.jsonl"} <= names
    record = json.loads((folder / "run.json").read_text())
    assert record["versions"]["torch"] == torch.__version__ and record["seed"] == 0
    card = (folder / "README.md").read_text()
    assert "took no part in training: average precision" in card
    assert "Trained without labels on" in card and "**" in card and str(tmp_path) not in card
    entries = log(tmp_path / "run")
    steps = [e["step"] for e in entries if "loss" in e]
    assert steps == list(range(16)), "two epochs"
    assert all({"sufficiency", "remainder", "score"} <= set(e) for e in entries if "score" in e)
    assert not (tmp_path / "run" / "checkpoints").exists() and not (tmp_path / "run" / "store").exists()


BY_REMOVAL = [path for path in RECIPES if load_recipe(path).objective == "removal"]
CONTRASTIVE = [path for path in RECIPES if path not in BY_REMOVAL]
WITH_ENTITIES = [path for path in BY_REMOVAL if "entities" in load_recipe(path).model["selector_names"]]


@pytest.mark.parametrize("path", CONTRASTIVE, ids=[path.stem for path in CONTRASTIVE])
def test_every_contrastive_recipe_trains(path: Path, arguments: Callable, tmp_path: Path) -> None:
    assert run(arguments(recipe=str(path), max_steps=5, epochs=10, max_sentences="null")) == 0
    assert len([e for e in log(tmp_path / "run") if "loss" in e]) == 5


@pytest.fixture(scope="session")
def cased(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sentences, cities and people among their words with a capital."""
    names = ("paris", "berlin", "london", "marie", "curie", "einstein", "google", "apple", "nasa")
    path = tmp_path_factory.mktemp("cased") / "text.txt"
    lines = corpus.read_text().splitlines()
    path.write_text("\n".join(" ".join(w.title() if w in names else w for w in line.split()) for line in lines) + "\n")
    return path


SMALL = {"removal_epochs": 2, "model__selector_layer": "[0.0, 1.0]"}


@pytest.mark.parametrize("path", WITH_ENTITIES, ids=[path.stem for path in WITH_ENTITIES])
def test_both_selectors_are_trained_measured_and_shown(
    path: Path, arguments: Callable, cased: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(recipe=str(path), data=f"[{cased}]", **SMALL)) == 0
    shown = capsys.readouterr().out
    assert "\nmeaning:\n" in shown and "\nentities:\n" in shown
    model = HardKumaModel.from_pretrained(tmp_path / "run" / "model").eval()
    assert model.config.names == ["meaning", "entities"]
    phases = [(e["phase"], e["selector"]) for e in log(tmp_path / "run") if "phase" in e]
    assert phases[-2:] == [("saved", "meaning"), ("saved", "entities")], "the criterion sees what is saved"
    saved = [e for e in log(tmp_path / "run") if e.get("phase") == "saved"]
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    for entry in saved:
        assert f"| {entry['selector']} |" in card and f"{entry['sufficiency']:.3f}" in card
        rate = model.config.of_selector("target_rate", model.config.names.index(entry["selector"]))
        assert entry["rate"] == pytest.approx(rate, rel=0.3)


def test_text_without_capitals_says_so_and_what_to_do(
    arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(recipe="default", **SMALL)) == 1
    said = capsys.readouterr().err
    assert "has a capital inside a sentence" in said and "(model.selector_names: [meaning])" in said
    assert not (tmp_path / "run" / "store" / "removal").exists(), "before anything else is done"
    assert run(arguments(recipe="default", entities_epochs=0, **SMALL)) == 1
    assert "entities_epochs: 0 would leave 'entities' at random" in capsys.readouterr().err
    assert run(arguments(recipe="default", model__selector_names="[meaning]", **SMALL)) == 0
    assert HardKumaModel.from_pretrained(tmp_path / "run" / "model").config.names == ["meaning"]


def test_removal_is_interrupted_between_chunks(
    arguments: Callable, cased: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = arguments(recipe="default", data=f"[{cased}]", **SMALL)
    monkeypatch.setattr(subsets, "CHUNK", 64)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_agree_on_interrupt", lambda self: True)
        assert run(options) == 130
    assert "the same command goes on" in capsys.readouterr().err and not (tmp_path / "run" / "model").exists()
    measured = list((tmp_path / "run" / "store" / "removal").iterdir())
    assert len(measured) == 1
    assert run(options) == 0 and run(arguments("whole", recipe="default", data=f"[{cased}]", **SMALL)) == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.parametrize("recipe", ["default", "specialise"])
def test_two_processes_remove_words_as_one(
    recipe: str, arguments: Callable, cased: Path, forks: ForkServer, tmp_path: Path
) -> None:
    extra = {"data": f"[{cased}]", "cache_type": "float32", **SMALL}
    if recipe == "specialise":
        extra |= {"kinds": 2, "kinds_steps": 3, "model__selector_layer": "{meaning: [0.5, 1.0], kind: 1.0}"}
        extra |= {"selector_names": "[one, other]", "meaning": "null"}  # rounding must not decide a name
    assert run(arguments("one", recipe=recipe, **extra)) == 0
    two = forks.start_ranks(2, TRAIN, *arguments("two", recipe=recipe, **extra), ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in two] == [0, 0], two[0].stderr[-3000:]
    one, both = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        assert torch.allclose(value.float(), both[name].float(), atol=1e-3), name


@pytest.mark.parametrize("batches", ["random", "length"])
def test_other_batches_and_live_encoding(batches: str, arguments: Callable, tmp_path: Path) -> None:
    """Stored float32 states and live encoding must train the same gates."""
    extra = {"batches": batches, "max_steps": 4, "evaluate_every": 2}
    assert run(arguments("live", cache="never", **extra)) == 0
    assert run(arguments("stored", cache_type="float32", **extra)) == 0
    live, stored = log(tmp_path / "live"), log(tmp_path / "stored")
    assert [e["loss"] for e in live if "loss" in e] == pytest.approx([e["loss"] for e in stored if "loss" in e], abs=1e-4)


def test_trainable_encoder_mixed_precision_and_parts(
    arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder's products are in bf16 in every training pass, of rationales too."""
    types: list[torch.dtype] = []
    real = trainer.train_step

    def step(model: HardKumaModel, *rest: Any) -> object:
        layer = model.encoder.encoder.layer[0].intermediate.dense
        hook = layer.register_forward_hook(lambda _, inputs, output: types.append(output.dtype))
        result = real(model, *rest)
        hook.remove()
        return result

    monkeypatch.setattr(trainer, "train_step", step)
    extra = {"model__freeze_encoder": "false", "mixed_precision": "bf16", "micro_batch": 4, "max_steps": 2}
    assert run(arguments(**extra)) == 0
    assert types and set(types) == {torch.bfloat16}
    model = AutoModel.from_pretrained(tmp_path / "run" / "model", trust_remote_code=True)
    assert not model.config.freeze_encoder


class Killed(Exception):
    """Stands for the process being gone."""


def kill_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    real = trainer.train_step

    def step_or_die(model: object, optimizer: object, batch: object, recipe: object, accelerator: object) -> object:
        if kill_after.count == step:
            raise Killed
        kill_after.count += 1
        return real(model, optimizer, batch, recipe, accelerator)

    kill_after.count = 0
    monkeypatch.setattr(trainer, "train_step", step_or_die)


def test_resume_is_exact_to_the_bit(arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the first and in the second epoch, after a checkpoint; dropout draws random numbers too."""
    extra = {"model__selector_dropout": 0.2, "model__rate_constraint": "lagrangian", "patience": 50, "checkpoint_every": 4}
    assert run(arguments("whole", **extra)) == 0
    for step in (6, 14):
        kill_after(monkeypatch, step)
        with pytest.raises(Killed):
            run(arguments("cut", **extra))
        monkeypatch.undo()
        kept = [path.name for path in resuming.checkpoints(tmp_path / "cut" / "checkpoints")]
        assert kept == (["step-00000004"] if step == 6 else ["step-00000008", "step-00000012"]), "the last two"
        assert run([*arguments("cut", **extra), "--resume"]) == 0
        assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
        assert log(tmp_path / "cut") == log(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_the_step_saves_and_says_how_to_go_on(
    number: signal.Signals,
    arguments: Callable,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, steps = trainer.train_step, []

    def interrupted_step(*given: object) -> object:
        steps.append(len(steps))
        if len(steps) == 3:
            signal.raise_signal(number)
        return real(*given)

    monkeypatch.setattr(trainer, "train_step", interrupted_step)
    assert run(arguments(checkpoint_every=100000)) == 130
    assert "stopped at step 3; go on with --resume" in capsys.readouterr().err
    [saved] = resuming.checkpoints(tmp_path / "run" / "checkpoints")
    assert json.loads((saved / "progress.json").read_text())["step"] == 3
    assert not (tmp_path / "run" / "model").exists()


def test_resume_refuses_another_recipe(
    arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after(monkeypatch, 6)
    with pytest.raises(Killed):
        run(arguments())
    monkeypatch.undo()
    assert run([*arguments(learning_rate=0.5), "--resume"]) == 1
    assert "differs from this recipe" in capsys.readouterr().err


def test_early_stopping_keeps_the_best(arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.1, 0.5, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
    saved = []
    real = trainer.trained_state
    monkeypatch.setattr(trainer, "trained_state", lambda model: saved.append(real(model)) or saved[-1])
    monkeypatch.setattr(trainer, "selection_quality", lambda *a, **k: trainer.Quality(0.0, 0.0, next(scores), 0.2))
    assert run(arguments(evaluate_every=3, patience=2)) == 0
    assert [e["step"] for e in log(tmp_path / "run") if "loss" in e][-1] == 11, "12 steps: evaluated at 3, 6, 9 and 12"
    model = AutoModel.from_pretrained(tmp_path / "run" / "model", trust_remote_code=True)
    assert torch.equal(model.gate_head.selectors[0].hidden.weight, saved[-1]["gate_head.selectors.0.hidden.weight"])
    assert len(saved) == 2, "two evaluations were better than those before"


# ---- several processes --------------------------------------------------------------------------------------------------

LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "accelerate": [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(ROOT / "recipes" / "accelerate" / "two_processes.yaml"),
    ],
}


# `python train.py`, its arguments being the fork's.
TRAIN = f"import runpy; runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"


AS_ONE = {
    "max_steps": 12,  # into the second epoch
    "model__rate_constraint": "lagrangian",
    "model__view": "reencode",
    "model__temperature": 0.3,
    "cache_type": "float32",
}


@pytest.fixture(scope="module")
def losses_of_one(quick_run: Callable, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("one")
    assert run(quick_run(folder, **AS_ONE)) == 0
    return [e["loss"] for e in log(folder) if "loss" in e]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_processes_train_as_one(name: str, losses_of_one: list[float], arguments: Callable, tmp_path: Path) -> None:
    command = [*LAUNCHERS[name], str(ROOT / "train.py"), *arguments("two", **AS_ONE)]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Selected words") == 1, "one process speaks"
    two = [e["loss"] for e in log(tmp_path / "two") if "loss" in e]
    assert len(two) == 12 and two == pytest.approx(losses_of_one, abs=1e-4)
    assert json.loads((tmp_path / "two" / "model" / "run.json").read_text())["processes"] == 2


def test_two_processes_resume_to_the_bit(arguments: Callable, forks: ForkServer, tmp_path: Path) -> None:
    extra = {"max_steps": 40, "epochs": 5, "model__selector_dropout": 0.2}
    whole = forks.start_ranks(2, TRAIN, *arguments("whole", **extra), ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in whole] == [0, 0], whole[0].stderr[-3000:]
    cut = forks.start_ranks(2, TRAIN, *arguments("cut", **extra), ACCELERATE_USE_CPU="true")
    while not resuming.checkpoints(tmp_path / "cut" / "checkpoints") and cut[0].poll() is None:
        time.sleep(0.02)
    for process in cut:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert resuming.checkpoints(tmp_path / "cut" / "checkpoints") and not (tmp_path / "cut" / "model").exists()
    again = forks.start_ranks(2, TRAIN, *arguments("cut", **extra), "--resume", ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in again] == [0, 0], again[0].stderr[-3000:]
    assert "resuming from step" in again[0].stderr
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "model" / "run.json").read_text())["processes"] == 2


# ---- faults -------------------------------------------------------------------------------------------------------------


def failing(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int = 1) -> str:
    assert run(arguments) == status
    return capsys.readouterr().err


def test_faults_of_the_input(arguments: Callable, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'epochs'" in failing([*arguments(), "--epoch", "3"], capsys, status=2)
    assert "did you mean 'temperature'" in failing([*arguments(), "--model.temprature", "3"], capsys)
    assert "smaller batch_size" in failing(arguments(batch_size=150), capsys)
    same = tmp_path / "same.txt"
    same.write_text("the museum in paris opened\n" * 50)
    assert "fewer than one batch" in failing(arguments(data=f"[{same}]"), capsys), "duplicates are dropped"
    unknown = tmp_path / "unknown.txt"
    unknown.write_text("".join(f"zq{i} zq{i} zq{i} zq{i}\n" for i in range(100)))
    assert "nothing to tell apart" in failing(arguments(data=f"[{unknown}]"), capsys)
    assert "absent.txt" in failing(arguments(data=f"[{tmp_path / 'absent.txt'}]"), capsys)
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"the museum in paris opened\n\xff\xfe is not utf-8 at all\n")
    message = failing(arguments(data=f"[{broken}]"), capsys)
    assert "broken.txt" in message and "line 2" in message
    short = tmp_path / "short.txt"
    short.write_text("a b\nc d\n")
    assert "no sentence of 4 to 64 words" in failing(arguments(data=f"[{short}]"), capsys)
    assert not list(tmp_path.glob("*/model")), "nothing half-written"


def test_what_one_process_cannot_read_ends_all(arguments: Callable, forks: ForkServer, tmp_path: Path) -> None:
    """The text is read by one process of a machine; the others must not wait for it."""
    absent = tmp_path / "absent.txt"
    ranks = forks.start_ranks(2, TRAIN, *arguments("two", data=f"[{absent}]"), ACCELERATE_USE_CPU="true")
    assert [rank.wait(120) for rank in ranks] == [1, 1]
    assert all(f"train.py: {absent}: no such file" in rank.stderr for rank in ranks)


def test_machines_share_what_one_of_them_encodes(arguments: Callable, forks: ForkServer, tmp_path: Path) -> None:
    """Two processes, each the first of its machine."""
    machine = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "ACCELERATE_USE_CPU": "true"}
    ranks = forks.start_ranks(2, TRAIN, *arguments("two", max_steps=2), **machine)
    assert [rank.wait(120) for rank in ranks] == [0, 0], ranks[0].stderr[-3000:]
    assert ["tokenising" in rank.stderr for rank in ranks] == [True, False]
    assert (tmp_path / "two" / "model").is_dir()


def test_disk_full_while_saving(
    arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before the full disk stays whole, and the run can go on from it."""
    real, calls = resuming.save_file, []

    def full(tensors: object, path: Path) -> None:
        calls.append(path)
        if len(calls) > 4:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(resuming, "save_file", full)
    assert "could not be written" in failing(arguments("run"), capsys)
    left = list((tmp_path / "run" / "checkpoints").iterdir())
    assert [path.name for path in left] == ["step-00000005"]
    monkeypatch.undo()
    assert run([*arguments("run"), "--resume"]) == 0
    assert run(arguments("whole")) == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_help_is_the_manual_and_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--help"]) == 0
    script = capsys.readouterr().out
    assert "accelerate launch" in script and "--batch_size INT" in script and "python train.py specialise" in script
    assert train.main(["--help"], prog="hardkuma train") == 0
    command = capsys.readouterr().out
    assert "--batch_size INT" in command and "hardkuma train specialise" in command and "python train.py" not in command


@pytest.mark.parametrize(("words", "status"), [(["--epoch", "3"], 2), (["absent"], 1), (["--model.temprature", "3"], 1)])
def test_errors_begin_with_the_name_of_the_command(
    words: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for prog in ("train.py", "hardkuma train"):
        assert train.main(words, prog=prog) == status
        assert capsys.readouterr().err.startswith(f"{prog}: ")


def test_a_recipe_by_name_outside_of_the_checkout(
    arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments(recipe="recipes/fourier.yaml", max_steps=1)) == 0
    assert "frequency_filter: low" in (tmp_path / "run" / "recipe.yaml").read_text()


@pytest.mark.parametrize("weight", [0.5, -0.5])
def test_two_contrastive_selectors_are_aligned_or_separated(weight: float, arguments: Callable, tmp_path: Path) -> None:
    extra = {"model__num_selectors": 2, "model__lambda_s": "[1.0, 0.5]", "model__lambda_kl": weight, "max_steps": 8}
    assert run(arguments(**extra, learning_rate=0.01)) == 0
    kl = [entry["loss/kl"] for entry in log(tmp_path / "run") if "loss" in entry]
    assert (kl[-1] < kl[0]) == (weight > 0)


def test_a_misspelt_key_of_the_model_is_found_before_anything_is_touched(
    arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean 'temperature'" in failing([*arguments(encoder="absent"), "--model.temprature", "3"], capsys)
    assert not (tmp_path / "run").exists()
