"""`hardkuma gates` beside SentenceTransformer.encode: same sentences, same encoder, same threads, one run.

    python benchmarks/throughput.py                              100,000 sentences
    python benchmarks/throughput.py --blocks 6                   the same with a shorter part 1
    python benchmarks/throughput.py --sentences 2000 --only-speed   a quick look
    python benchmarks/throughput.py --selectors meaning entities --ways encode onnx
    python benchmarks/throughput.py --file my.txt --threads 4

Ways to work through the sentences:

    encode       sentence-transformers on torch
    encode-onnx  sentence-transformers with its encoder in onnxruntime, quantised to int8 as its own
                 `export_dynamic_quantized_onnx_model(model, "avx512_vnni")` does (weights by tensor, all of the graph).
                 Its own export is made by optimum, which does not take this version of transformers; so the graph is made
                 here by torch.onnx from the same weights. Tokens, sorting and pooling are sentence-transformers' own.
    torch        `hardkuma gates`
    onnx         `hardkuma gates --backend onnx`
    auto         `hardkuma gates --backend auto`

1. Speed, in one process: blocks of sentences go in turn through each way, in alternating order; gates with all that the
   command does (tokens, gates, words, spans, JSON lines, a file that is synced). Ratios are taken over all blocks. Where a
   selector reads an inner layer, gates run the encoder up to it; `encode` needs all layers.
2. Whole commands, as a user starts them: wall time, processor time and peak memory with a tenth of the sentences and with
   all of them. `encode` is a script that reads the same file, encodes it at once and saves the embeddings. Exports are made
   before: once for a checkpoint.
3. The command is killed half-way (SIGKILL) and resumed; its file must be the same to the byte. With torch and onnx.

Tables are Markdown; ratios are to the first way, and higher is faster. Exit code 0 means that part 3 holds.
`benchmarks/backends.py` measures what int8 costs in quality.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers.modeling_outputs import BaseModelOutput

from hardkuma.apps.export.backends import choose_backend
from hardkuma.cli.gates import CHUNK_TEXTS
from hardkuma.cli.writers import PartialOutput, make_format
from hardkuma.common.models import load_model
from hardkuma.data import bundled_texts
from hardkuma.data.readers import read_rows
from hardkuma.encoder_hardkuma import EMBEDDED_NAMES, resolve_encoder
from hardkuma.scoring_hardkuma import gate_records

PEERS = ("encode", "encode-onnx")
BACKENDS = ("torch", "onnx", "auto")
# Linux counts the memory of the process that forks as its child's, so a small one has to start the command: this process
# has torch loaded and would hide what the command takes.
WATCH = """
import os, subprocess, sys
_, status, usage = os.wait4(subprocess.Popen(sys.argv[1:]).pid, 0)
print(usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def sentences(number: int, file: str | None) -> list[str]:
    """Lines of a file, or sentences of the bundled corpus, as often as it takes, in random order."""
    if file:
        return list(islice(cycle([text for text in read_rows(file) if text.strip()]), number))
    return random.Random(0).choices(bundled_texts(), k=number)


class OnnxEncoder(torch.nn.Module):
    """An encoder in onnxruntime, with the call of the transformers model that it was made of."""

    def __init__(self, config: Any, file: Path, threads: int):
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.config = config

    def forward(self, **inputs: Any) -> BaseModelOutput:
        feed = {item.name: inputs[item.name].numpy() for item in self.session.get_inputs()}
        return BaseModelOutput(last_hidden_state=torch.from_numpy(self.session.run(None, feed)[0]))


class States(torch.nn.Module):
    """The last states of an encoder, as a graph has them."""

    def __init__(self, encoder: torch.nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state


def sentence_transformer() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(resolve_encoder(EMBEDDED_NAMES[0]), device="cpu")


def export_encoder(file: Path) -> None:
    """The bare encoder, with its weights and products in int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    encoder = sentence_transformer()[0].model.eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    rows = tuple(torch.ones(2, 8, dtype=torch.long) for _ in names)
    shapes = tuple({0: "batch", 1: "length"} for _ in names)
    plain = file.with_suffix(".fp32")
    with torch.no_grad():
        program = torch.onnx.export(
            States(encoder),
            rows,
            dynamo=True,
            input_names=names,
            output_names=["states"],
            dynamic_shapes=shapes,
            verbose=False,
        )
    assert program is not None
    program.save(plain)
    quantize_dynamic(plain, file, weight_type=QuantType.QInt8)
    plain.unlink()


def make_peer(way: str, file: Path, threads: int) -> Any:
    """A SentenceTransformer on torch, or with the encoder in a file."""
    peer = sentence_transformer()
    if way == "encode-onnx":
        peer[0].model = OnnxEncoder(peer[0].model.config, file, threads)
    return peer


def script(way: str, file: Path, texts: Path, saved: Path, batch_size: int, threads: int) -> None:
    """What somebody would write who wants the embeddings of a file."""
    peer = make_peer(way, file, threads)
    lines = [line.rstrip("\n") for line in texts.open(encoding="utf-8")]
    np.save(saved, peer.encode(lines, batch_size=batch_size, show_progress_bar=False))


class Contenders:
    """Everything that is timed, by name: `encode`, `meaning by onnx` and so on."""

    def __init__(self, ways: list[str], selectors: list[str], encoder: Path, threads: int, batch_size: int):
        self.threads, self.batch_size = threads, batch_size
        self.calls: dict[str, Callable[[list[str]], bytes]] = {}
        self.on_one_thread: set[str] = set()  # torch, since onnxruntime has the others
        writer, model = make_format("jsonl"), load_model(None, "cpu")
        for way in ways:
            if way in PEERS:
                self.calls[way] = self._encode(make_peer(way, encoder, threads))
                continue
            for selector in selectors:
                name = f"{selector} by {way}"
                backend = choose_backend(model, way, selector, log=lambda said, name=name: print(f"{name}: {said}"))
                self.calls[name] = self._gates(backend.gates, selector, writer)
                if backend.name == "onnx":
                    self.on_one_thread.add(name)

    def _encode(self, peer: Any) -> Callable[[list[str]], bytes]:
        return lambda texts: peer.encode(texts, batch_size=self.batch_size, show_progress_bar=False).tobytes()

    def _gates(self, gates: Any, selector: str, writer: Any) -> Callable[[list[str]], bytes]:
        return lambda texts: writer.block(gate_records(gates, texts, batch_size=self.batch_size, selector=selector))

    def run(self, name: str, texts: list[str]) -> bytes:
        torch.set_num_threads(1 if name in self.on_one_thread else self.threads)  # as the command does
        return self.calls[name](texts)


def show_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A Markdown table."""
    print(f"\n| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print(flush=True)


def speed(contenders: Contenders, texts: list[str], folder: Path, size: int, most: int) -> None:
    blocks = [texts[start : start + size] for start in range(0, len(texts), size)][:most]
    times: dict[str, list[float]] = {name: [] for name in contenders.calls}
    work = dict.fromkeys(times, 0.0)
    with ExitStack() as stack:
        files = {name: PartialOutput(folder / f"{number}.bin") for number, name in enumerate(times)}
        for name, file in files.items():
            stack.enter_context(file).begin({})
            contenders.run(name, texts[:64])
        for number in tqdm(range(len(blocks)), desc="blocks", leave=False):
            turn = list(files)
            for name in turn if number % 2 else turn[::-1]:
                start, busy = time.perf_counter(), time.process_time()
                files[name].add(len(blocks[number]), contenders.run(name, blocks[number]))
                times[name].append(time.perf_counter() - start)
                work[name] += time.process_time() - busy
    count, first = sum(map(len, blocks)), next(iter(times))
    rows = []
    for name, values in times.items():
        ratios = [a / b for a, b in zip(times[first], values, strict=True)]
        whole = f"{count / sum(values):.1f}", f"{sum(times[first]) / sum(values):.2f}"
        rows.append([name, *whole, f"{statistics.median(ratios):.2f}", f"{work[first] / work[name]:.2f}"])
    print(f"1. Speed: {len(blocks)} blocks of {size} sentences")
    show_table(["way", "sentences a second", "ratio", "median ratio of blocks", "ratio of processor time"], rows)


def command(file: Path, output: Path, selector: str, backend: str, batch_size: int) -> list[str]:
    words = [sys.executable, "-m", "hardkuma", "gates", "--quiet", "--file", str(file), "--output", str(output)]
    return [*words, "--selector", selector, "--backend", backend, "--batch-size", str(batch_size)]


def measured(words: list[str], environment: Mapping[str, str]) -> tuple[float, float, float]:
    """Seconds, peak resident megabytes and processor seconds of a command."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *words], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    peak, busy = done.stdout.split()[-2:]
    return time.perf_counter() - start, int(peak) / 1024, float(busy)


def whole(options: argparse.Namespace, texts: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    sizes, results = (len(texts) // 10, len(texts)), {}
    for number in sizes:
        file = folder / f"{number}.txt"
        file.write_text("".join(f"{text}\n" for text in texts[:number]), encoding="utf-8")
        for way in options.ways:
            if way in PEERS:
                words = [sys.executable, __file__, "--script", way, str(folder / "encoder.onnx"), str(file)]
                words += [str(folder / "embeddings.npy"), "--threads", str(options.threads)]
                results[way, number] = measured([*words, "--batch-size", str(options.batch_size)], environment)
                continue
            for selector in options.selectors:
                output = folder / f"{number}.{selector}.{way}.jsonl"
                words = command(file, output, selector, way, options.batch_size)
                results[f"{selector} by {way}", number] = measured(words, environment)
    names = list(dict.fromkeys(name for name, _ in results))
    (all_seconds, _, all_busy), rows = results[names[0], sizes[1]], []
    for name in names:
        (_, peak_tenth, _), (seconds, peak, busy) = (results[name, number] for number in sizes)
        memory = f"{peak_tenth:.0f}", f"{peak:.0f}", f"{peak / peak_tenth:.2f}"
        rows.append([name, f"{seconds:.1f}", f"{all_seconds / seconds:.2f}", f"{all_busy / busy:.2f}", *memory])
    print(f"2. Whole commands: {sizes[1]} sentences, and memory with {sizes[0]} of them")
    memory_heads = [f"peak MB, {sizes[0]}", f"peak MB, {sizes[1]}", "growth"]
    show_table(["way", "seconds", "ratio", "ratio of processor time", *memory_heads], rows)


def killed(reference: Path, words: list[str], environment: Mapping[str, str]) -> bool:
    """Whether a command that is killed half-way and resumed writes the same file as one that is not."""
    output = Path(words[words.index("--output") + 1])
    partial, half = output.with_name(f"{output.name}.partial"), reference.stat().st_size // 2
    process = subprocess.Popen([*words, "--resume"], env=environment, start_new_session=True)
    while process.poll() is None and not (partial.is_file() and partial.stat().st_size >= half):
        time.sleep(0.02)
    if process.poll() is not None:
        print(f"the command ended before it could be killed: give --sentences of some {CHUNK_TEXTS}s")
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = partial.stat().st_size / reference.stat().st_size
    subprocess.run([*words, "--resume"], env=environment, check=True)
    same = output.read_bytes() == reference.read_bytes()
    backend, verdict = words[words.index("--backend") + 1], "is the same to the byte" if same else "DIFFERS"
    print(f"3. {backend}: killed after {kept:.0%} of the bytes, resumed: the file {verdict}", flush=True)
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--file", help="take the sentences from here (default: the bundled corpus)")
    parser.add_argument("--batch-size", type=int, default=32, help="of all (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of all (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=25, help="at most, for part 1 (default: %(default)s)")
    parser.add_argument("--selectors", nargs="+", default=["meaning"], help="default: %(default)s")
    parser.add_argument("--ways", nargs="+", choices=[*PEERS, *BACKENDS], default=[*PEERS, *BACKENDS], help="default: all")
    parser.add_argument("--only-speed", action="store_true", help="part 1 alone")
    parser.add_argument("--skip-speed", action="store_true", help="parts 2 and 3 alone")
    parser.add_argument("--script", nargs=4, help=argparse.SUPPRESS)  # what part 2 starts
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.script:
        way, encoder, texts, saved = options.script
        script(way, Path(encoder), Path(texts), Path(saved), options.batch_size, options.threads)
        return 0
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    lines = sentences(options.sentences, options.file)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "onnxruntime", "sentence-transformers"))
    print(f"{len(lines)} sentences, {options.threads} threads, batches of {options.batch_size}, {versions}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "encode-onnx" in options.ways:
            export_encoder(folder / "encoder.onnx")
        if not options.skip_speed:
            contenders = Contenders(
                options.ways, options.selectors, folder / "encoder.onnx", options.threads, options.batch_size
            )
            # A short run needs smaller blocks, to take turns.
            speed(contenders, lines, folder, min(CHUNK_TEXTS, max(len(lines) // 8, 1)), options.blocks)
            del contenders
        if options.only_speed:
            return 0
        whole(options, lines, folder, environment)
        selector, same = options.selectors[0], True
        for backend in [way for way in options.ways if way in ("torch", "onnx")]:
            file, output = folder / f"{len(lines)}.txt", folder / f"killed.{backend}.jsonl"
            words = command(file, output, selector, backend, options.batch_size)
            reference = folder / f"{len(lines)}.{selector}.{backend}.jsonl"
            same = killed(reference, words, environment) and same
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
