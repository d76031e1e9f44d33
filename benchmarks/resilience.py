"""What is lost, mixed or let in when everything goes wrong at once; prints a Markdown table.

    python benchmarks/resilience.py                                 all parts but letters, about twenty minutes on two cores
    python benchmarks/resilience.py kills writers --share 0.1       some of them, a tenth of the counts
    python benchmarks/resilience.py letters --data FOLDER           average precision on lower- and upper-cased text

- texts, configs, checkpoints: generated texts, configs with hostile values, checkpoints with a damaged file. A text gets a
  sound record (offsets, ranges, more words at a higher rate, the same in any company); the others are accepted, or refused
  by a ValueError or OSError; nothing of a checkpoint runs.
- kills: SIGKILL at random moments of every command that writes. After each one the output is that of before, the new one,
  or absent; the last run, with --resume where there is one, ends well with the very output of an undisturbed run.
- writers: two runs with other settings on one output. One ends well, the other with status 2 and who has the output; or one
  after the other. The output is that of one of them, never of both.
- disk: a limit of the kernel on the size of a file while each command writes. Status 1, one sentence, the output as before.
- threads: eight threads ask one model, each the same texts in another order: the answers of one thread, to the bit.
- growth: time of text handling from 10 kB to 10 MB of the worst text that we could think of, for ten times the text.
- clients: hostile clients of handler and page, by benchmarks/hostile_clients.py.

Everything but clients and letters runs on a tiny random model: what is tried is files, processes and text, not the encoder.
Exit code 0: every part held.
"""
# ruff: noqa: E402

from __future__ import annotations

import argparse
import copy
import hashlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # generators and tiny models are those of the tests

from hardkuma import HardKumaModel, load_released
from hardkuma.data import LabelledSentence, split_sentences
from hardkuma.data.readers import _is_heading, _without_marks
from hardkuma.data.tokens import token_batches
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import find_method
from hardkuma.evaluation.corpora import labels_of, read_corpus, texts_of
from hardkuma.evaluation.metrics import Ranking
from hardkuma.scoring_hardkuma import gate_records
from hardkuma.words_hardkuma import find_words, word_classes
from tests import attacks
from tests.conftest import WORDS, build_two_selectors, encoder_config, make_tokenizer
from tests.forks import COMMAND, Fork, ForkServer


@dataclass
class Outcome:
    """A row of the table."""

    part: str
    tried: str
    found: str
    held: bool


# ---- generated input ----------------------------------------------------------------------------------------------------


