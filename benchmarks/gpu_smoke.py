"""Five minutes on a machine with GPUs, one or eight: does what was never run on one work there? Paste what it prints.

    python benchmarks/gpu_smoke.py                    on all GPUs that can be seen
    python benchmarks/gpu_smoke.py --processes 2      on two of them
    python benchmarks/gpu_smoke.py --device cpu       a dry run in two CPU processes: the script works, and no more is known

Gates are compared with the CPU's, and so are the losses of short training runs with a small random encoder: on one GPU, on
all of them, sharded (FSDP2), in half precision, killed and resumed. Every check has processes of its own, so that one which
fails, hangs or crashes does not end the others. Training on GPUs is launched by the files of recipes/accelerate.

The output is a table in Markdown, and the last words of what failed. Exit code 1: something did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 150  # that a process may take
STEPS = 12  # of a training run
PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "flash-attn", "numpy")
PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}


class Skip(Exception):
    """Why a check cannot be done here."""


@dataclass(frozen=True)
class Machine:
    """Where the checks run: `device` is cuda or cpu; so many `processes` train together; `folder` is for their files."""

    device: str
    processes: int
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def output(self, check: str) -> Path:
        return self.folder / check.replace(": ", "-").replace(" ", "-")

    def describe(self) -> list[str]:
        versions = {package.name: package.version for package in metadata.distributions()}
        lines = [f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPU cores"]
        lines += [", ".join(f"{name} {versions.get(name, 'is missing')}" for name in PACKAGES)]
        if not self.on_gpu:
            return [*lines, f"**A dry run on the CPU**, in {self.processes} processes: it says nothing about GPUs"]
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            lines.append(f"GPU {number}: {gpu.name}, {gpu.total_memory / 1e9:.0f} GB, capability {gpu.major}.{gpu.minor}")
        return [*lines, f"CUDA {torch.version.cuda}, HIP {torch.version.hip}; {self.processes} processes"]


# ---- gates, on one device -----------------------------------------------------------------------------------------------


def texts(count: int) -> list[str]:
    from hardkuma.corpora import bundled_texts

    some = bundled_texts()
    return [some[number % len(some)] for number in range(count)]


def released(device: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Any:
    """The released head in fp32 on an encoder in `dtype`."""
    from hardkuma.common.models import load_model

    model = load_model(None, device=device)
    model.encoder.to(dtype).set_attn_implementation(attention)
    return model


def probabilities(model: Any) -> torch.Tensor:
    inputs = model.tokenizer(texts(64), padding=True, truncation=True, return_tensors="pt").to(model.device)
    return model(**inputs, return_embeddings=False).gate_probs.float().cpu()


def values(machine: Machine) -> str:
    """By precision and attention; and of a selector that reads attention itself."""
    from transformers.utils import is_flash_attn_2_available

    from hardkuma import HardKumaModel

    kinds = [("sdpa", torch.float32), ("eager", torch.float32), ("sdpa", torch.bfloat16), ("sdpa", torch.float16)]
    kinds += [("flash_attention_2", torch.bfloat16)] if is_flash_attn_2_available() else []
    expected, means = probabilities(released("cpu")), {}
    for attention, dtype in kinds:
        found = probabilities(released(machine.device, dtype, attention))
        means[f"{attention}, {dtype}"] = (float((found - expected).abs().mean()), 1e-4 if dtype == torch.float32 else 0.03)
    torch.manual_seed(0)
    reader = HardKumaModel.from_encoder(str(small_encoder(machine)), selector_inputs=["state", "attention"]).eval()
    expected = probabilities(reader)
    means["attention as an input"] = (float((probabilities(reader.to(machine.device)) - expected).abs().mean()), 1e-4)
    text = "differ from the CPU's in the mean by " + ", ".join(f"{mean:.1g} ({name})" for name, (mean, _) in means.items())
    assert all(mean < most for mean, most in means.values()), text  # so is nan
    return text


def pipeline(machine: Machine) -> str:
    from hardkuma import TokenGatesPipeline

    some = [*texts(16), " ".join(texts(60))]  # the last is longer than the encoder takes

    def decisions(device: str) -> list[bool]:
        records = TokenGatesPipeline(released(device), batch_size=4, device=torch.device(device))(some)
        return [word["selected"] for record in records for word in record["words"]]

    pairs = list(zip(decisions(machine.device), decisions("cpu"), strict=True))
    text = f"{sum(a == b for a, b in pairs)} of {len(pairs)} words are decided as on the CPU"
    assert sum(a != b for a, b in pairs) < 0.01 * len(pairs), text
    return text


def throughput(machine: Machine) -> str:
    lines, some = [], texts(20_000 if machine.on_gpu else 200)
    for dtype in (torch.float32, torch.bfloat16):
        model = released(machine.device, dtype)
        model.gate_records(some[:64], batch_size=256)
        start = time.perf_counter()
        model.gate_records(some, batch_size=256)
        lines.append(f"{len(some) / (time.perf_counter() - start):,.0f} sentences/s in {dtype}")
    memory = f"; at most {torch.cuda.max_memory_allocated() / 1e9:.1f} GB" if machine.on_gpu else ""
    return "from text to records of words: " + ", ".join(lines) + memory


GATES: dict[str, Callable[[Machine], str]] = {
    "gates: values": values,
    "gates: pipeline": pipeline,
    "gates: throughput": throughput,
}


def check_gates(name: str, machine: Machine) -> str:
    command = [sys.executable, __file__, "--device", machine.device, "--gates", name, str(machine.folder)]
    return finish(subprocess.Popen(command, **PIPES)).splitlines()[-1]


# ---- training, in processes of its own ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A training run, launched as the file `config` of recipes/accelerate says; its losses are compared with `like`'s."""

    config: str
    like: str
    most: float = 2e-3
    settings: dict[str, object] = field(default_factory=dict)


