"""What gates cost on top of the encoder: both ratios in one run, rounds interleaved so that noise hits all alike.

    python benchmarks/overhead.py --rounds 30

Compared, in eval, on the same batch of 32 sentences of about 30 tokens with MiniLM:

- encoder: the encoder alone, with its own pooling, as SentenceTransformer runs it (no gates)
- released: the gates of both released selectors, whose rationales, if asked for, are encoded anew (view `reencode`)
- hidden: gates of a plain selector and all three embeddings (view `hidden`)
- attention: the same, with attention features for the selector

The ratio of each round is taken against the encoder's time in that round; the median over rounds is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="forward passes a round (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="sentences in the batch (default: %(default)s)")
    arguments = parser.parse_args()

    released = load_released()[0]
    plain = HardKumaModel.from_encoder(ENCODER).eval()
    attention = HardKumaModel.from_encoder(ENCODER, selector_inputs=["state", "attention"]).eval()
    texts = [f"{TEXT} ({i})." for i in range(arguments.batch)]
    inputs = dict(plain.tokenizer(texts, padding=True, return_tensors="pt"))
    mask = inputs["attention_mask"]

    def encoder_alone() -> object:
        return normalize(pool(plain.encoder(**inputs).last_hidden_state, mask[:, None], ["mean"]))

    runs: dict[str, Callable[[], object]] = {
        "encoder": encoder_alone,
        "released": lambda: released(**inputs, return_embeddings=False),
        "hidden": lambda: plain(**inputs),
        "attention": lambda: attention(**inputs),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for run in runs.values():
            seconds(run, 2)  # warm up
        for number in tqdm(range(arguments.rounds), desc="rounds"):
            names = list(runs) if number % 2 else list(runs)[::-1]
            for name in names:
                times[name].append(seconds(runs[name], arguments.repeats))
    print(f"batch {arguments.batch} x {mask.shape[1]} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, times["encoder"], strict=True)]
        quartiles = statistics.quantiles(ratios, n=4)
        print(
            f"{name:10} {1000 * statistics.median(values):8.2f} ms   {statistics.median(ratios):.3f}x the encoder alone "
            f"(quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f})"
        )


if __name__ == "__main__":
    main()