def attack_texts(number: int, seed: int) -> Outcome:
    model, draw, faults, first = build_two_selectors(), random.Random(seed), 0, ""
    for _ in range(number // 20):
        texts = [attacks.hostile_text(draw) for _ in range(20)]
        for name in model.config.names:
            try:
                attacks.check_records(model, texts, name)
            except Exception as error:
                faults, first = faults + 1, first or f": {type(error).__name__} {str(error)[:80]}"
    return Outcome("texts", f"{number:,} texts x 2 selectors", f"{faults} unsound{first}", not faults)


def attack_configs(number: int, seed: int) -> Outcome:
    values, draw = build_two_selectors().config.to_dict() | {"dtype": "float32"}, random.Random(seed)
    return _count("configs", number, lambda: attacks.check_config(draw, values), "accepted")


def attack_checkpoints(number: int, seed: int) -> Outcome:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        build_two_selectors().save_pretrained(Path(root) / "whole")

        def attempt() -> bool:
            shutil.rmtree(Path(root) / "model", ignore_errors=True)
            folder = Path(shutil.copytree(Path(root) / "whole", Path(root) / "model"))
            return attacks.check_checkpoint(draw, folder, Path(root) / "canary")

        return _count("checkpoints", number, attempt, "answered")


def _count(part: str, number: int, attempt: Callable[[], bool], word: str) -> Outcome:
    accepted, faults, first = 0, 0, ""
    for _ in range(number):
        try:
            accepted += attempt()
        except AssertionError as error:
            faults, first = faults + 1, first or f": {str(error)[:100]}"
    refused = number - accepted - faults
    found = f"{accepted:,} {word}, {refused:,} refused in a sentence, {faults} other errors{first}"
    return Outcome(part, f"{number:,}", found, not faults)


# ---- commands that write ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """A command that writes: its words, what it writes, how it goes on, and words that make another output of it."""

    words: tuple[object, ...]
    output: Path
    result: str = ""  # of a folder the part whose bytes are compared
    resume: tuple[str, ...] = ()
    other: tuple[object, ...] = ()

    def digest(self) -> str:
        """Of the output that is there; "" where there is none."""
        path = self.output / self.result if self.result else self.output
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        names = ("model.safetensors", "config.json", "vectors.npy", "passages.jsonl", "index.json", "results.md")
        found = [path / name for name in names if (path / name).is_file()]
        return hashlib.sha256(b"".join(file.read_bytes() for file in found)).hexdigest() if found else ""


TRAINING = {
    "model.view": "input",
    "train.batch_size": 16,
    "train.max_steps": 40,
    "train.epochs": 100,
    "train.checkpoint_every": 5,
    "train.evaluate_every": 20,
}


def make_writers(root: Path, place: str) -> dict[str, Writer]:
    """Every command that writes, on small inputs; outputs in root/place."""
    out = root / place
    out.mkdir()
    text, model, encoder = root / "text.txt", root / "model", root / "encoder"
    train = ("train", "contrastive", "--encoder", encoder, "--data", f"[{text}]", "--held_out", 32, "--output", out / "run")
    sizes = tuple(word for key, value in TRAINING.items() for word in (f"--{key}", value))
    tune = ("encoder", "simcse", "--encoder", encoder, "--data", f"[{text}]", "--output", out / "tuned")
    pace = ("--batch-size", 16, "--max-steps", 30, "--checkpoint-every", 5, "--evaluate-every", 30, "--max-tokens", 20)
    gates = ("gates", "--quiet", "--model", model, "--file", root / "long.txt", "--output", out / "gates.jsonl")
    adapt = ("adapt", "--quiet", "--model", model, "--data", text, "--output", out / "adapted")
    search = ("search", out / "index", "--model", model, "--quiet", "--build")
    export = ("export", "native", "--quiet", "--model", model, "--data", text, "--output", out / "export")
    onnx = ("export", "onnx", "--quiet", "--model", model, "--data", text, "--no-int8", "--output", out / "onnx")
    return {
        "gates": Writer(gates, out / "gates.jsonl", resume=("--resume",), other=("--rate", 0.9)),
        "train": Writer((*train, *sizes), out / "run", "model", ("--resume",), ("--seed", 5)),
        "encoder": Writer((*tune, *pace), out / "tuned", "model", ("--resume",), ("--seed", 5)),
        "adapt": Writer(adapt, out / "adapted", other=("--data", root / "long.txt")),
        "search": Writer((*search, text), out / "index", other=(root / "long.txt",)),
        "export": Writer(export, out / "export", other=("--sentences", 40)),
        "onnx": Writer(onnx, out / "onnx", "model.onnx", other=("--selector", "entities")),
    }


def prepare(root: Path) -> None:
    """A tiny model, a tiny encoder and made-up sentences."""
    from transformers import AutoModel

    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS[:70], k=draw.randint(5, 14))) for _ in range(600)]
    (root / "text.txt").write_text("\n".join(lines[:172]) + "\n")
    (root / "long.txt").write_text("\n".join(lines * 20) + "\n")
    build_two_selectors().save_pretrained(root / "model")
    AutoModel.from_config(encoder_config("bert")).save_pretrained(root / "encoder")
    make_tokenizer().save_pretrained(root / "encoder")


# `hardkuma` with small blocks, so that there are many; a limit on the size of files is the first argument, 0 for none.
SMALL = f"""
import resource, signal, sys
limit = int(sys.argv.pop(1))
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
import hardkuma.cli.gates as gates
gates.CHUNK_TEXTS = 256
{COMMAND}
"""
IMPORTS = """
import accelerate, datasets, sentence_transformers, torch
from transformers import AutoModel, AutoTokenizer, pipeline
import hardkuma.__main__, hardkuma.train, hardkuma.training.run, hardkuma.training.encoder.run, hardkuma.apps.search
"""


def started(server: ForkServer, writer: Writer, *more: object, limit: int = 0) -> Fork:
    return server.start(SMALL, limit, *writer.words, *more)


