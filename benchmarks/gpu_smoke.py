"""Five minutes on a machine with GPUs, one or eight: does what was never run on one work there? Paste what it prints.

    python benchmarks/gpu_smoke.py                    on all GPUs that CUDA_VISIBLE_DEVICES leaves
    python benchmarks/gpu_smoke.py --device cpu       a dry run in two CPU processes: the script works, and no more is known

Gates are compared with the CPU's, and so are the losses of short training runs with a small random encoder: on one GPU, on
all of them, in half precision, killed and resumed. Every check has processes of its own, so that one which
fails, hangs or crashes does not end the others. Training on GPUs is launched by the files of recipes/accelerate.

The output is a table in Markdown, and the last words of what failed. Exit code 1: something did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer, BertConfig
from transformers.utils import is_flash_attn_2_available

from hardkuma import HardKumaModel
from hardkuma.common.models import load_model
from hardkuma.common.text import MINILM
from hardkuma.data import bundled_texts
from hardkuma.encoder_hardkuma import resolve_encoder

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 150  # that a process may take
STEPS = 12  # of a training run
PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "flash-attn", "numpy")
# Settings of configuration and recipes, by their names.
ATTENTION: dict[str, Any] = {"selectors": {"meaning": {"reads": ["state", "attention"]}}}
BATCH_SIZE = "train.batch_size"
CONTRASTIVE: dict[str, object] = {
    "model.freeze_encoder": "false",
    "selectors.meaning.layer": 1,
    "max_sentences": 600,
    "held_out": 32,
    "train.batches": "random",
    "train.max_steps": STEPS,
    "train.epochs": 10,
    "train.evaluate_every": 4,
    "train.checkpoint_every": 4,
    "train.log_every": 1,
}
DEFAULT: dict[str, object] = {"max_sentences": 600, "held_out": 32, "selectors.meaning.train.epochs": 2}
PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


@dataclass(frozen=True)
class Machine:
    """Where the checks run: `device` is cuda or cpu; so many `processes` train together; `folder` is for their files."""

    device: str
    processes: int
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def output(self, run: str) -> Path:
        return self.folder / run.replace(" ", "-")

    def describe(self) -> list[str]:
        versions = {package.name: package.version for package in metadata.distributions()}
        lines = [f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPU cores"]
        lines += [", ".join(f"{name} {versions.get(name, 'is missing')}" for name in PACKAGES)]
        if not self.on_gpu:
            return [*lines, f"**a dry run on the CPU**, in {self.processes} processes: it says nothing about GPUs"]
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            lines.append(f"GPU {number}: {gpu.name}, {gpu.total_memory / 1e9:.0f} GB, capability {gpu.major}.{gpu.minor}")
        return [*lines, f"CUDA {torch.version.cuda}, HIP {torch.version.hip}; {self.processes} processes"]


def released(device: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Any:
    """The released head in fp32 on an encoder in `dtype`."""
    model = load_model(None, device=device)
    model.encoder.to(dtype).set_attn_implementation(attention)
    return model


def probabilities(model: Any) -> torch.Tensor:
    inputs = model.tokenizer(bundled_texts()[:64], padding=True, truncation=True, return_tensors="pt").to(model.device)
    return model(**inputs, return_embeddings=False).gate_probs.float().cpu()


def compare_gates(machine: Machine) -> str:
    """By precision and attention; and of a selector that reads attention itself."""
    single, half = torch.float32, torch.bfloat16
    kinds = [("sdpa", single), ("eager", single), ("sdpa", half), ("sdpa", torch.float16)]
    kinds += [("flash_attention_2", half)] if is_flash_attn_2_available() else []
    expected, means = probabilities(released("cpu")), {}
    for attention, dtype in kinds:
        found = probabilities(released(machine.device, dtype, attention))
        means[f"{attention}, {dtype}"] = (float((found - expected).abs().mean()), 1e-4 if dtype == single else 0.03)
    torch.manual_seed(0)
    reader = HardKumaModel.from_encoder(str(small_encoder(machine)), **ATTENTION).eval()
    expected = probabilities(reader)
    means["attention as an input"] = (float((probabilities(reader.to(machine.device)) - expected).abs().mean()), 1e-4)
    text = "differ from the CPU's in the mean by " + ", ".join(f"{mean:.1g} ({name})" for name, (mean, _) in means.items())
    assert all(mean < most for mean, most in means.values()), text  # nan is not less
    return text


def time_gates(machine: Machine) -> str:
    lines, texts = [], bundled_texts()[: None if machine.on_gpu else 64]
    for dtype in (torch.float32, torch.bfloat16):
        model = released(machine.device, dtype)
        model.gate_records(texts[:64], batch_size=256)
        start = time.perf_counter()
        model.gate_records(texts, batch_size=256)
        lines.append(f"{len(texts) / (time.perf_counter() - start):,.0f} sentences/s in {dtype}")
    memory = f"; at most {torch.cuda.max_memory_allocated() / 1e9:.1f} GB" if machine.on_gpu else ""
    return "from text to records of words: " + ", ".join(lines) + memory


GATES: dict[str, Callable[[Machine], str]] = {"gates": compare_gates, "throughput of gates": time_gates}


def check_gates(machine: Machine, name: str) -> str:
    command = [sys.executable, __file__, "--device", machine.device, "--gates", name, str(machine.folder)]
    return finish(subprocess.Popen(command, **PIPES)).splitlines()[-1]


@dataclass(frozen=True)
class Run:
    """A training run, launched as the file `config` of recipes/accelerate says; its losses are compared with `like`'s."""

    config: str
    like: str
    most: float = 2e-3
    settings: dict[str, object] = field(default_factory=dict)


