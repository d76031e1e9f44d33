"""How memory and time of training grow with the text, up to the first step: 100,000 and 1,000,000 sentences of real length.

    python benchmarks/training_memory.py --data wikitext2/valid.txt wikitext2/test.txt        both sizes, both objectives
    python benchmarks/training_memory.py --sizes 2000 20000 --removal-sentences 1000          a quick look

Sentences are recombined from those of --data (files as recipes name them; by default the bundled corpus): the first words
of one and the last words of another of the same length, so that lengths are real; the same text every time. The encoder is
a random one, by default without layers, so that a run takes minutes, with the tokenizer and the width of MiniLM, so that
what is stored has its real size; `--encoder NAME` takes another, such as sentence-transformers/all-MiniLM-L6-v2 itself.

Each run is a process of its own, from reading the file to the end of its first step (contrastive, batches of neighbours) or
of its first pass over all subsets (removal). Printed are the peaks of its memory: what only the process has (anonymous),
what the system may take back at any time (mapped files), and both together. Exit code 0: the peak of the largest run is at
most 1.3 times that of the smallest, plus one copy of its embeddings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig
from transformers.utils import logging

from hardkuma.common.text import MINILM
from hardkuma.data import bundled_texts, clean, read_texts
from hardkuma.encoder_hardkuma import resolve_encoder
from hardkuma.training.recipe import Recipe, load_recipe
from hardkuma.training.trainer import Trainer

SIZES = [100_000, 1_000_000]
OBJECTIVES = ("removal", "contrastive")
FACTOR = 1.3  # by which the peak may grow, beside the embeddings
PART = 10_000  # sentences that are recombined at a time


def recombine(sentences: Iterable[str], count: int, seed: int = 0) -> Iterator[str]:
    """`count` sentences, each the first words of one and the last words of another of as many words."""
    by_length: dict[int, list[list[str]]] = defaultdict(list)
    for sentence in sentences:
        words = sentence.split()
        by_length[len(words)].append(words)
    lengths = np.array(sorted(by_length))
    share = np.array([len(by_length[length]) for length in lengths])
    draw = np.random.default_rng(seed)
    for start in range(0, count, PART):
        size = min(PART, count - start)
        chosen = draw.choice(lengths, size, p=share / share.sum())
        places = draw.random((3, size))
        for length, first, second, cut in zip(chosen.tolist(), *places.tolist(), strict=True):
            group, middle = by_length[length], 1 + int(cut * (length - 1))
            head, tail = group[int(first * len(group))], group[int(second * len(group))]
            yield " ".join([*head[:middle], *tail[middle:]])


def write_text(path: Path, data: list[str], count: int) -> None:
    sources = (bundled_texts() if name == "bundled" else read_texts(name) for name in data)
    with open(path, "w", encoding="utf-8") as file:
        for sentence in recombine(clean(chain.from_iterable(sources)), count):
            file.write(sentence + "\n")


def write_encoder(folder: Path, layers: int) -> None:
    """A random encoder of MiniLM's width, with its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_encoder(MINILM))
    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": layers, "num_attention_heads": 12, "intermediate_size": 64}
    AutoModel.from_config(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class MemoryWatch(threading.Thread):
    """Looks at this process's memory every 20 ms; `peaks` in MB."""

    KINDS = {"RssAnon": "anonymous", "RssFile": "mapped files", "VmRSS": "together"}

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks = dict.fromkeys(self.KINDS.values(), 0.0)
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for name, size in self.read().items():
                self.peaks[name] = max(self.peaks[name], size)

    def read(self) -> dict[str, float]:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return {name: int(fields[key].split()[0]) * 1024 / 1e6 for key, name in self.KINDS.items()}


def make_recipe(objective: str, encoder: str, text: Path, output: Path, removal_sentences: int) -> Recipe:
    common = {"encoder": encoder, "data": [str(text)], "split_sentences": False, "output": str(output)}
    if objective == "contrastive":
        return load_recipe("contrastive", {**common, "max_steps": 1, "epochs": 1, "model.selector_layer": -1})
    meaning = {
        "selector_names": ["meaning"],
        "selector_inputs": ["state", "pooled"],
        "selector_layer": [0.0, 1.0],
        "selector_unit": "word",
        "selector_hidden_size": 64,
        "target_rate": 0.3,
        "shape_min": 0.1,
        "view": "reencode",
    }
    some = {"objective": "removal", "removal_sentences": removal_sentences, "removal_epochs": 1, "surface": False}
    return load_recipe(None, {**common, **some, "model": meaning})


def measure(objective: str, encoder: str, text: Path, output: Path, removal_sentences: int) -> None:
    """One run in this process; its peaks as a line of JSON."""
    logging.disable_progress_bar()
    watch, start, used = MemoryWatch(), time.perf_counter(), time.process_time()
    before = watch.read()["together"]
    watch.start()
    trainer = Trainer(make_recipe(objective, encoder, text, output, removal_sentences))
    prepared = time.perf_counter() - start
    assert trainer.run()
    watch.ended.set()
    files = [path for path in (output / "store").rglob("*") if path.is_file()]
    result = {
        "sentences": len(trainer.rows) + len(trainer.held_out),
        "embeddings": trainer.store.anchors().nbytes / 1e6,
        "imports": before,
        **watch.peaks,
        "disk": sum(path.stat().st_blocks * 512 for path in files) / 1e6,
        "prepared": prepared,
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - used,
    }
    print(json.dumps(result), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="default: %(default)s")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES), help="default: both")
    parser.add_argument("--data", nargs="+", default=["bundled"], metavar="FILE", help="default: the bundled corpus")
    parser.add_argument("--encoder", help="folder or Hub id (default: a random one of --layers layers)")
    parser.add_argument("--layers", type=int, default=0, help="of the random encoder (default: %(default)s)")
    parser.add_argument("--removal-sentences", type=int, default=16_000, help="default: %(default)s")
    parser.add_argument("--scratch", help="folder for text and stores, 20 GB for a million (default: the system's)")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        objective, text = arguments.one
        measure(objective, arguments.encoder, Path(text), Path(arguments.scratch) / objective, arguments.removal_sentences)
        return 0
    passed = True
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        folder = Path(scratch)
        encoder = arguments.encoder or str(folder / "encoder")
        if arguments.encoder is None:
            write_encoder(folder / "encoder", arguments.layers)
        columns = ["sentences", "imports", "anonymous", "mapped files", "together", "disk", "prepared", "seconds", "cpu"]
        print("MB and seconds\n| objective | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns), flush=True)
        for objective in arguments.objectives:
            results = []
            for size in sorted(arguments.sizes):
                text = folder / f"{size}.txt"
                if not text.exists():
                    write_text(text, arguments.data, size)
                command = [sys.executable, __file__, "--one", objective, str(text), "--encoder", encoder]
                command += ["--removal-sentences", str(arguments.removal_sentences)]
                with tempfile.TemporaryDirectory(dir=folder) as output:
                    done = subprocess.run([*command, "--scratch", output], stdout=subprocess.PIPE, text=True, check=True)
                results.append(json.loads(done.stdout.splitlines()[-1]))
                cells = " | ".join(f"{results[-1][name]:,.0f}" for name in columns)
                print(f"| {objective} | {cells} |", flush=True)
            small, large = results[0], results[-1]
            allowed = FACTOR * small["together"] + large["embeddings"]
            fits = large["together"] <= allowed
            passed = passed and fits
            growth = large["anonymous"] / small["anonymous"]
            print(
                f"{objective}: peak {large['together']:,.0f} MB, allowed {allowed:,.0f} "
                f"({FACTOR} x {small['together']:,.0f} + {large['embeddings']:,.0f} of embeddings): "
                f"{'PASS' if fits else 'FAIL'}; anonymous memory {growth:.2f}x",
                flush=True,
            )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