def kill_writers(number: int, seed: int) -> Outcome:
    draw, killed, faults = random.Random(seed), 0, []
    with tempfile.TemporaryDirectory() as folder, ForkServer(imports=IMPORTS) as server:
        root = Path(folder)
        prepare(root)
        whole, cut = make_writers(root, "whole"), make_writers(root, "cut")
        wanted, seconds = {}, {}
        for name, writer in whole.items():
            begin = time.monotonic()
            status = started(server, writer).wait()
            seconds[name], wanted[name] = time.monotonic() - begin, writer.digest()
            if status or not wanted[name]:
                faults.append(f"{name} fails undisturbed")
        for attempt in range(4 * number):
            if killed == number:
                break
            name = list(cut)[attempt % len(cut)]
            writer, before = cut[name], cut[name].digest()
            fork, begin = started(server, writer, *writer.resume), time.monotonic()
            if fork.poll(draw.uniform(0.02, 1.0) * seconds[name]) is None:
                fork.send_signal(signal.SIGKILL)
                killed += 1
            status = fork.wait()
            if status == 0:
                seconds[name] = min(seconds[name], time.monotonic() - begin)
            if status not in (0, -signal.SIGKILL):
                faults.append(f"{name} ends with {status} after a kill: {fork.stderr[-200:]}")
            if writer.digest() not in ("", before, wanted[name]):
                faults.append(f"{name} leaves a mixture")
            if status == 0 and draw.random() < 0.5:  # it was done before its moment came: over what is there, or anew
                shutil.rmtree(writer.output) if writer.output.is_dir() else writer.output.unlink()
        for name, writer in cut.items():
            fork = started(server, writer, *writer.resume)
            if fork.wait() or writer.digest() != wanted[name]:
                faults.append(f"{name} is not what an undisturbed run leaves: {fork.stderr[-200:]}")
            left = [path.name for path in writer.output.parent.glob(f".{writer.output.name}.*")]
            if left:
                faults.append(f"{name} leaves {left}")
    found = "; ".join(faults[:3]) or "every output whole, the last as undisturbed to the bit, nothing left over"
    return Outcome("kills", f"{killed} kills of {len(cut)} commands", found, not faults)


def race_writers(number: int, seed: int) -> Outcome:
    draw, faults, refused = random.Random(seed), [], 0
    with tempfile.TemporaryDirectory() as folder, ForkServer(imports=IMPORTS) as server:
        root = Path(folder)
        prepare(root)
        known: dict[str, set[str]] = {}
        for place, more in (("one", False), ("two", True)):
            for name, writer in make_writers(root, place).items():
                started(server, writer, *(writer.other if more else ())).wait()
                known.setdefault(name, set()).add(writer.digest())
        for pair in range(number):
            writers = make_writers(root, f"pair{pair}")
            name = list(writers)[pair % len(writers)]
            writer = writers[name]
            first = started(server, writer)
            time.sleep(draw.uniform(0, 0.5))
            second = started(server, writer, *writer.other)
            ends = sorted((first.wait(), second.wait()))
            said = [fork.stderr for fork in (first, second) if fork.returncode == 2]
            refused += len(said)
            sound = all(f"is being written by process {first.pid}" in text or str(second.pid) in text for text in said)
            if ends not in ([0, 0], [0, 2]) and not (ends == [0, 1] and "another recipe" in first.stderr + second.stderr):
                faults.append(f"{name}: ends {ends}: {(first.stderr + second.stderr)[-200:]}")
            if not sound or writer.digest() not in known[name]:
                faults.append(f"{name}: {'a mixture' if sound else 'nobody is named'}")
    found = "; ".join(faults[:3]) or f"{refused} second runs refused by name, every output that of one run"
    return Outcome("writers", f"{number} pairs of {len(known)} commands", found, not faults)


def fill_disk(number: int, seed: int) -> Outcome:
    draw, faults, full = random.Random(seed), [], 0
    with tempfile.TemporaryDirectory() as folder, ForkServer(imports=IMPORTS) as server:
        root = Path(folder)
        prepare(root)
        writers = make_writers(root, "out")
        before = {}
        for name, writer in writers.items():
            started(server, writer).wait()
            before[name] = writer.digest()
        for attempt in range(number):
            name = list(writers)[attempt % len(writers)]
            writer = writers[name]
            again = ("--overwrite",) if name in ("train", "encoder") else ()
            fork = started(server, writer, *again, limit=draw.randint(1, 60_000))
            status = fork.wait()
            full += status == 1
            if status not in (0, 1) or "Traceback" in fork.stderr:
                faults.append(f"{name} ends with {status}: {fork.stderr[-200:]}")
            if writer.digest() not in (before[name], ""):
                faults.append(f"{name} leaves a mixture")
            if not writer.digest():
                faults.append(f"{name} loses the output before")
        for name, writer in writers.items():
            if started(server, writer, *writer.resume).wait() or writer.digest() != before[name]:
                faults.append(f"{name} does not go on when there is room")
    found = "; ".join(faults[:3]) or f"{full} ended with status 1 and a sentence, every output as before"
    return Outcome("disk", f"{number} runs of {len(writers)} commands", found, not faults)


# ---- threads and growth -------------------------------------------------------------------------------------------------


