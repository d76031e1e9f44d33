"""What gates cost on top of the encoder: both ratios in one run, rounds interleaved so that noise hits all alike.

    python benchmarks/overhead.py

Compared, in eval, on the same batch of 32 sentences of about 30 tokens with MiniLM:

- released: the gates of both released selectors, whose rationales, if asked for, are encoded anew (view `reencode`)
- hidden: gates of a plain selector and all three embeddings (view `hidden`)
- attention: the same, with attention features for the selector

Each is compared with its own encoder alone, pooled as SentenceTransformer does it: the same weights, one right after the
other, in changing order, so that the caches hold what both need. The first round, which does not count, also encodes the
batch's tokens alone, which the released `meaning` reads and remembers.

Where a process's memory happens to lie makes a difference of some hundredths that no number of rounds removes. So there are
several processes, one after the other: the median over rounds of each is printed, and the median of these.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from tqdm import tqdm

from hardkuma import HardKumaModel, load_released
from hardkuma.pooling_hardkuma import normalize, pool

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
TEXT = (
    "Marie Curie moved from Warsaw to Paris in 1891, studied physics there and shared the Nobel Prize of 1903 with others"
)


def seconds(run: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def measure(rounds: int, repeats: int, batch: int) -> tuple[str, dict[str, list[tuple[float, float]]]]:
    """Seconds of the encoder alone and with gates, of each round, by the name of the model; and what was run."""
    released = load_released()[0]
    plain = HardKumaModel.from_encoder(ENCODER).eval()
    attention = HardKumaModel.from_encoder(ENCODER, selector_inputs=["state", "attention"]).eval()
    texts = [f"{TEXT} ({i})." for i in range(batch)]
    inputs = dict(plain.tokenizer(texts, padding=True, return_tensors="pt"))
    mask = inputs["attention_mask"]

    models: dict[str, HardKumaModel] = {"released": released, "hidden": plain, "attention": attention}
    options = {"released": {"return_embeddings": False}}

    def encode(name: str) -> object:
        return normalize(pool(models[name].encoder(**inputs).last_hidden_state, mask[:, None], ["mean"]))

    def gate(name: str) -> object:
        return models[name](**inputs, **options.get(name, {}))

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    with torch.inference_mode():
        for number in tqdm(range(rounds + 1), desc="rounds"):
            for name in models:
                runs = (encode, gate) if number % 2 else (gate, encode)
                seconds(lambda run=runs[0], name=name: run(name), 1)  # its weights, into the caches
                took = {run: seconds(lambda run=run, name=name: run(name), repeats) for run in runs}
                times[name].append((took[encode], took[gate]))
    what = f"batch {batch} x {mask.shape[1]} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return what, {name: pairs[1:] for name, pairs in times.items()}  # the first round warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds of a process (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="forward passes a round (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="sentences in the batch (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=5, help="one after the other (default: %(default)s)")
    arguments = parser.parse_args()

    ratios: dict[str, list[float]] = {}
    for number in range(arguments.processes):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            what, times = process.submit(measure, arguments.rounds, arguments.repeats, arguments.batch).result()
        print(f"process {number + 1}: {what}")
        for name, pairs in times.items():
            ratios.setdefault(name, []).append(statistics.median(gated / alone for alone, gated in pairs))
            alone, gated = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{name:10} {gated:8.2f} ms against {alone:8.2f} ms: {ratios[name][-1]:.3f}x the encoder alone")
    for name, of_processes in ratios.items():
        each = ", ".join(f"{ratio:.3f}" for ratio in sorted(of_processes))
        print(f"{name:10} {statistics.median(of_processes):.3f}x, the median of processes ({each})")


if __name__ == "__main__":
    main()
