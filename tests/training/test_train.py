"""`train.py` from end to end on a tiny encoder: results, resume to the bit, several processes, faults."""

from __future__ import annotations

import json
import os
import shlex
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
from hardkuma.training import loop, subsets
from hardkuma.training.objectives import contrastive
from hardkuma.training.recipe import load_recipe
from hardkuma.training.run import Run
from tests.forks import ForkServer

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def run(arguments: list[str]) -> int:
    AcceleratorState._reset_state(reset_partial_state=True)
    return train.main(arguments)


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_run_leaves_a_folder_that_loads(arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dev = tmp_path / "dev.conll"
    dev.write_text("marie B-PER\nmoved O\nto O\nparis B-LOC\n")
    assert run(arguments(dev=dev)) == 0
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
    assert "Trained without labels on" in card and "by the contrastive objective, in 16 steps" in card
    assert "**" in card and str(tmp_path) not in card and "![losses](losses.png)" in card
    entries = log(tmp_path / "run")
    steps = [e["step"] for e in entries if "loss" in e]
    assert steps == list(range(16)), "two epochs"
    assert all({"sufficiency", "remainder", "score"} <= set(e) for e in entries if "score" in e)
    assert entries[-2]["phase"] == "contrastive" and entries[-1]["phase"] == "saved"
    assert not (tmp_path / "run" / "checkpoints").exists() and not (tmp_path / "run" / "store").exists()


CONTRASTIVE = [
    path
    for path in RECIPES
    if any(selector["train"]["objective"] == "contrastive" for selector in load_recipe(path).selectors.values())
]
WITH_ENTITIES = [path for path in RECIPES if "entities" in load_recipe(path).selectors]


@pytest.mark.parametrize("path", CONTRASTIVE, ids=[path.stem for path in CONTRASTIVE])
def test_every_contrastive_recipe_trains(path: Path, arguments: Callable, tmp_path: Path) -> None:
    assert run(arguments(recipe=str(path), **{"train.max_steps": 5})) == 0
    assert len([e for e in log(tmp_path / "run") if "loss" in e]) == 5


@pytest.mark.parametrize("name", [path.stem for path in WITH_ENTITIES])
def test_both_selectors_are_trained_measured_and_shown(
    name: str, arguments: Callable, cased: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(recipe=name, data=f"[{cased}]")) == 0
    shown = capsys.readouterr()
    assert "\nmeaning:\n" in shown.out and "\nentities:\n" in shown.out
    assert "words of this text have a capital inside a sentence" in shown.err
    model = HardKumaModel.from_pretrained(tmp_path / "run" / "model").eval()
    assert model.config.names == ["meaning", "entities"] and bool(model.gate_head.isolated_scale.any())
    phases = [(e["phase"], e["selector"]) for e in log(tmp_path / "run")]
    assert phases == [("removal", "meaning"), ("form", "entities"), ("saved", "meaning"), ("saved", "entities")]
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "Gates of `meaning`:" in card and "Gates of `entities`:" in card
    for entry in log(tmp_path / "run")[2:]:
        assert f"| {entry['selector']} |" in card and f"{entry['sufficiency']:.3f}" in card
        assert entry["rate"] == pytest.approx(model.config.selectors[entry["selector"]].target_rate, rel=0.3)


def test_text_without_capitals_says_so_before_anything_is_written(
    arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(recipe="default")) == 1
    said = capsys.readouterr().err
    assert "without capitals inside of sentences" in said and "(--selectors.entities null)" in said
    assert not (tmp_path / "run").exists()
    assert run(arguments(recipe="default", **{"selectors.entities": "null"})) == 0
    assert HardKumaModel.from_pretrained(tmp_path / "run" / "model").config.names == ["meaning"]


def test_removal_is_interrupted_between_chunks(
    arguments: Callable, cased: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = arguments(recipe="default", data=f"[{cased}]")
    monkeypatch.setattr(subsets, "CHUNK", 64)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "is_interrupted", lambda self: True)
        assert run(options) == 130
    assert "the same command goes on" in capsys.readouterr().err and not (tmp_path / "run" / "model").exists()
    measured = list((tmp_path / "run" / "store" / "removal").iterdir())
    assert len(measured) == 1
    assert run(options) == 0 and run(arguments("whole", recipe="default", data=f"[{cased}]")) == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_contrastive_selectors_and_others_in_one_recipe(
    arguments: Callable, cased: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    """What other selectors are trained by makes no difference to a contrastive one, nor it to them."""
    recipe = load_recipe("default").as_dict()
    recipe |= {"data": [str(cased)], "encoder": str(encoder_folder), "split_sentences": False, "held_out": 32}
    recipe["model"]["rate_constraint"] = "lagrangian"
    both = recipe["selectors"]
    one = {"one": {"layer": 1, "train": {"objective": "contrastive", "batch_size": 16, "max_steps": 3}}}
    heads = {}
    for name, selectors in (("all", {**one, **both}), ("one", one), ("both", both)):
        values = {**recipe, "selectors": selectors, "output": str(tmp_path / name)}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(values))
        assert run([str(tmp_path / f"{name}.yaml")]) == 0
        model = HardKumaModel.from_pretrained(tmp_path / name / "model")
        pairs = zip(model.config.names, model.gate_head.selectors, strict=True)
        heads[name] = {selector: reader.state_dict() for selector, reader in pairs}
    for name, states in heads["all"].items():
        for key, value in states.items():
            expected = heads["one" if name == "one" else "both"][name][key]
            assert torch.allclose(value, expected, atol=1e-5), (name, key)
    assert [e["phase"] for e in log(tmp_path / "all") if "phase" in e][:3] == ["contrastive", "removal", "form"]


def test_random_batches_and_live_encoding(arguments: Callable, tmp_path: Path) -> None:
    """Stored float32 states and live encoding must train the same gates."""
    # Of states alone: measures are divided by their spread, which is tiny for a random encoder, and so is their rounding.
    extra = {
        "train.batches": "random",
        "train.max_steps": 4,
        "train.evaluate_every": 2,
        "selectors.meaning.reads": "[state]",
    }
    assert run(arguments("live", cache="never", **extra)) == 0
    assert run(arguments("stored", cache_type="float32", **extra)) == 0
    live, stored = log(tmp_path / "live"), log(tmp_path / "stored")
    assert [e["loss"] for e in live if "loss" in e] == pytest.approx([e["loss"] for e in stored if "loss" in e], abs=1e-4)


def test_trainable_encoder_mixed_precision_and_parts(
    arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder's products are in bf16 in every training pass, of rationales too, and in none after training."""
    types: list[torch.dtype] = []
    after: list[torch.dtype] = []
    real, surface = contrastive.train_step, HardKumaModel.adapt_surface

    def watch(model: HardKumaModel, types: list[torch.dtype], call: Callable[[], Any]) -> Any:
        layer = model.encoder.encoder.layer[0].intermediate.dense
        hook = layer.register_forward_hook(lambda _, inputs, output: types.append(output.dtype))
        result = call()
        hook.remove()
        return result

    monkeypatch.setattr(contrastive, "train_step", lambda model, *rest: watch(model, types, lambda: real(model, *rest)))
    monkeypatch.setattr(
        HardKumaModel, "adapt_surface", lambda self, batches: watch(self, after, lambda: surface(self, batches))
    )
    small = {"train.mixed_precision": "bf16", "train.micro_batch": 4, "train.max_steps": 2}
    assert run(arguments(**{"model.freeze_encoder": "false"}, **small)) == 0
    assert types and set(types) == {torch.bfloat16} and after and set(after) == {torch.float32}
    model = AutoModel.from_pretrained(tmp_path / "run" / "model", trust_remote_code=True)
    assert not model.config.freeze_encoder


def test_only_the_contrastive_objective_has_an_optimizer_of_the_whole_model(
    arguments: Callable, cased: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdamW and DistributedDataParallel were built for objectives that use neither."""
    monkeypatch.setattr("accelerate.Accelerator.prepare", lambda *_: pytest.fail("prepared"))
    assert run(arguments(recipe="default", data=f"[{cased}]")) == 0


class Killed(Exception):
    """Stands for the process being gone."""


def kill_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    real, count = contrastive.train_step, 0

    def step_or_die(*given: object) -> object:
        nonlocal count
        if count == step:
            raise Killed
        count += 1
        return real(*given)

    monkeypatch.setattr(contrastive, "train_step", step_or_die)


def test_resume_is_exact_to_the_bit(arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the first and in the second epoch, after a checkpoint."""
    extra = {"train.checkpoint_every": 4}
    assert run(arguments("whole", **extra)) == 0
    for step in (6, 14):
        kill_after(monkeypatch, step)
        with pytest.raises(Killed):
            run(arguments("cut", **extra))
        monkeypatch.undo()
        kept = [path.name for path in loop.checkpoints(tmp_path / "cut" / "checkpoints")]
        assert kept == (["step-00000004"] if step == 6 else ["step-00000008", "step-00000012"]), "the last two"
        assert run([*arguments("cut", **extra), "--resume"]) == 0
        assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
        assert log(tmp_path / "cut") == log(tmp_path / "whole")


def test_resume_falls_back_to_the_checkpoint_before(
    arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments("whole")) == 0
    kill_after(monkeypatch, 12)
    with pytest.raises(Killed):
        run(arguments("cut"))
    monkeypatch.undo()
    newest = loop.checkpoints(tmp_path / "cut" / "checkpoints")[-1] / "optimizer.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    assert run([*arguments("cut"), "--resume"]) == 0
    said = capsys.readouterr().err
    assert "step-00000010 cannot be read" in said and "resuming from step 5." in said
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_the_step_saves_and_says_how_to_go_on(
    number: signal.Signals,
    arguments: Callable,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, steps = contrastive.train_step, []

    def interrupted_step(*given: object) -> object:
        steps.append(len(steps))
        if len(steps) == 3:
            signal.raise_signal(number)
        return real(*given)

    monkeypatch.setattr(contrastive, "train_step", interrupted_step)
    assert run(arguments(**{"train.checkpoint_every": 100000})) == 130
    assert "stopped at step 3; go on with --resume" in capsys.readouterr().err
    [saved] = loop.checkpoints(tmp_path / "run" / "checkpoints")
    assert json.loads((saved / "progress.json").read_text())["step"] == 3
    assert not (tmp_path / "run" / "model").exists()


def test_the_best_state_is_kept(arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.1, 0.5, 0.3, 0.2, 0.1, 0.1, 0.1])
    saved = []
    real = contrastive.trained_state
    monkeypatch.setattr(contrastive, "trained_state", lambda model: saved.append(real(model)) or saved[-1])
    monkeypatch.setattr(contrastive, "selection_quality", lambda *a, **k: contrastive.Quality(0.0, 0.0, next(scores), 0.2))
    assert run(arguments(**{"train.evaluate_every": 3})) == 0
    model = AutoModel.from_pretrained(tmp_path / "run" / "model", trust_remote_code=True)
    assert torch.equal(model.gate_head.selectors[0].hidden.weight, saved[1]["gate_head.selectors.0.hidden.weight"])
    assert len(saved) == 3, "two evaluations were better than those before, and the last state is kept beside them"


# ---- the output folder ------------------------------------------------------------------------------------------------


def test_the_same_command_twice_and_another_one(
    arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It started over without a word, whatever was there."""
    short = {"train.max_steps": 2}
    assert run(arguments(**short)) == 0
    made = weights(tmp_path / "run")
    assert "was made" not in capsys.readouterr().err
    assert run(arguments(**short)) == 0 and weights(tmp_path / "run") == made
    assert "was made by this very recipe: it is replaced when this run is done." in capsys.readouterr().err
    assert run(arguments(seed=1, **short)) == 1 and weights(tmp_path / "run") == made
    assert "was made by another recipe: use another --output, or --overwrite to replace it." in capsys.readouterr().err
    assert run([*arguments(seed=1, **short), "--overwrite"]) == 0 and weights(tmp_path / "run") != made


def test_an_unfinished_run_is_not_thrown_away(
    arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after(monkeypatch, 6)
    with pytest.raises(Killed):
        run(arguments())
    monkeypatch.undo()
    assert run(arguments()) == 1 and "go on with --resume, or start over with --overwrite" in capsys.readouterr().err
    assert run([*arguments(**{"train.learning_rate": 0.5}), "--resume"]) == 1
    assert "differs from this recipe" in capsys.readouterr().err
    assert loop.checkpoints(tmp_path / "run" / "checkpoints")
    assert run([*arguments(), "--overwrite"]) == 0


# ---- several processes ------------------------------------------------------------------------------------------------

# It hands over to torch.distributed.run, which is torchrun.
LAUNCHER = [
    sys.executable,
    "-m",
    "accelerate.commands.launch",
    "--config_file",
    str(ROOT / "recipes" / "accelerate" / "two_processes.yaml"),
]
# `python train.py`, its arguments being the fork's.
TRAIN = f"import runpy; runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"
AS_ONE = {"train.max_steps": 12, "cache_type": "float32"}  # into the second epoch


def test_two_launched_processes_train_as_one(arguments: Callable, tmp_path: Path) -> None:
    assert run(arguments("one", **AS_ONE)) == 0
    one = [e["loss"] for e in log(tmp_path / "one") if "loss" in e]
    command = [*LAUNCHER, str(ROOT / "train.py"), *arguments("two", **AS_ONE)]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Selected words") == 1, "one process speaks"
    two = [e["loss"] for e in log(tmp_path / "two") if "loss" in e]
    assert len(two) == 12 and two == pytest.approx(one, abs=1e-4)
    assert json.loads((tmp_path / "two" / "model" / "run.json").read_text())["processes"] == 2


def start_two(forks: ForkServer, words: list[str]) -> None:
    two = forks.start_ranks(2, TRAIN, *words, ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in two] == [0, 0], two[0].stderr[-3000:]


def check_same(one: Path, two: Path) -> None:
    first, second = (load_file(folder / "model" / "model.safetensors") for folder in (one, two))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.allclose(value.float(), second[name].float(), atol=1e-3), name


@pytest.mark.parametrize("recipe", ["contrastive", "default", "parts"])
def test_two_processes_leave_what_one_leaves(
    recipe: str, arguments: Callable, cased: Path, forks: ForkServer, tmp_path: Path
) -> None:
    """contrastive: DistributedDataParallel; default: removal and form; parts: removal and parts."""
    extra = {"data": f"[{cased}]", "cache_type": "float32"}
    if recipe == "parts":
        extra["train.names"] = "[one, other]"  # rounding must not decide a name
    assert run(arguments("one", recipe=recipe, **extra)) == 0
    start_two(forks, arguments("two", recipe=recipe, **extra))
    check_same(tmp_path / "one", tmp_path / "two")


def test_two_processes_copy_as_one(arguments: Callable, cased: Path, forks: ForkServer, tmp_path: Path) -> None:
    extra = {"data": f"[{cased}]", "cache_type": "float32"}
    assert run(arguments("source", recipe="default", **extra)) == 0
    copied = {
        **extra,
        "selectors.meaning.train": f"{{objective: copy, checkpoint: {tmp_path / 'source' / 'model'}}}",
        "selectors.entities.train": f"{{objective: copy, checkpoint: {tmp_path / 'source' / 'model'}}}",
    }
    words = [*arguments("one", recipe="default", **copied)]
    start = words.index("--selectors.meaning.train.epochs")
    del words[start : start + 2]
    assert run(words) == 0
    start_two(forks, [str(tmp_path / "two") if word == str(tmp_path / "one") else word for word in words])
    check_same(tmp_path / "one", tmp_path / "two")
    source, copy = (HardKumaModel.from_pretrained(tmp_path / name / "model") for name in ("source", "two"))
    for ours, theirs in zip(copy.gate_head.selectors, source.gate_head.selectors, strict=True):
        assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())


EVERYWHERE = """
import sys, torch
from hardkuma.training.arguments import parse_arguments
from hardkuma.training.recipe import load_recipe
from hardkuma.training.run import start_run
folder, *words = sys.argv[1:]
options = parse_arguments(words)
run = start_run(load_recipe(options.recipe, options.overrides))
for objective in run.objectives:
    assert objective.fit(run)
run.adapt_surface()
state = {"names": run.model.config.names, "rates": [s.target_rate for s in run.model.config.selectors.values()]}
torch.save({**state, "head": run.model.gate_head.state_dict()}, f"{folder}/rank{run.accelerator.process_index}.pt")
run.accelerator.wait_for_everyone()
"""


def test_every_process_has_the_weights_and_the_names(
    arguments: Callable, cased: Path, forks: ForkServer, tmp_path: Path
) -> None:
    words = arguments("two", recipe="parts", data=f"[{cased}]")
    two = forks.start_ranks(2, EVERYWHERE, tmp_path, *words, ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in two] == [0, 0], two[0].stderr[-3000:]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert first["names"] == second["names"] and first["rates"] == second["rates"]
    assert not any(name.startswith("part_") for name in second["names"])
    assert all(torch.equal(value, second["head"][name]) for name, value in first["head"].items())


def test_two_processes_resume_to_the_bit(arguments: Callable, forks: ForkServer, tmp_path: Path) -> None:
    extra = {"train.max_steps": 24, "train.epochs": 3}
    start_two(forks, arguments("whole", **extra))
    cut = forks.start_ranks(2, TRAIN, *arguments("cut", **extra), ACCELERATE_USE_CPU="true")
    while not loop.checkpoints(tmp_path / "cut" / "checkpoints") and cut[0].poll() is None:
        time.sleep(0.02)
    for process in cut:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert loop.checkpoints(tmp_path / "cut" / "checkpoints") and not (tmp_path / "cut" / "model").exists()
    again = forks.start_ranks(2, TRAIN, *arguments("cut", **extra), "--resume", ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in again] == [0, 0], again[0].stderr[-3000:]
    assert "resuming from step" in again[0].stderr
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


# ---- faults -----------------------------------------------------------------------------------------------------------


def failing(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int = 1) -> str:
    assert run(arguments) == status
    return capsys.readouterr().err


def test_faults_of_the_input(arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "smaller batch_size" in failing(arguments(**{"train.batch_size": 150}), capsys)
    same = tmp_path / "same.txt"
    same.write_text("the museum in paris opened\n" * 50)
    assert "fewer than one batch" in failing(arguments(data=f"[{same}]"), capsys), "duplicates are dropped"
    assert "absent.txt" in failing(arguments(data=f"[{tmp_path / 'absent.txt'}]"), capsys)
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"the museum in paris opened\n\xff\xfe is not utf-8 at all\n")
    message = failing(arguments(data=f"[{broken}]"), capsys)
    assert "broken.txt" in message and "line 2" in message
    short = tmp_path / "short.txt"
    short.write_text("a b\nc d\n")
    assert "no sentence of 4 to 64 words" in failing(arguments(data=f"[{short}]"), capsys)
    assert not (tmp_path / "run").exists(), "nothing is written"
    unknown = tmp_path / "unknown.txt"
    unknown.write_text("".join(f"zq{i} zq{i} zq{i} zq{i}\n" for i in range(100)))
    assert "nothing to tell apart" in failing(arguments(data=f"[{unknown}]"), capsys)
    assert not list(tmp_path.glob("*/model")), "nothing half-written"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sead", "3"], "unknown recipe key 'sead': did you mean 'seed'?"),
        (["--epochs", "3"], "unknown recipe key 'epochs': it is now `epochs` of an objective"),
        (["--model.temprature", "3"], "unknown config name 'temprature': did you mean 'temperature'?"),
        (["--train.epoch", "3"], "no objective of this recipe has a setting 'epoch': did you mean 'epochs'?"),
        (["--selectors.meaning.raeds", "3"], "selectors.meaning has no setting 'raeds'; known: reads"),
        (["--selectors.meanin.reads", "3"], "this recipe has no selector 'meanin': did you mean 'meaning'?"),
        (["--selectors.meaning.train.epoch", "3"], "selectors.meaning.train: removal has no setting 'epoch'; it has: sen"),
        (["--train.epochs", "0"], "selectors.meaning.train: epochs must be a whole number >= 1, got 0."),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_status_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for prog in ("train.py", "hardkuma train"):
        assert train.main([*words, "--encoder", "absent", "--output", str(tmp_path / "run")], prog=prog) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"{prog}: {message}") and said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["absent"]) == 1 and capsys.readouterr().err.startswith("train.py: no recipe at absent")


def test_what_one_process_cannot_read_ends_all(arguments: Callable, forks: ForkServer, tmp_path: Path) -> None:
    """The text is read by one process of a machine; the others must not wait for it."""
    absent = tmp_path / "absent.txt"
    ranks = forks.start_ranks(2, TRAIN, *arguments("two", data=f"[{absent}]"), ACCELERATE_USE_CPU="true")
    assert [rank.wait(120) for rank in ranks] == [1, 1]
    assert all(f"train.py: {absent}: no such file" in rank.stderr for rank in ranks)


def test_machines_share_what_one_of_them_encodes(arguments: Callable, forks: ForkServer, tmp_path: Path) -> None:
    """Two processes, each the first of its machine."""
    machine = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "ACCELERATE_USE_CPU": "true"}
    ranks = forks.start_ranks(2, TRAIN, *arguments("two", **{"train.max_steps": 2}), **machine)
    assert [rank.wait(120) for rank in ranks] == [0, 0], ranks[0].stderr[-3000:]
    assert ["tokenising" in rank.stderr for rank in ranks] == [True, False]
    assert (tmp_path / "two" / "model").is_dir()


def test_disk_full_while_saving(
    arguments: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before the full disk stays whole, and the run can go on from it."""
    real, calls = loop.save_file, []

    def full(tensors: object, path: Path) -> None:
        calls.append(path)
        if len(calls) > 4:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(loop, "save_file", full)
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
    assert "accelerate launch" in script and "--held_out INT" in script and "python train.py parts" in script
    assert train.main(["--help"], prog="hardkuma train") == 0
    command = capsys.readouterr().out
    assert "--held_out INT" in command and "hardkuma train parts" in command and "python train.py" not in command


def test_the_manual_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands are read, and every option in them is one. It advertised `--epochs 2`, which did nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text((ROOT / "recipes" / "default.yaml").read_text())
    seen: list[Any] = []
    monkeypatch.setattr(train, "train", lambda *given: seen.append(given))
    commands = [
        line.split("  ")[2].strip() for line in train.__doc__.splitlines() if line.startswith("    python train.py")
    ]
    assert len(commands) == 6
    for command in commands:
        assert train.main(shlex.split(command)[2:]) == 130, command
    recipe = seen[3][0]
    assert recipe.selectors["meaning"]["train"]["epochs"] == 2 == recipe.selectors["entities"]["train"]["epochs"]
    assert recipe.selectors["meaning"]["target_rate"] == 0.4 and recipe.data == ["my.txt", "more.jsonl"]


def test_a_recipe_by_name_outside_of_the_checkout(
    arguments: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments(recipe="recipes/fourier.yaml", **{"train.max_steps": 1})) == 0
    assert "frequency_filter: low" in (tmp_path / "run" / "recipe.yaml").read_text()


def test_two_contrastive_selectors_are_aligned_or_separated(arguments: Callable, tmp_path: Path) -> None:
    other = ["--selectors.other", "{reads: [state], layer: 1, lambda_s: 0.0, train: {objective: contrastive}}"]
    ends = {}
    for weight in (5, -5):
        recipe, *words = arguments(str(weight), **{"train.max_steps": 8, "train.learning_rate": 0.01})
        # First the selector, then the settings of both.
        assert run([recipe, *other, "--model.lambda_kl", str(weight), *words]) == 0
        entries = [entry for entry in log(tmp_path / str(weight)) if "loss" in entry]
        assert {"loss/rationale/0", "loss/rationale/1", "loss/kl"} <= entries[0].keys()
        ends[weight] = entries[-1]["loss/kl"]
    assert ends[5] < ends[-5] / 2