HALF: dict[str, object] = {"mixed_precision": "bf16", "micro_batch": 8}
RUNS = {
    "training: CPU": Run("cpu", "training: CPU"),  # with which the others are compared
    "training: one device": Run("one_gpu", "training: CPU"),
    "training: bf16, in parts": Run("one_gpu", "training: CPU", 0.1, HALF),
    "training: fp16": Run("one_gpu", "training: CPU", 0.5, {"mixed_precision": "fp16"}),  # the scaler skips steps
    "training: all devices": Run("multi_gpu", "training: one device"),
    "fsdp: fp32": Run("fsdp", "training: one device"),
    "fsdp: bf16, in parts": Run("fsdp", "training: one device", 0.1, HALF),
}


def small_encoder(machine: Machine) -> Path:
    """A random encoder without dropout, which several processes would draw otherwise than one."""
    from transformers import AutoModel, AutoTokenizer, BertConfig

    from hardkuma.common.names import MINILM
    from hardkuma.encoders_hardkuma import resolve_encoder

    folder = machine.folder / "encoder"
    if not folder.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(resolve_encoder(MINILM))
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        config = BertConfig(vocab_size=len(tokenizer), **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def words_of(recipe: str, **settings: object) -> list[str]:
    return [recipe, *(word for key, value in settings.items() for word in (f"--{key}", str(value)))]


def contrastive(machine: Machine, name: str, **settings: object) -> list[str]:
    model = {"encoder": small_encoder(machine), "model.freeze_encoder": "false", "model.selector_layer": 1}
    text = {"max_sentences": 600, "batches": "random", "batch_size": 16 * machine.processes, "held_out": 32}
    often = {"max_steps": STEPS, "epochs": 10, "evaluate_every": 4, "checkpoint_every": 4, "log_every": 1}
    return words_of("contrastive", **model, **text, **often, output=machine.output(name), **settings)


def start(machine: Machine, config: str, words: list[str]) -> subprocess.Popen[str]:
    """`train.py` as a file of recipes/accelerate launches it; without GPUs, by torchrun with the same settings."""
    environment, file = {**os.environ, "OMP_NUM_THREADS": "1"}, ROOT / "recipes" / "accelerate" / f"{config}.yaml"
    count = 1 if config in ("cpu", "one_gpu") else machine.processes
    if machine.on_gpu and config != "cpu":
        command = ["-m", "accelerate.commands.launch", "--config_file", str(file), "--num_processes", str(count)]
        command += ["--main_process_port", "0", str(ROOT / "train.py")]
    else:
        environment |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)] if count > 1 else []
        command += [__file__, "--train"]
        if config == "fsdp":
            known = yaml.safe_load(file.read_text())["fsdp_config"]
            environment |= {"ACCELERATE_USE_FSDP": "true", **{key.upper(): str(value) for key, value in known.items()}}
    return subprocess.Popen([sys.executable, *command, *words], env=environment, **PIPES)


def train_on_cpu(words: list[str]) -> int:
    """`train.py` where there is no GPU."""
    if os.environ.get("ACCELERATE_USE_FSDP"):  # accelerate shards where there are several devices, and takes a CPU for none
        from accelerate import PartialState
        from accelerate.utils import DistributedType

        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    from hardkuma import train

    return train.main(words)


def finish(process: subprocess.Popen[str]) -> str:
    """What it says; AssertionError where it fails or takes too long."""
    try:
        said = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired as error:
        kill(process)
        raise AssertionError(f"not done after {SECONDS} seconds") from error
    assert process.returncode == 0, f"exit code {process.returncode}\n{said[-3000:]}"
    return said


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def losses(machine: Machine, name: str) -> list[float]:
    file = machine.output(name) / "log.jsonl"
    if not file.is_file():
        raise Skip(f"{name!r}, with which to compare, has failed or was skipped")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    return [entry["loss"] for entry in entries if "loss" in entry]


