"""What survives: a run that is killed, and text without the capitals that `entities` learned from.

    python benchmarks/resilience.py training --kills 20             kill training at random moments, resume each time
    python benchmarks/resilience.py gates --data FOLDER             kill `hardkuma gates --output` half-way, resume
    python benchmarks/resilience.py letters --data FOLDER           average precision on lower- and upper-cased text

- training: the contrastive recipe (the one that writes checkpoints) is killed with SIGKILL: during imports, while the store
  is written, between and within steps and checkpoints. Exit code 0: every resume worked, and the weights equal those of an
  undisturbed run to the bit.
- gates: exit code 0 means that the resumed file equals an undisturbed one to the byte, for every backend.
- letters: WNUT17 dev and wikigold as they stand, lower-cased and upper-cased, and two files of ours (tests/data):
  biomedical text, and names that are written in lower case. "Form alone" is `entities` without its backoff to `meaning`;
  "adapted" estimates the log-odds of word forms anew on the corpus' own unlabelled text (`hardkuma adapt`).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from hardkuma import HardKumaModel, load_released
from hardkuma.data import LabelledSentence, bundled_texts, read_texts
from hardkuma.data.tokens import token_batches
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import find_method
from hardkuma.evaluation.corpora import labels_of, read_corpus, texts_of
from hardkuma.evaluation.metrics import Ranking

ROOT = Path(__file__).resolve().parents[1]

# ---- killed training ----------------------------------------------------------------------------------------------------


def training_command(output: Path, steps: int) -> list[str]:
    settings = {
        "model.view": "input",
        "max_sentences": 800,
        "train.epochs": 100_000,
        "train.max_steps": steps,
        "train.evaluate_every": 200,
        "train.checkpoint_every": 20,
        "train.log_every": 20,
        "output": output,
    }
    words = [sys.executable, str(ROOT / "train.py"), "contrastive", "--resume"]
    return words + [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def kill_when(words: list[str], due: Callable[[], bool]) -> bool:
    """Start a command and kill it with its children as soon as it is due; False where it ended by itself."""
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if due():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.01)
    return False


def last_step(output: Path) -> int:
    return max((int(path.name.removeprefix("step-")) for path in output.glob("checkpoints/step-*[0-9]")), default=0)


def kill_training(options: argparse.Namespace) -> bool:
    """Every third kill falls into the start; the others a moment after a checkpoint, further on each time."""
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        subprocess.run(training_command(whole, options.steps), check=True, capture_output=True)
        for kill in range(options.kills):
            target = options.steps * (kill + 1) // (options.kills + 2)
            end = time.monotonic() + (draw.uniform(0.2, 8) if kill % 3 == 2 else 1e9)
            moment = draw.uniform(0, 0.3)

            def due(target: int = target, end: float = end, moment: float = moment) -> bool:
                if last_step(cut) >= target:
                    time.sleep(moment)
                    return True
                return time.monotonic() > end

            if not kill_when(training_command(cut, options.steps), due):
                print(f"the run ended before kill {kill + 1}; use more --steps")
                return False
            print(f"kill {kill + 1:2d}, last checkpoint at step {last_step(cut)}", flush=True)
        subprocess.run(training_command(cut, options.steps), check=True, capture_output=True)
        one, other = (path / "model" / "model.safetensors" for path in (whole, cut))
        same = one.read_bytes() == other.read_bytes()
    print(f"killed {options.kills} times: the weights {'are the same to the bit' if same else 'DIFFER'}")
    return same


# ---- a killed command ---------------------------------------------------------------------------------------------------


def written(output: Path) -> int:
    """Bytes of an unfinished output, and of what is kept beside it."""
    size = 0
    for path in [found for file in output.parent.glob(f"{output.name}*") for found in (file, *file.rglob("*"))]:
        with contextlib.suppress(FileNotFoundError):  # it has got its final name meanwhile
            size += path.stat().st_size if path.is_file() else 0
    return size


def kill_gates(options: argparse.Namespace) -> bool:
    texts = read_texts(options.data / "wikitext2" / "valid.txt") if options.data else bundled_texts()
    same = True
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.txt"
        file.write_text("".join(f"{text}\n" for text in islice(cycle(texts), options.sentences)), encoding="utf-8")
        for backend in options.backends:
            whole, cut = (Path(folder) / f"{name}.{backend}.jsonl" for name in ("whole", "cut"))
            words = [sys.executable, "-m", "hardkuma", "gates", "--quiet", "--file", str(file), "--backend", backend]
            words += ["--output"]
            subprocess.run([*words, str(whole)], check=True)
            half = whole.stat().st_size // 2
            killed = kill_when([*words, str(cut), "--resume"], lambda cut=cut, half=half: written(cut) > half)
            subprocess.run([*words, str(cut), "--resume"], check=True)
            equal = whole.read_bytes() == cut.read_bytes()
            verdict = "is the same to the byte" if equal else "DIFFERS"
            print(f"{backend}: {'killed half-way' if killed else 'NOT KILLED: use more --sentences'}, the file {verdict}")
            same &= killed and equal
    return same


# ---- letters ------------------------------------------------------------------------------------------------------------

CORPORA = {"WNUT17 dev": "wnut17/dev.conll", "wikigold": "wikigold/wikigold.conll"}
OURS = {"biomedical (ours)": "biomedical.conll", "silent capitals (ours)": "silent_capitals.conll"}
METHODS = {"form alone": "gates_form", "entities": "gates", "with word forms": "gates_surface"}
CHANGES: dict[str, Callable[[str], str]] = {"as it stands": str, "lower-cased": str.lower, "upper-cased": str.upper}


def average_precision(model: HardKumaModel, sentences: list[LabelledSentence], method: str) -> float:
    scores = find_method(method).scores(SentenceEncoder.from_model(model), *texts_of(sentences))
    return Ranking(labels_of(sentences), [list(item.scores) for item in scores]).curve().average_precision()


def adapt(model: HardKumaModel, texts: list[str]) -> HardKumaModel:
    """A copy whose log-odds of word forms come from these texts."""
    other = copy.deepcopy(model)
    other.tokenizer = model.tokenizer
    length = model.config.max_seq_length or min(model.tokenizer.model_max_length, 512)
    other.adapt_surface(token_batches(model.tokenizer, texts, length, shapes=True))
    return other


def measure_letters(options: argparse.Namespace) -> bool:
    if options.data is None:
        raise SystemExit("letters needs --data FOLDER with wnut17/ and wikigold/")
    model = load_released()[0]
    files = {name: options.data / path for name, path in CORPORA.items()}
    files |= {name: ROOT / "tests" / "data" / path for name, path in OURS.items()}
    print(f"| text | {' | '.join(METHODS)} | adapted |\n|---|{'---:|' * (len(METHODS) + 1)}")
    for name, path in files.items():
        sample = read_corpus(path).sample(options.sample, 0)
        for how, change in CHANGES.items():
            pairs = [(sentence, change(sentence.text)) for sentence in sample]
            # The few whose offsets would move (ß) are left out.
            sentences = [replace(sentence, text=text) for sentence, text in pairs if len(text) == len(sentence.text)]
            values = [average_precision(model, sentences, method) for method in METHODS.values()]
            values.append(average_precision(adapt(model, texts_of(sentences)[0]), sentences, METHODS["with word forms"]))
            print(f"| {name}, {how} | " + " | ".join(f"{value:.3f}" for value in values) + " |", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    training, gates, letters = (parts.add_parser(name) for name in ("training", "gates", "letters"))
    for part, run in ((training, kill_training), (gates, kill_gates), (letters, measure_letters)):
        part.set_defaults(run=run)
        part.add_argument("--data", type=Path, metavar="FOLDER", help="corpora (default: the bundled one)")
    training.add_argument("--kills", type=int, default=20, help="default: %(default)s")
    training.add_argument("--steps", type=int, default=1500, help="of the run (default: %(default)s)")
    training.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    gates.add_argument("--sentences", type=int, default=20_000, help="default: %(default)s")
    gates.add_argument("--backends", nargs="+", choices=("torch", "onnx"), default=["torch", "onnx"])
    letters.add_argument("--sample", type=int, default=400, help="sentences of a corpus (default: %(default)s)")
    options = parser.parse_args()
    return 0 if options.run(options) else 1


if __name__ == "__main__":
    sys.exit(main())
