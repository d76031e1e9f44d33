"""How fast gates are, as ratios to the encoder that they sit on, measured side by side.

    python benchmarks/speed.py --data FOLDER                                  passes, lengths and throughput
    python benchmarks/speed.py --parts passes lengths --processes 3           these need no data
    python benchmarks/speed.py --data FOLDER --parts throughput --sentences 2000
    python benchmarks/speed.py --data FOLDER --parts backends                 what int8 costs in quality
    python benchmarks/speed.py --parts store                                  training on stored states

- passes: gates alone, `model(**inputs, selector="meaning")` and `model(**inputs)` of the released head, each divided by the
  bare encoder with mean pooling, on 32 sentences of mixed length.
- lengths: the head's own time (gates minus encoder) for one row of 1,024 to 8,192 tokens, on a tiny random encoder. Linear
  growth is a factor of 2 for each doubling.
- throughput: from text to records, sentences a second of `meaning` divided by those of `SentenceTransformer.encode`, on
  WikiText-2 test (FOLDER/wikitext2/test.txt), by torch and by onnxruntime in int8.
- backends: average precision of `entities`, sufficiency and comprehensiveness of `meaning`, and changed decisions, of
  onnxruntime against torch, on WNUT17 and wikigold.
- store: steps of the contrastive objective that encode, divided by those on stored states; processor time.

Rounds are interleaved and in changing order, so that noise hits all alike. Where a process's memory happens to lie makes a
difference of some hundredths that no number of rounds removes: so there are several processes, one after the other, and the
median of their medians is shown with all of them. Seconds are printed for orientation; only ratios are to be quoted. On a
machine with other work `--threads 1 --clock processor` counts processor time, which is not spent on waiting.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle, islice, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, BertConfig

from hardkuma import HardKumaModel, choose_backend, gate_records, load_released, score_texts
from hardkuma.data import bundled_texts, read_texts
from hardkuma.encoder_hardkuma import resolve_encoder
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.words import WordScores
from hardkuma.evaluation.corpora import find_corpora, labels_of, texts_of
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.evaluation.metrics import Ranking

ROOT = Path(__file__).resolve().parents[1]
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
PARTS = ("passes", "lengths", "throughput", "backends", "store")
BATCH, LENGTHS = 32, (1024, 2048, 4096, 8192)

# ---- what is measured: every name of the model's interface is in this section -------------------------------------------

WORD_SELECTOR: dict[str, Any] = {"selectors": {"meaning": {"reads": ["state", "pool_share", "isolated"], "unit": "word"}}}
CACHE, STEPS = "cache", "train.max_steps"
STORE_SETTINGS: dict[str, object] = {
    "max_sentences": 2000,
    "held_out": 2,
    "model.view": "input",
    "train.batches": "random",
    "train.epochs": 1000,
    "train.evaluate_every": 1000,
    "surface": "false",
}


def run_encoder(model: HardKumaModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """The bare encoder, pooled and normalised as SentenceTransformer does it."""
    states, mask = model.encoder(**inputs).last_hidden_state, inputs["attention_mask"][..., None].float()
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def run_gates(model: HardKumaModel, inputs: Mapping[str, Tensor]) -> object:
    return model(**inputs, return_embeddings=False)


def run_one_selector(model: HardKumaModel, inputs: Mapping[str, Tensor]) -> object:
    return model(**inputs, selector="meaning")


def run_all_selectors(model: HardKumaModel, inputs: Mapping[str, Tensor]) -> object:
    return model(**inputs)


CALLS: dict[str, Callable[[HardKumaModel, Mapping[str, Tensor]], object]] = {
    "bare encoder": run_encoder,
    "gates alone": run_gates,
    'model(**inputs, selector="meaning")': run_one_selector,
    "model(**inputs)": run_all_selectors,
}

# ---- times --------------------------------------------------------------------------------------------------------------

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
Times = dict[str, list[float]]  # seconds of each round, by what was run


def interleave(calls: Mapping[str, Callable[[], object]], rounds: int, clock: str) -> Times:
    """Seconds of each call in each round; the order changes from round to round, and the first round does not count."""
    now = CLOCKS[clock]
    times: Times = {name: [] for name in calls}
    for number in range(rounds + 1):
        names = list(calls) if number % 2 else list(calls)[::-1]
        for name in names:
            start = now()
            calls[name]()
            times[name].append(now() - start)
    return {name: values[1:] for name, values in times.items()}


def ratios_to_first(times: Times) -> dict[str, float]:
    """Median over rounds of each call's time divided by the first's in the same round."""
    first, *others = times
    return {
        name: statistics.median(a / b for a, b in zip(times[name], times[first], strict=True)) for name in others
    }  # fmt: skip


@torch.inference_mode()
def measure_passes(clock: str, rounds: int) -> dict[str, float]:
    model, tokenizer = load_released()
    texts = random.Random(0).sample(bundled_texts(), BATCH)
    inputs = dict(tokenizer(texts, padding=True, truncation=True, return_tensors="pt"))
    times = interleave({name: lambda call=call: call(model, inputs) for name, call in CALLS.items()}, rounds, clock)
    lengths = inputs["attention_mask"].sum(1)
    alone = 1000 * statistics.median(times["bare encoder"])
    print(f"  {BATCH} sentences of {lengths.min()} to {lengths.max()} tokens, the encoder {alone:.0f} ms", flush=True)
    return ratios_to_first(times)


def long_model(folder: str) -> tuple[HardKumaModel, Any]:
    """Gates of words on a random encoder that takes 8,192 tokens."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_encoder(ENCODER))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LENGTHS[-1], **sizes)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model = HardKumaModel.from_encoder(folder, **WORD_SELECTOR).eval()
    model.build_isolated_table()
    return model, tokenizer