def compare_losses(machine: Machine, name: str, like: str, most: float) -> str:
    expected, found = losses(machine, like), losses(machine, name)
    assert len(found) == len(expected) == STEPS, f"{len(found)} and {len(expected)} losses were logged, of {STEPS}"
    difference = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    assert difference < most, f"losses differ from those of {like!r} by {difference:.2g}"  # false for nan too
    return f"{STEPS} losses as of {like!r}, but for {difference:.1g}"


def check_run(name: str, machine: Machine) -> str:
    run = RUNS[name]
    if run.config == "multi_gpu" and machine.processes < 2:
        raise Skip("there is one GPU")
    if run.settings.get("mixed_precision") == "fp16" and not machine.on_gpu:
        raise Skip("its loss scaling needs a GPU")
    finish(start(machine, run.config, contrastive(machine, name, **run.settings)))
    return compare_losses(machine, name, run.like, run.most)


def killed_and_resumed(name: str, machine: Machine) -> str:
    """By as many processes, and from a copy by one: checkpoints hold whole tensors."""
    from safetensors.torch import load_file

    expected = machine.output("fsdp: fp32") / "model" / "model.safetensors"
    if not expected.is_file():
        raise Skip("'fsdp: fp32', with which to compare, has failed")
    words, output = contrastive(machine, name), machine.output(name)
    process, end = start(machine, "fsdp", words), time.time() + SECONDS
    while not list(output.glob("checkpoints/step-*/progress.json")) and process.poll() is None and time.time() < end:
        time.sleep(0.01)
    kill(process)
    reached = [path.name for path in output.glob("checkpoints/step-*")]
    assert reached and not (output / "model").exists(), "it could not be killed between a checkpoint and its end"
    copy = shutil.copytree(output, machine.folder / "copy")
    finish(start(machine, "fsdp", [*words, "--resume"]))
    whole, again = load_file(expected), load_file(output / "model" / "model.safetensors")
    difference = max(float((whole[key].float() - again[key].float()).abs().max()) for key in whole)
    assert difference < 1e-3, f"weights differ by {difference:.2g}"
    shutil.rmtree(output)
    copy.rename(output)
    finish(start(machine, "one_gpu", [*words, "--resume"]))
    by_one = compare_losses(machine, name, "training: one device", 2e-3)
    return f"killed after {max(reached)}; weights differ by {difference:.1g}; resumed by one process: {by_one}"


def removal_and_form(name: str, machine: Machine) -> str:
    """The default recipe: removal, form, calibration, surface view."""
    output, some = machine.output(name), {"max_sentences": 400 if machine.on_gpu else 60, "held_out": 24}
    finish(start(machine, "multi_gpu", words_of("default", **some, removal_epochs=2, batch_size=16, output=output)))
    entries = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    saved = {entry["selector"]: entry["sufficiency"] for entry in entries if entry.get("phase") == "saved"}
    return "held-out sufficiency: " + ", ".join(f"{value:.3f} ({selector})" for selector, value in saved.items())


CHECKS: dict[str, Callable[[str, Machine], str]] = {
    **dict.fromkeys(GATES, check_gates),
    **dict.fromkeys(RUNS, check_run),
    "fsdp: killed and resumed": killed_and_resumed,
    "removal and form: all devices": removal_and_form,
}


# ---- all of it ----------------------------------------------------------------------------------------------------------


def judge(name: str, machine: Machine) -> tuple[str, str]:
    try:
        return "pass", CHECKS[name](name, machine)
    except Skip as reason:
        return "skip", str(reason)
    except Exception as error:
        return "FAIL", str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument("--processes", type=int, help="that train together (default: one a GPU; two on a CPU)")
    parser.add_argument("--gates", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --device cpu is a dry run without one.")
    if arguments.gates:
        name, folder = arguments.gates
        with torch.inference_mode():
            print(GATES[name](Machine(arguments.device, 1, Path(folder))))
        return 0
    processes = arguments.processes or (torch.cuda.device_count() if arguments.device == "cuda" else 2)
    began, failed = time.perf_counter(), {}
    with tempfile.TemporaryDirectory(prefix="hardkuma-smoke-") as folder:
        machine = Machine(arguments.device, processes, Path(folder))
        print("### benchmarks/gpu_smoke.py\n\n- " + "\n- ".join(machine.describe()))
        print("\n| check | | seconds | |\n|---|---|---:|---|", flush=True)
        for name in CHECKS:
            start_of_check = time.perf_counter()
            result, detail = judge(name, machine)
            if result == "FAIL":
                failed[name] = detail
            line = detail.splitlines()[0].replace("|", "/")
            print(f"| {name} | {result} | {time.perf_counter() - start_of_check:.0f} | {line} |", flush=True)
    for name, detail in failed.items():
        print(f"\n<details><summary>{name}</summary>\n\n```\n{detail}\n```\n\n</details>")
    print(f"\n{len(failed)} of {len(CHECKS)} checks failed, in {time.perf_counter() - began:.0f} seconds.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(train_on_cpu(sys.argv[2:]) if sys.argv[1:2] == ["--train"] else main())