def ask_in_threads(calls: int, seed: int) -> Outcome:
    model, draw = build_two_selectors(), random.Random(seed)
    texts = [attacks.hostile_text(draw, 120).encode("utf-8", "replace").decode() for _ in range(50)]
    alone = [gate_records(model, [text]) for text in texts]
    faults: list[str] = []

    def ask(number: int) -> None:
        order = random.Random(number)
        for _ in range(calls):
            place = order.randrange(len(texts))
            try:
                if gate_records(model, [texts[place]]) != alone[place]:
                    faults.append("another answer")
            except Exception as error:
                faults.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = f"{len(faults)} errors or other answers" + (f": {faults[0][:80]}" if faults else "")
    return Outcome("threads", f"8 threads x {calls:,} calls", found, not faults)


WORST = {
    "Mr. ": "Mr. ",
    "quotes": '." ',
    "brackets": "( a. ",
    "dots": ". ",
    "initials": "A. B. ",
    "headings": "= ",
    "spaces": "          ",
    "capitals": "New York of ",
    "one word": "a",
    "joined": "a.b'c-",
    "digits": "1,000",
    "marks": "e\u0301",
    "emoji": "\U0001f468\u200d",
    "Thai": "\u0e44\u0e17\u0e22",
    "lines": "a\n",
}


def handle(text: str) -> None:
    """All that text goes through before and after the model: sentences, headings, marks, words, their forms."""
    split_sentences(text)
    _is_heading(text + "x")
    _without_marks(text)
    word_classes(text, find_words(text))


def measure_growth(largest: int, seed: int) -> Outcome:
    """The largest factor of time for ten times the text, over texts that take long enough to be measured."""
    worst, slowest = (0.0, ""), (0.0, "")
    for name, piece in WORST.items():
        times = []
        size = 10_000
        while size <= largest:
            text = (piece * (size // len(piece) + 1))[:size]
            begin = time.process_time()
            handle(text)
            times.append(time.process_time() - begin)
            size *= 10
        if len(times) > 2:
            worst = max(worst, (times[-1] / max(times[-2], 1e-3), name))
        slowest = max(slowest, (times[-1], name))
    found = f"at most x {worst[0]:.1f} in the last step ({worst[1]!r}); slowest {slowest[0]:.1f} s ({slowest[1]!r})"
    return Outcome("growth", f"{len(WORST)} texts, 10 kB to {largest // 1_000_000} MB, each x 10", found, worst[0] < 20)


def attack_servers(seconds: int, seed: int) -> Outcome:
    try:
        from hostile_clients import attack  # type: ignore[import-not-found] # beside this file
    except ImportError:
        return Outcome("clients", "", "benchmarks/hostile_clients.py is not there", True)
    result = attack(seconds, 50)
    shown = ", ".join(
        f"{name}: {found['right']:,} right, {found['wrong']} wrong, {found['MB peak'] - found['MB before']:.0f} MB more"
        for name, found in result.items()
        if isinstance(found, dict)
    )
    return Outcome("clients", f"50 clients, {seconds} s each on handler and page", shown, bool(result["held"]))


PARTS: dict[str, tuple[Callable[[int, int], Outcome], int]] = {
    "texts": (attack_texts, 10_000),
    "configs": (attack_configs, 2_000),
    "checkpoints": (attack_checkpoints, 500),
    "kills": (kill_writers, 100),
    "writers": (race_writers, 20),
    "disk": (fill_disk, 30),
    "threads": (ask_in_threads, 1_000),
    "growth": (measure_growth, 10_000_000),
    "clients": (attack_servers, 60),
}


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
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join([*PARTS, 'letters'])} (default: all but letters)"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the counts (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of letters: wnut17/ and wikigold/")
    parser.add_argument("--sample", type=int, default=400, help="of letters: sentences of a corpus (default: %(default)s)")
    options = parser.parse_args()
    if unknown := set(options.parts) - {*PARTS, "letters"}:
        parser.error(f"unknown part {sorted(unknown)[0]!r}")
    held = True
    if "letters" in options.parts:
        held = measure_letters(options)
    chosen = [part for part in options.parts if part != "letters"] or ([] if options.parts else list(PARTS))
    if chosen:
        print("| part | tried | found | minutes |\n|---|---|---|---:|", flush=True)
    for part in chosen:
        attack, number = PARTS[part]
        begin = time.monotonic()
        outcome = attack(max(1, int(number * options.share)), options.seed)
        minutes = (time.monotonic() - begin) / 60
        held &= outcome.held
        verdict = "" if outcome.held else "**DID NOT HOLD** "
        print(
            f"| {outcome.part} | {outcome.tried} | {verdict}{' '.join(outcome.found.split())} | {minutes:.1f} |", flush=True
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