HALF: dict[str, object] = {"mixed_precision": "bf16", "micro_batch": 8}
RUNS = {
    "CPU": Run("cpu", "CPU"),  # the measure of the others
    "one device": Run("one_gpu", "CPU"),
    "one device, bf16 in parts": Run("one_gpu", "CPU", 0.02, HALF),
    "one device, fp16": Run("one_gpu", "CPU", 0.5, {"mixed_precision": "fp16"}),  # the scaler of gradients skips steps
    "all devices": Run("multi_gpu", "one device"),
    "all devices, bf16 in parts": Run("multi_gpu", "one device", 0.02, HALF),
}


def small_encoder(machine: Machine) -> Path:
    """A random encoder without dropout, which several processes would draw otherwise than one."""
    folder = machine.folder / "encoder"
    if not folder.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(resolve_encoder(MINILM))
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        config = BertConfig(vocab_size=len(tokenizer), **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def arguments_of(recipe: str, **settings: object) -> list[str]:
    return [recipe, *(word for key, value in settings.items() for word in (f"--{key}", str(value)))]


def contrastive(machine: Machine, name: str, **settings: object) -> list[str]:
    size = {BATCH_SIZE: 16 * machine.processes, "encoder": small_encoder(machine), "output": machine.output(name)}
    return arguments_of("contrastive", **CONTRASTIVE, **size, **settings)


def start(machine: Machine, config: str, arguments: list[str]) -> subprocess.Popen[str]:
    """`train.py` as a file of recipes/accelerate launches it; without GPUs, by torchrun."""
    environment, file = {**os.environ, "OMP_NUM_THREADS": "1"}, ROOT / "recipes" / "accelerate" / f"{config}.yaml"
    count = 1 if config in ("cpu", "one_gpu") else machine.processes
    if machine.on_gpu and config != "cpu":
        command = ["-m", "accelerate.commands.launch", "--config_file", str(file), "--num_processes", str(count)]
        command += ["--main_process_port", "0"]
    else:
        environment |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)] if count > 1 else []
    return subprocess.Popen([sys.executable, *command, str(ROOT / "train.py"), *arguments], env=environment, **PIPES)


def finish(process: subprocess.Popen[str]) -> str:
    """What it says; AssertionError where it fails or takes too long."""
    try:
        said = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"not done after {SECONDS} seconds\n{kill(process)[-3000:]}") from error
    assert process.returncode == 0, f"exit code {process.returncode}\n{said[-3000:]}"
    return said


def kill(process: subprocess.Popen[str]) -> str:
    """With the processes that it has launched, which are in sessions of their own."""
    if process.poll() is None:
        for member in [*psutil.Process(process.pid).children(recursive=True), process]:
            member.kill()
    return process.communicate()[0]


def entries(machine: Machine, name: str) -> list[dict[str, Any]]:
    file = machine.output(name) / "log.jsonl"
    assert file.is_file(), f"{name!r} has left no log to compare with"
    return [json.loads(line) for line in file.read_text().splitlines()]