@torch.inference_mode()
def measure_lengths(clock: str, rounds: int, lengths: Sequence[int] = LENGTHS) -> dict[str, float]:
    """Milliseconds of the head for each length, and the factor to the length before."""
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = long_model(folder)
    ids = tokenizer(" ".join(bundled_texts()[:1000]), verbose=False)["input_ids"]
    head: dict[int, float] = {}
    for length in lengths:
        row = torch.tensor([[*ids[: length - 1], ids[-1]]])
        inputs = {"input_ids": row, "attention_mask": torch.ones_like(row)}
        calls = {"encoder": lambda i=inputs: run_encoder(model, i), "gates": lambda i=inputs: run_gates(model, i)}
        times = interleave(calls, rounds, clock)
        alone, gated = (statistics.median(times[name]) for name in calls)
        head[length] = max(gated - alone, 1e-6)
        print(f"  {length:5,} tokens: encoder {1000 * alone:8.1f} ms, head {1000 * head[length]:8.1f} ms", flush=True)
    growth = {f"{b:,} / {a:,} tokens": head[b] / head[a] for a, b in pairwise(lengths)}
    return {**growth, f"{lengths[-1]:,} / {lengths[0]:,} tokens": head[lengths[-1]] / head[lengths[0]]}


def measure_throughput(clock: str, file: Path, number: int, blocks: int = 10) -> dict[str, float]:
    """Sentences a second by `meaning`, divided by those of `SentenceTransformer.encode`; higher is faster."""
    from sentence_transformers import SentenceTransformer

    sentences = list(islice(cycle(read_texts(file)), number))
    model, threads = load_released()[0], torch.get_num_threads()
    peer = SentenceTransformer(resolve_encoder(ENCODER), device="cpu")
    backends = {name: choose_backend(model, name, "meaning", log=print) for name in ("torch", "onnx")}
    calls: dict[str, Callable[[list[str]], object]] = {"encode": partial(peer.encode, show_progress_bar=False)}
    for name, backend in backends.items():
        calls[f"meaning by {name}, {backend.precision}"] = partial(gate_records, backend.gates, selector="meaning")
    size, now = -(-number // blocks), CLOCKS[clock]
    totals = dict.fromkeys(calls, 0.0)
    for turn, start in enumerate(range(-size, number, size)):
        block = sentences[max(start, 0) : start + size] if start >= 0 else sentences[:BATCH]  # the first warms up
        for name in list(calls) if turn % 2 else list(calls)[::-1]:
            torch.set_num_threads(1 if "onnx" in name else threads)  # as the command does: onnxruntime has the others
            began = now()
            calls[name](block)
            totals[name] += now() - began if start >= 0 else 0.0
    for name, seconds in totals.items():
        print(f"  {name}: {number / seconds:.0f} sentences a second, {threads} threads", flush=True)
    first, *others = totals
    return {name: totals[first] / totals[name] for name in others}


# ---- quality of int8, and training --------------------------------------------------------------------------------------


def measure_backends(data: Path, sample: int, removed: int = 100) -> None:
    """One row a corpus: differences of onnxruntime to torch, and the share of decisions that change."""
    model = load_released()[0]
    encoder = SentenceEncoder.from_model(model)
    backends = [choose_backend(model, name, "meaning", log=print) for name in ("torch", "onnx")]
    print(f"| onnx {backends[1].precision} - torch | average precision | sufficiency | comprehensiveness |", end="")
    print(" entities changed | meaning changed |\n|---|---:|---:|---:|---:|---:|")
    for corpus in find_corpora(data):
        sentences = corpus.sample(sample)
        (texts, words), labels = texts_of(sentences), labels_of(sentences)
        numbers, decisions = [], []
        for backend in backends:
            entities = score_texts(backend.gates, texts, words=words, selector="entities")
            meaning = score_texts(backend.gates, texts[:removed], words=words[:removed], selector="meaning")
            kept = faithfulness(encoder, [WordScores(item.text, item.words, item.probabilities) for item in meaning])
            precision = Ranking(labels, [item.probabilities for item in entities]).curve().average_precision()
            areas = [np.nanmean(kept.areas(curve)) for curve in (kept.sufficiency, kept.comprehensiveness)]
            numbers.append(np.array([precision, *areas]))
            decisions.append([np.concatenate([item.decide() for item in scored]) for scored in (entities, meaning)])
        cells = [f"{value:+.4f}" for value in numbers[1] - numbers[0]]
        cells += [f"{(a != b).mean():.1%}" for a, b in zip(*decisions, strict=True)]
        print(f"| {corpus.name} | {' | '.join(cells)} |", flush=True)


def measure_store(clock: str) -> dict[str, float]:
    """Seconds of contrastive steps that encode anew, divided by those on stored states: what more steps take longer."""
    seconds = {}
    for cache in ("auto", "never"):
        few, many = (train_seconds({**STORE_SETTINGS, CACHE: cache, STEPS: steps}) for steps in (10, 60))
        seconds[cache] = max(many - few, 1e-6)
    print(f"  50 steps: {seconds['auto']:.1f} s on stored states, {seconds['never']:.1f} s encoding", flush=True)
    return {"encoding / stored states": seconds["never"] / seconds["auto"]}


def train_seconds(settings: Mapping[str, object]) -> float:
    """Processor seconds of a whole run of `train.py contrastive`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        command = [sys.executable, str(ROOT / "train.py"), "contrastive", "--output", folder, *words]
        subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def repeat(options: argparse.Namespace, title: str, measure: Callable[..., dict[str, float]], *arguments: object) -> None:
    """Measure in several processes, one after the other, and print the median of each ratio with all values."""
    found: list[dict[str, float]] = []
    for _ in range(options.processes):
        own = {"mp_context": get_context("spawn"), "initializer": torch.set_num_threads, "initargs": (options.threads,)}
        with ProcessPoolExecutor(1, **own) as process:
            found.append(process.submit(measure, options.clock, *arguments).result())
    print(f"\n| {title} | median of {options.processes} | each process |\n|---|---:|---|")
    for name in found[0]:
        values = sorted(ratios[name] for ratios in found)
        print(f"| {name} | {statistics.median(values):.3f} | {', '.join(f'{value:.3f}' for value in values)} |", flush=True)
    print()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="holds wikitext2/; for backends wnut17/ and wikigold/")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["passes", "lengths", "throughput"])
    parser.add_argument("--processes", type=int, default=5, help="one after the other (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=20, help="of passes; lengths take a fifth (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=20_000, help="of throughput (default: %(default)s)")
    parser.add_argument("--sample", type=int, default=800, help="sentences of a corpus, of backends (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.data is None and {"throughput", "backends"} & set(options.parts):
        parser.error("--data FOLDER is needed for throughput and backends; --parts passes lengths needs none")
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.clock} time", flush=True)
    if "passes" in options.parts:
        repeat(options, "time / bare encoder", measure_passes, options.rounds)
    if "lengths" in options.parts:
        repeat(options, "growth of the head's time", measure_lengths, max(1, options.rounds // 5))
    if "throughput" in options.parts:
        file = options.data / "wikitext2" / "test.txt"
        repeat(options, "speed / SentenceTransformer.encode", measure_throughput, file, options.sentences)
    if "store" in options.parts:
        repeat(options, "steps that encode / steps on stored states", measure_store)
    if "backends" in options.parts:
        measure_backends(options.data, options.sample)
    return 0


if __name__ == "__main__":
    sys.exit(main())
