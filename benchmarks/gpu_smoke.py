"""Five minutes on a machine with GPUs, one or eight: does all that was never run on one work there? Paste what it prints.

    python benchmarks/gpu_smoke.py                       all checks, on all GPUs that can be seen
    python benchmarks/gpu_smoke.py --processes 2         on two of them
    python benchmarks/gpu_smoke.py --only fsdp           checks whose name holds this

Each check says PASS, FAIL or SKIP, and why; one that fails, hangs or takes its process along does not end the others.
Without a GPU the same checks run on the CPU, in two gloo processes, with smaller sizes, which shows that the script works
and nothing else. Exit code 1: some check has failed.
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
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

SECONDS = 240  # that a check may take
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda:0" if ON_GPU else "cpu"
PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "sentence-transformers", "flash-attn", "numpy")
SENTENCES = 20_000 if ON_GPU else 200  # of the throughput
STEPS = 12


class Skip(Exception):
    """Why a check cannot be done here."""


@dataclass(frozen=True)
class Place:
    """Where the checks run: on how many processes, with what folder for their files."""

    processes: int
    folder: Path


# ---- on one device, in a process that may die ---------------------------------------------------------------------------


def environment(place: Place) -> str:
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    lines = [f"{platform.platform()}, Python {platform.python_version()}", ", ".join(versions)]
    for number in range(torch.cuda.device_count()):
        known = torch.cuda.get_device_properties(number)
        lines.append(
            f"GPU {number}: {known.name}, {known.total_memory / 1e9:.0f} GB, capability {known.major}.{known.minor}"
        )
    if ON_GPU:
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none"
        lines.append(f"CUDA {torch.version.cuda}, HIP {torch.version.hip}, NCCL {nccl}")
    else:
        lines.append(f"no GPU; {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads")
    return "\n    ".join(lines)


def texts(count: int) -> list[str]:
    from hardkuma.corpora import bundled_texts

    some = bundled_texts()
    return [some[number % len(some)] for number in range(count)]


def released(device: str = DEVICE) -> Any:
    """The released gate head, where its encoder is installed."""
    from hardkuma.common.models import load_model

    try:
        return load_model(None, device=device)
    except (ImportError, OSError, ValueError) as error:
        raise Skip(f"the released head cannot be loaded: {error}") from error


def probabilities(model: Any, some: list[str]) -> torch.Tensor:
    inputs = model.tokenizer(some, padding=True, truncation=True, return_tensors="pt").to(model.device)
    return model(**inputs, return_embeddings=False).gate_probs.float().cpu()


@torch.inference_mode()
def compare_with_cpu(dtype: torch.dtype, autocast: bool, most: float) -> str:
    some = texts(64)
    expected = probabilities(released("cpu"), some)
    model = released()
    if not autocast:
        model.encoder.to(dtype)  # the gate head stays in fp32, as where a checkpoint is loaded with dtype=
    with torch.autocast(DEVICE.split(":")[0], dtype=dtype, enabled=autocast):
        found = probabilities(model, some)
    difference = (found - expected).abs()
    assert bool(torch.isfinite(found).all()), "gates are not finite"
    text = f"gates differ from the CPU's in fp32 by {difference.max():.2g} at most, {difference.mean():.2g} in the mean"
    assert float(difference.mean()) < most, text
    return text


def forward_fp32(place: Place) -> str:
    return compare_with_cpu(torch.float32, False, 1e-4)


def forward_bf16(place: Place) -> str:
    return compare_with_cpu(torch.bfloat16, False, 0.03)


def forward_fp16(place: Place) -> str:
    return compare_with_cpu(torch.float16, False, 0.01)


def autocast_bf16(place: Place) -> str:
    return compare_with_cpu(torch.bfloat16, True, 0.03)


@torch.inference_mode()
def deterministic(place: Place) -> str:
    model, some = released(), texts(64)
    first, again = probabilities(model, some), probabilities(model, some)
    assert torch.equal(first, again), f"the same batch gave other gates, by {(first - again).abs().max():.2g}"
    alone = probabilities(model, some[:1])
    difference = float((first[:1, : alone.shape[1]] - alone).abs().max())
    assert difference < 1e-3, f"a sentence by itself has other gates than in a batch, by {difference:.2g}"
    return f"twice the same to the bit; a sentence by itself and in a batch differ by {difference:.2g}"


@torch.inference_mode()
def attention(kind: str) -> str:
    from transformers.utils import is_flash_attn_2_available

    if kind == "flash_attention_2" and not is_flash_attn_2_available():
        raise Skip("flash-attn is not installed, or not for this device")
    dtype = torch.bfloat16 if kind == "flash_attention_2" else torch.float32
    some, gates = texts(32), {}
    for name in ("sdpa", kind):
        model = released()
        model.encoder.to(dtype).set_attn_implementation(name)
        gates[name] = probabilities(model, some)
    difference = float((gates["sdpa"] - gates[kind]).abs().mean())
    assert difference < (0.03 if dtype == torch.bfloat16 else 1e-4), f"gates differ from sdpa's by {difference:.2g}"
    return f"gates differ from sdpa's by {difference:.2g} in the mean ({dtype})"


def attention_eager(place: Place) -> str:
    return attention("eager")


def attention_flash(place: Place) -> str:
    return attention("flash_attention_2")


@torch.inference_mode()
def attention_features(place: Place) -> str:
    """What a selector reads of the attention, while the encoder runs sdpa and while it runs eager."""
    from hardkuma import HardKumaModel

    torch.manual_seed(0)
    model = HardKumaModel.from_encoder(str(small_encoder(place)), selector_inputs=["state", "attention"]).eval()
    some, gates = texts(16), [probabilities(model, texts(16))]
    for kind in ("sdpa", "eager"):
        model.to(DEVICE).encoder.set_attn_implementation(kind)
        gates.append(probabilities(model, some))
    difference = max(float((gates[0] - other).abs().max()) for other in gates[1:])
    assert difference < 1e-3, f"differ by {difference:.2g}"
    return f"sdpa and eager on {DEVICE} differ from the CPU by {difference:.2g} at most"


def pipeline(place: Place) -> str:
    from hardkuma import TokenGatesPipeline

    some = [*texts(16), " ".join(texts(60))]
    on_cpu = TokenGatesPipeline(released("cpu"), batch_size=4)(some)
    found = TokenGatesPipeline(released(), batch_size=4, device=torch.device(DEVICE))(some)
    words = [[word["selected"] for word in record["words"]] for record in found]
    expected = [[word["selected"] for word in record["words"]] for record in on_cpu]
    pairs = [pair for rows in zip(words, expected, strict=True) for pair in zip(*rows, strict=True)]
    same = sum(a == b for a, b in pairs) / len(pairs)
    assert same > 0.99, f"only {same:.1%} of {len(pairs)} words are decided as on the CPU"
    return f"{same:.1%} of {len(pairs)} words are decided as on the CPU, one long text in windows among them"


@torch.inference_mode()
def throughput(place: Place) -> str:
    lines, some = [], texts(SENTENCES)
    for dtype in (torch.float32, torch.bfloat16):
        model = released()
        model.encoder.to(dtype)
        model.gate_records(some[:64], batch_size=256)
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        model.gate_records(some, batch_size=256)
        rate = len(some) / (time.perf_counter() - start)
        memory = f", {torch.cuda.max_memory_allocated() / 1e9:.1f} GB" if ON_GPU else ""
        lines.append(f"{dtype}: {rate:,.0f} sentences/s{memory}")
    return "records of words, from text to JSON values: " + "; ".join(lines)


SINGLE: dict[str, Callable[[Place], str]] = {
    "environment": environment,
    "forward in fp32": forward_fp32,
    "forward in bf16": forward_bf16,
    "forward in fp16": forward_fp16,
    "forward under autocast to bf16": autocast_bf16,
    "gates are deterministic": deterministic,
    "attention: eager": attention_eager,
    "attention: flash": attention_flash,
    "attention as an input": attention_features,
    "pipeline": pipeline,
    "throughput of gates": throughput,
}


def run_single(names: list[str], place: Place) -> None:
    """The checks of these names, in this process, which writes down what it begins and how it ends."""
    with open(place.folder / "results.jsonl", "a", encoding="utf-8") as file:
        for name in names:
            print(json.dumps({"name": name}), file=file, flush=True)
            print(json.dumps({"name": name, **judge(SINGLE[name], place)}), file=file, flush=True)


def judge(check: Callable[[Place], str], place: Place) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        status, detail = "PASS", check(place)
    except Skip as reason:
        status, detail = "SKIP", str(reason)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        status, detail = "FAIL", f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    return {"status": status, "detail": detail[:1500], "seconds": time.perf_counter() - start}


# ---- training, in processes of its own ----------------------------------------------------------------------------------


def small_encoder(place: Place) -> Path:
    """A random encoder, small enough for seconds of training."""
    from transformers import AutoModel, AutoTokenizer, BertConfig

    from hardkuma.common.names import MINILM
    from hardkuma.encoders_hardkuma import resolve_encoder

    folder = place.folder / "encoder"
    if not (folder / "config.json").is_file():
        try:
            tokenizer = AutoTokenizer.from_pretrained(resolve_encoder(MINILM))
        except (ImportError, OSError, ValueError) as error:
            raise Skip(f"the tokenizer of {MINILM} cannot be loaded: {error}") from error
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        config = BertConfig(vocab_size=len(tokenizer), **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def training_words(place: Place, output: str, **settings: object) -> list[str]:
    values = {
        "encoder": small_encoder(place),
        "model.freeze_encoder": "false",
        "model.selector_layer": 1,
        "max_sentences": 600,
        "batch_size": 16 * place.processes,
        "held_out": 32,
        "max_steps": STEPS,
        "epochs": 10,
        "evaluate_every": 4,
        "checkpoint_every": 4,
        "log_every": 1,
        "output": place.folder / output,
        **settings,
    }
    return ["contrastive", *(word for key, value in values.items() for word in (f"--{key}", str(value)))]


def launch(words: list[str], processes: int, **environment: str) -> subprocess.Popen[str]:
    """`train.py` in so many processes; on the CPU, where nothing else is there."""
    command = [sys.executable]
    if processes > 1 or environment:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **({} if ON_GPU else {"ACCELERATE_USE_CPU": "true"}), **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*command, __file__, "--train", *words], env=settings, start_new_session=True, **pipes)


def finish(process: subprocess.Popen[str]) -> None:
    with ended_in_time(process):
        said = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, f"exit code {process.returncode}: ...{said[-900:]}"


@contextmanager
def ended_in_time(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"not done after {SECONDS} seconds") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def losses(folder: Path) -> list[float]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries if "loss" in entry]


def compare_losses(place: Place, first: str, second: str, most: float = 2e-3) -> str:
    for name in (first, second):
        if not (place.folder / name / "log.jsonl").is_file():
            raise Skip(f"the run {name!r}, with which to compare, has failed")
    a, b = losses(place.folder / first), losses(place.folder / second)
    assert len(a) == len(b) == STEPS, f"{len(a)} and {len(b)} steps were logged, of {STEPS}"
    difference = max(abs(x - y) for x, y in zip(a, b, strict=True))
    assert difference < most, f"losses of {second!r} differ from those of {first!r} by {difference:.2g}"
    return f"{STEPS} losses as of {first!r}, but for {difference:.2g}; the last is {b[-1]:.3f}"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model" / "model.safetensors")


def train_on_cpu(place: Place) -> str:
    finish(launch(training_words(place, "cpu"), 1, ACCELERATE_USE_CPU="true", CUDA_VISIBLE_DEVICES=""))
    return f"the measure of the others; its last loss is {losses(place.folder / 'cpu')[-1]:.3f}"


def train_on_one(place: Place) -> str:
    finish(launch(training_words(place, "one"), 1))
    return compare_losses(place, "cpu", "one")


def train_in_bf16(place: Place) -> str:
    finish(launch(training_words(place, "half", mixed_precision="bf16"), 1))
    return compare_losses(place, "cpu", "half", most=0.1)


def train_default(place: Place) -> str:
    """Removal, form, calibration and surface view, on the released recipe's kind of model."""
    settings = {"max_sentences": 400 if ON_GPU else 120, "removal_epochs": 2, "held_out": 24}
    words = ["default", *(word for key, value in settings.items() for word in (f"--{key}", str(value)))]
    encoder = [] if ON_GPU else ["--encoder", str(small_encoder(place)), "--model.selector_layer", "[0.0, 1.0]"]
    finish(launch([*words, *encoder, "--output", str(place.folder / "default")], 1))
    last = json.loads((place.folder / "default" / "log.jsonl").read_text().splitlines()[-2])
    return f"held-out sufficiency of {last['selector']} {last['sufficiency']:.3f}, remainder {last['remainder']:.3f}"