def check_run(machine: Machine, name: str) -> str:
    run = RUNS[name]
    finish(start(machine, run.config, contrastive(machine, name, **run.settings)))
    found, expected = ([e["loss"] for e in entries(machine, of) if "loss" in e] for of in (name, run.like))
    assert len(found) == len(expected) == STEPS, f"{len(found)} and {len(expected)} losses were logged, of {STEPS}"
    difference = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    assert difference < run.most, f"losses differ from those of {run.like!r} by {difference:.2g}"  # nan is not less
    return f"losses from {found[0]:.3f} to {found[-1]:.3f}, those of {run.like!r} but for {difference:.1g}"


def kill_and_resume(machine: Machine, name: str) -> str:
    arguments, output = contrastive(machine, name), machine.output(name)
    process, end = start(machine, "multi_gpu", arguments), time.time() + SECONDS
    while not list(output.glob("checkpoints/step-*/progress.json")) and process.poll() is None and time.time() < end:
        time.sleep(0.01)
    said, reached = kill(process), [path.name for path in output.glob("checkpoints/step-*")]
    assert reached and not (output / "model").exists(), f"not killed between a checkpoint and its end\n{said[-3000:]}"
    finish(start(machine, "multi_gpu", [*arguments, "--resume"]))
    like = "one device" if machine.processes == 1 else "all devices"
    whole, again = (load_file(machine.output(of) / "model" / "model.safetensors") for of in (like, name))
    difference = max(float((whole[key].float() - again[key].float()).abs().max()) for key in whole)
    assert difference < 1e-3, f"weights differ from those of {like!r} by {difference:.2g}"
    return f"killed after {max(reached)} and resumed: weights of {like!r} but for {difference:.1g}"


def train_by_removal(machine: Machine, name: str) -> str:
    """The default recipe: removal, form, calibration, surface view."""
    size = {"encoder": small_encoder(machine), "output": machine.output(name)}
    finish(start(machine, "multi_gpu", arguments_of("default", **DEFAULT, **size)))
    saved = {e["selector"]: e["sufficiency"] for e in entries(machine, name) if e.get("phase") == "saved"}
    return "held-out sufficiency: " + ", ".join(f"{value:.3f} ({selector})" for selector, value in saved.items())


def choose_checks(machine: Machine) -> dict[str, Callable[[], str]]:
    """One GPU is all devices; loss scaling in fp16 needs a GPU."""
    left_out = {name for name in RUNS if name.startswith("all devices")} if machine.processes == 1 else set()
    left_out |= set() if machine.on_gpu else {"one device, fp16"}
    checks = {name: partial(check_gates, machine, name) for name in GATES}
    checks |= {f"training: {name}": partial(check_run, machine, name) for name in RUNS if name not in left_out}
    checks["training: all devices, killed"] = partial(kill_and_resume, machine, "resumed")
    checks["training: all devices, by removal"] = partial(train_by_removal, machine, "removal")
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument("--gates", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --device cpu is a dry run without one.")
    if arguments.gates:
        with torch.inference_mode():
            print(GATES[arguments.gates[0]](Machine(arguments.device, 1, Path(arguments.gates[1]))))
        return 0
    began, failed = time.perf_counter(), {}
    with tempfile.TemporaryDirectory(prefix="hardkuma-smoke-") as folder:
        machine = Machine(arguments.device, torch.cuda.device_count() if arguments.device == "cuda" else 2, Path(folder))
        checks = choose_checks(machine)
        print("### benchmarks/gpu_smoke.py\n\n- " + "\n- ".join(machine.describe()))
        print("\n| check | | seconds | |\n|---|---|---:|---|", flush=True)
        for name, check in checks.items():
            start_of_check, result = time.perf_counter(), "pass"
            try:
                detail = check()
            except Exception as error:
                failed[name] = detail = f"{type(error).__name__}: {error}"
                result = "**FAIL**"
            line = detail.splitlines()[0].replace("|", "/")
            print(f"| {name} | {result} | {time.perf_counter() - start_of_check:.0f} | {line} |", flush=True)
    for name, detail in failed.items():
        print(f"\n<details><summary>{name}</summary>\n\n```\n{detail}\n```\n\n</details>")
    print(f"\n{len(failed)} of {len(checks)} checks failed, in {time.perf_counter() - began:.0f} seconds.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
