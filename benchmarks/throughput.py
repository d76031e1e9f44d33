"""`hardkuma gates` beside SentenceTransformer.encode: same sentences, same encoder, same threads, one run.

    python benchmarks/throughput.py                              100,000 sentences
    python benchmarks/throughput.py --blocks 6                   the same with a shorter part 1; half an hour on two cores
    python benchmarks/throughput.py --sentences 2000             a quick look
    python benchmarks/throughput.py --file my.txt --threads 4

1. Speed, in one process: blocks of sentences go in turn through `encode` and through all that `hardkuma gates` does with
   them (tokens, gates, words, spans, JSON lines, a file that is synced). The ratio is taken over all blocks. Where the
   selector reads an inner layer, gates run the encoder up to it; `encode` needs all layers.
2. Whole commands, as a user starts them: wall time and peak memory with a tenth of the sentences and with all of them.
   Beside it a script that reads the same file, encodes it at once and saves the embeddings.
3. The command is killed half-way (SIGKILL) and resumed; its file must be the same to the byte.

Exit code 0 means that part 3 holds.
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
from itertools import cycle, islice
from pathlib import Path

import torch
from tqdm import tqdm

from hardkuma.commands.gates import CHUNK_TEXTS
from hardkuma.commands.parts import Parts
from hardkuma.commands.writers import make_format
from hardkuma.common.models import load_model
from hardkuma.corpora import bundled_texts
from hardkuma.corpora.rows import count_rows, read_rows
from hardkuma.encoders_hardkuma import EMBEDDED_NAMES, resolve_encoder
from hardkuma.words_hardkuma import gate_records

ENCODE = """
import sys, time
import numpy
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = [line.rstrip("\\n") for line in open(sys.argv[2], encoding="utf-8")]
start = time.perf_counter()
numpy.save(sys.argv[3], model.encode(texts, batch_size=int(sys.argv[4]), show_progress_bar=False))
print(time.perf_counter() - start)
"""
# Linux counts the memory of the process that forks as its child's, so a small one has to start the command: this process
# has torch loaded and would hide what the command takes.
WATCH = """
import os, subprocess, sys
_, status, usage = os.wait4(subprocess.Popen(sys.argv[1:]).pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def sentences(number: int, file: str | None) -> list[str]:
    """Lines of a file, or sentences of the bundled corpus, as often as it takes, in random order."""
    if file:
        return list(islice(cycle([text for text in read_rows(file) if text.strip()]), number))
    return random.Random(0).choices(bundled_texts(), k=number)


def speed(texts: list[str], folder: Path, batch_size: int, part_size: int, most: int) -> None:
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(resolve_encoder(EMBEDDED_NAMES[0]), device="cpu")
    model, writer, parts = load_model(None, "cpu"), make_format("jsonl"), Parts(folder / "speed.jsonl")
    parts.begin({}, resume=False)
    blocks = [texts[start : start + part_size] for start in range(0, len(texts), part_size)][:most]

    def encode(number: int) -> None:
        peer.encode(blocks[number], batch_size=batch_size, show_progress_bar=False)

    def gates(number: int) -> None:
        parts.add(number, writer.part(gate_records(model, blocks[number], batch_size=batch_size)))

    peer.encode(texts[:64])
    gate_records(model, texts[:64])
    times: dict[str, list[float]] = {"encode": [], "gates": []}
    work = {"encode": 0.0, "gates": 0.0}
    for number in tqdm(range(len(blocks)), desc="blocks", leave=False):
        turn = [("encode", encode), ("gates", gates)]
        for name, run in turn if number % 2 else turn[::-1]:
            start, busy = time.perf_counter(), time.process_time()
            run(number)
            times[name].append(time.perf_counter() - start)
            work[name] += time.process_time() - busy
    parts.close(len(blocks), writer.join)
    count = sum(map(len, blocks))
    ratios = [a / b for a, b in zip(times["encode"], times["gates"], strict=True)]
    for name, values in times.items():
        print(f"{name:8} {count / sum(values):8.1f} sentences a second")
    ratio = sum(times["encode"]) / sum(times["gates"])
    print(
        f"ratio    {ratio:8.3f} (median of {len(blocks)} blocks {statistics.median(ratios):.3f}); higher is better;\n"
        f"of processor time {work['encode'] / work['gates']:8.3f} (for a machine that others use too)",
        flush=True,
    )


def command(file: Path, output: Path, batch_size: int, part_size: int) -> list[str]:
    words = [sys.executable, "-m", "hardkuma", "gates", "--quiet", "--file", str(file), "--output", str(output)]
    return [*words, "--batch-size", str(batch_size), "--part-size", str(part_size)]


def measured(words: list[str], environment: dict[str, str]) -> tuple[float, float, str]:
    """Seconds, peak resident megabytes and output of a command."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *words], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    *lines, peak = done.stdout.splitlines()
    return time.perf_counter() - start, int(peak) / 1024, "".join(lines)


def whole(texts: list[str], folder: Path, batch_size: int, part_size: int, environment: dict[str, str]) -> Path:
    for number in (len(texts) // 10, len(texts)):
        file, output = folder / f"{number}.txt", folder / f"{number}.jsonl"
        file.write_text("".join(f"{text}\n" for text in texts[:number]), encoding="utf-8")
        encoder, saved = resolve_encoder(EMBEDDED_NAMES[0]), folder / "embeddings.npy"
        script = [sys.executable, "-c", ENCODE, encoder, str(file), str(saved), str(batch_size)]
        seconds, memory, inside = measured(script, environment)
        ours, peak, _ = measured(command(file, output, batch_size, part_size), environment)
        print(f"{number:7d} sentences: encode {seconds:7.1f} s ({float(inside):.1f} s in encode), peak {memory:6.0f} MB")
        print(
            f"{'':7} {'':10} gates  {ours:7.1f} s, peak {peak:6.0f} MB; ratio of the whole {seconds / ours:.3f}", flush=True
        )
    return output


def killed(reference: Path, folder: Path, batch_size: int, part_size: int, environment: dict[str, str]) -> bool:
    output = folder / "killed.jsonl"
    file = reference.with_suffix(".txt")
    expected = -(-(count_rows(file) or 0) // part_size)
    words = [*command(file, output, batch_size, part_size), "--resume"]
    process = subprocess.Popen(words, env=environment, start_new_session=True)
    parts = folder / "killed.jsonl.parts"
    while process.poll() is None and not (parts.is_dir() and len(list(parts.glob("0*"))) >= max(expected // 2, 1)):
        time.sleep(0.02)
    if process.poll() is not None:
        print("the command ended before it could be killed: use more --sentences")
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = len([path for path in parts.iterdir() if path.name.isdigit()])
    subprocess.run(words, env=environment, check=True)
    same = output.read_bytes() == reference.read_bytes()
    print(f"killed after {kept} of {expected} parts, resumed: the file {'is the same to the byte' if same else 'DIFFERS'}")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--file", help="take the sentences from here (default: the bundled corpus)")
    parser.add_argument("--batch-size", type=int, default=32, help="of both (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=25, help="at most, for part 1 (default: %(default)s)")
    parser.add_argument("--only-speed", action="store_true", help="part 1 alone")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    texts = sentences(arguments.sentences, arguments.file)
    print(
        f"{len(texts)} sentences, {arguments.threads} threads, batches of {arguments.batch_size}, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A short run needs smaller parts, to take turns and to be killed between them.
        part_size = min(CHUNK_TEXTS, max(len(texts) // 8, 1))
        speed(texts, folder, arguments.batch_size, part_size, arguments.blocks)
        if arguments.only_speed:
            return 0
        reference = whole(texts, folder, arguments.batch_size, part_size, environment)
        return 0 if killed(reference, folder, arguments.batch_size, part_size, environment) else 1


if __name__ == "__main__":
    sys.exit(main())