def train_on_many(place: Place) -> str:
    if place.processes < 2:
        raise Skip("there is one GPU")
    finish(launch(training_words(place, "many"), place.processes))
    return f"{place.processes} processes: " + compare_losses(place, "one", "many")


def gradients_on_many(place: Place) -> str:
    if place.processes < 2:
        raise Skip("there is one GPU")
    small_encoder(place)
    finish(launch(["gradients", str(place.folder)], place.processes))
    return (place.folder / "gradients.txt").read_text()


FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


def fsdp(place: Place) -> str:
    finish(launch(training_words(place, "sharded"), place.processes, **FSDP))
    return f"{place.processes} processes: " + compare_losses(place, "one", "sharded")


def fsdp_in_bf16(place: Place) -> str:
    finish(launch(training_words(place, "sharded-half", mixed_precision="bf16"), place.processes, **FSDP))
    return f"{place.processes} processes: " + compare_losses(place, "one", "sharded-half", most=0.1)


def fsdp_resume(place: Place) -> str:
    if not (place.folder / "sharded" / "model").is_dir():
        raise Skip("the run 'sharded', with which to compare, has failed")
    words, checkpoints = training_words(place, "resumed"), place.folder / "resumed" / "checkpoints"
    process, start = launch(words, place.processes, **FSDP), time.time()
    while not list(checkpoints.glob("step-*/progress.json")) and process.poll() is None and time.time() < start + SECONDS:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reached = sorted(path.name for path in checkpoints.glob("step-*"))
    assert reached, "there was no checkpoint to go on from"
    finish(launch([*words, "--resume"], place.processes, **FSDP))
    whole, again = weights(place.folder / "sharded"), weights(place.folder / "resumed")
    difference = max(float((whole[name].float() - again[name].float()).abs().max()) for name in whole)
    assert difference < 1e-3, f"weights differ by {difference:.2g}"
    same = "the same to the bit" if difference == 0 else f"the same but for {difference:.2g}"
    return f"killed after {reached[-1]}, resumed: weights are {same}"


