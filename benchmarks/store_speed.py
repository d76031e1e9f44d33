"""Epochs over stored states against epochs that encode anew, in one run, and how time and memory grow with the corpus.

    python benchmarks/store_speed.py                        4,000 sentences: both kinds of epoch, side by side
    python benchmarks/store_speed.py --grow 4000 20000 100000    stored epochs only; time and resident memory

Sentences are the bundled corpus, repeated with numbers appended where more are asked for than it has. Each size of --grow
runs in a process of its own, so that one's memory is not seen in the other's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from accelerate import Accelerator
from transformers.utils import logging

from hardkuma.data import bundled_texts
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.recipe import Recipe
from hardkuma.training.steps import epoch_batches, local_batch, train_step
from hardkuma.training.store import StateStore, build_store


def resident() -> float:
    """Resident memory of this process in MB."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def make_texts(count: int, words: int | None) -> list[str]:
    base = [" ".join(text.split()[:words]) for text in bundled_texts()]
    return [base[i % len(base)] if i < len(base) else f"{base[i % len(base)]} ({i})" for i in range(count)]


def epoch(model: HardKumaModel, store: StateStore, recipe: Recipe, accelerator: Accelerator) -> float:
    """Seconds of one epoch, batches made included."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    start = time.perf_counter()
    for step, batch in enumerate(epoch_batches(recipe, store, np.arange(len(store)), 0, accelerator)):
        inputs = local_batch(store, batch, model.config, 0, step, accelerator)
        train_step(model.train(), optimizer, inputs, recipe, accelerator)
    return time.perf_counter() - start


def measure(count: int, live: bool, rounds: int, batch_size: int, words: int | None) -> None:
    logging.disable_progress_bar()
    recipe, accelerator = Recipe(batches="random", batch_size=batch_size), Accelerator()
    model = HardKumaModel.from_encoder(recipe.encoder, view="input", selector_inputs=["state", "input"]).eval()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        texts = make_texts(count, words)
        stored = build_store(model, texts, f"{folder}/stored", "float16", progress=False)
        del texts
        built = time.perf_counter() - start
        plain = None
        if live:
            plain = build_store(model, make_texts(count, words), f"{folder}/live", None, progress=False)
        before, stored_times, live_times = resident(), [], []
        for _ in range(rounds):
            stored_times.append(epoch(model, stored, recipe, accelerator))
            if plain is not None:
                live_times.append(epoch(model, plain, recipe, accelerator))
        line = f"{count:7,} sentences: built in {built:6.1f} s, stored epoch {np.median(stored_times):6.2f} s"
        if live_times:
            ratio = np.median([b / a for a, b in zip(stored_times, live_times, strict=True)])
            line += f", encoding epoch {np.median(live_times):6.2f} s: {ratio:.1f}x"
        print(f"{line}; resident {before:.0f} MB before, {resident():.0f} MB after", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=4000, help="of the comparison (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each kind (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--grow", type=int, nargs="+", metavar="N", help="corpus sizes, stored epochs only")
    parser.add_argument("--words", type=int, help="cut sentences to so many words, for a quicker look at large corpora")
    parser.add_argument("--no-live", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for count in arguments.grow or []:
        settings = ["--sentences", str(count), "--rounds", "1", "--batch-size", str(arguments.batch_size), "--no-live"]
        settings += [] if arguments.words is None else ["--words", str(arguments.words)]
        subprocess.run([sys.executable, __file__, *settings], check=True)
    if not arguments.grow:
        measure(arguments.sentences, not arguments.no_live, arguments.rounds, arguments.batch_size, arguments.words)


if __name__ == "__main__":
    main()