def resume_without_fsdp(place: Place) -> str:
    """A checkpoint holds whole tensors: one process can go on with what several have begun."""
    saved = place.folder / "resumed-by-one"
    words = training_words(place, "resumed-by-one")
    process, start = launch(words, place.processes, **FSDP), time.time()
    while not list(saved.glob("checkpoints/step-*/progress.json")) and process.poll() is None:
        if time.time() > start + SECONDS:
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finish(launch([*words, "--resume"], 1))
    return compare_losses(place, "one", "resumed-by-one")


SEVERAL: dict[str, Callable[[Place], str]] = {
    "training on the CPU": train_on_cpu,
    "training on one device": train_on_one,
    "training in bf16": train_in_bf16,
    "training by removal and form": train_default,
    "training on all devices": train_on_many,
    "gradients on all devices": gradients_on_many,
    "fsdp": fsdp,
    "fsdp in bf16": fsdp_in_bf16,
    "fsdp: killed and resumed": fsdp_resume,
    "fsdp: resumed by one process": resume_without_fsdp,
}


def compare_gradients(folder: Path) -> None:
    """In each of several processes: the mean of their gradients, against those of one over the joined batch."""
    import torch.distributed as dist

    from hardkuma import HardKumaModel

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    settings = {"freeze_encoder": False, "view": "reencode", "num_selectors": 2, "bound_complement": True}
    model = HardKumaModel.from_encoder(str(folder / "encoder"), **settings).to(device).train()
    inputs = dict(model.tokenizer(texts(8 * world), padding=True, return_tensors="pt"))
    inputs["noise"] = torch.rand(8 * world, 2, inputs["input_ids"].shape[1])
    inputs = {name: value.to(device) for name, value in inputs.items()}

    def gradients(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        loss = model(**{name: value[part] for name, value in inputs.items()}, return_loss=True).loss
        loss.backward()
        kept = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        return loss.detach(), torch.cat(kept)

    joined_loss, joined = gradients(slice(None))
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    loss, own = gradients(slice(8 * rank, 8 * rank + 8))
    dist.all_reduce(own)
    dist.all_reduce(loss)
    error = float((own / world - joined).norm() / joined.norm())
    text = f"{world} processes: the mean gradient differs from that of one process by {error:.2g} of its norm, the loss by "
    text += f"{abs(float(loss / world - joined_loss)):.2g}"
    assert error < 1e-3, text
    if rank == 0:
        (folder / "gradients.txt").write_text(text)
    dist.barrier()
    dist.destroy_process_group()


def train(words: list[str]) -> int:
    if words[0] == "gradients":
        compare_gradients(Path(words[1]))
        return 0
    if os.environ.get("ACCELERATE_USE_FSDP") == "true" and not ON_GPU:
        # accelerate shards where there are several devices, and takes a CPU for none.
        from accelerate import PartialState
        from accelerate.utils import DistributedType

        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    from hardkuma import train as training

    return training.main(words)


# ---- all of it ----------------------------------------------------------------------------------------------------------


def single_results(names: list[str], place: Place) -> Iterator[dict[str, Any]]:
    """Of checks that run in one process after the other; when it dies, another goes on after the check that it died of."""
    file, left = place.folder / "results.jsonl", list(names)
    while left:
        file.write_text("")
        command = [sys.executable, __file__, "--single", *left, "--folder", str(place.folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, why = "", f"its process took longer than {SECONDS * 2} seconds"
        try:
            said = process.communicate(timeout=SECONDS * 2)[0]
            why = f"its process ended with {process.returncode}: ...{said[-900:]}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        entries = [json.loads(line) for line in file.read_text().splitlines()]
        done = [entry for entry in entries if "status" in entry]
        yield from done
        left = left[len(done) :]
        if left:
            yield {"name": left.pop(0), "status": "FAIL", "detail": why, "seconds": 0.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, help="that train together (default: one a GPU; two without any)")
    parser.add_argument("--only", default="", metavar="TEXT", help="checks whose name holds this")
    parser.add_argument("--single", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    processes = arguments.processes or (torch.cuda.device_count() if ON_GPU else 2)
    if arguments.single:
        run_single(arguments.single, Place(processes, Path(arguments.folder)))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="hardkuma-smoke-"))
    place, counts = Place(processes, folder), dict.fromkeys(("PASS", "FAIL", "SKIP"), 0)
    print(f"HardKuma on {f'{torch.cuda.device_count()} GPU(s)' if ON_GPU else 'a CPU: no GPU was found'}", flush=True)
    try:
        single = [name for name in SINGLE if arguments.only in name]
        several = ({"name": name, **judge(check, place)} for name, check in SEVERAL.items() if arguments.only in name)
        for results in (single_results(single, place), several):
            for result in results:
                counts[result["status"]] += 1
                print(
                    f"{result['status']} {result['name']} ({result['seconds']:.0f} s)\n    {result['detail']}", flush=True
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        sys.exit(train(sys.argv[2:]))
    sys.exit(main())
