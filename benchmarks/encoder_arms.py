"""Which view trains an encoder best? The tables of docs/encoder.md: views and pairs, paired seeds, one budget.

    python benchmarks/encoder_arms.py --data FOLDER                                   all arms; passes over what is kept
    python benchmarks/encoder_arms.py --data FOLDER --seeds 0 --arms SimCSE "crop 10%"
    python benchmarks/encoder_arms.py --table

The encoder is a small BERT that this script pre-trains by masked words, on the text that the arms are trained on: one that
contrast has not seen. The same seed gives every arm the same batches; nothing is chosen, and the last step is measured.
FOLDER holds wikitext2/, registry/ (see recipes/released.yaml), stsb/, sts/ and transfer/. Results are kept in
benchmarks/results/encoder_arms.jsonl; those of other settings, or of another released head for arms that ask gates, are run
again. `--results new.jsonl` runs all anew.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from experiments import KeptResults, half_interval
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling, get_linear_schedule_with_warmup

from hardkuma import load_released
from hardkuma.common.files import write_atomically
from hardkuma.evaluation.encoder_tasks import STS_FILES, evaluate_encoder, measure_similarity, read_scored_pairs, read_tasks
from hardkuma.training.encoder.recipe import EncoderRecipe
from hardkuma.training.encoder.run import EncoderRun
from hardkuma.training.recipe import TextRecipe
from hardkuma.training.texts import load_training_texts

RESULTS = Path(__file__).with_name("results") / "encoder_arms.jsonl"
TEXT: dict[str, Any] = {"min_words": 6, "max_words": 24}
SIZE, HEADS = 128, 2
PRETRAINING: dict[str, Any] = {"steps": 1500, "batch_size": 64, "learning_rate": 1e-3}
SETTINGS: dict[str, Any] = {
    "layers": 2,
    "pretraining": PRETRAINING,
    "max_tokens": 32,
    "batch_size": 64,
    "max_steps": 200,
    "learning_rate": 3e-4,
    "warmup": 0.1,
}
PAIRED = "supervised pairs"
# None is not trained at all. MLM and PAIRS stand for files that are made on the way.
ARMS: Mapping[str, dict[str, Any] | None] = {
    "not trained": None,
    "SimCSE": {"view": {"dropout": None}},
    "crop 10%": {"view": {"cropping": {"rate": 0.1}}},
    "crop 20%": {"view": {"cropping": {"rate": 0.2}}},
    "crop 30%": {"view": {"cropping": {"rate": 0.3}}},
    "deletion 10%": {"view": {"random_deletion": {"rate": 0.1}}},
    "deletion 20%": {"view": {"random_deletion": {"rate": 0.2}}},
    "deletion 30%": {"view": {"random_deletion": {"rate": 0.3}}},
    "delete one word": {"view": {"random_deletion": {"k": 1, "t": 1}}},
    "no dropout, one word": {"view": {"random_deletion": {"k": 1, "t": 1}}, "dropout": False},
    "MLM 15%": {"view": {"mlm_replacement": {"model": "MLM", "rate": 0.15}}},
    "ADD naive": {"view": {"attention_naive": {"t": 8}}},
    "ADD rollout": {"view": {"attention_rollout": {"t": 8}}},
    "ConSERT": {"view": {"feature_cutoff": {"rate": 0.2}, "token_shuffling": None}, "objective": "nt_xent"},
    "lowest gates": {"view": {"lowest_gates": {"t": 8}}},
    "sampled gates": {"view": {"sampled_gates": {"t": 8}}},
    PAIRED: {"data": ["PAIRS"], "columns": ["text", "positive"], "min_words": 4},
}
MEASURES = ("STS-B dev", "STS average", "transfer")
TRANSFER = ("CR", "TREC")  # those that take seconds


@functools.cache
def head_digest() -> str:
    """Of the released gate head: another head is another experiment."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_released()[0].gate_head.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def head_of(arm: str) -> str | None:
    """The head that an arm asks."""
    return head_digest() if "gates" in arm else None


def is_current(entry: Mapping[str, Any]) -> bool:
    """Whether a result is of today's settings, of today's arm and, where that asks gates, of today's head."""
    arm = entry["arm"]
    if entry["settings"] != SETTINGS or arm not in ARMS or entry["options"] != ARMS[arm]:
        return False
    return entry["head"] == head_of(arm)


def sources(data: Path) -> list[str]:
    """The text of pre-training and of every arm but the pairs; no benchmark reads it."""
    return ["bundled", str(data / "wikitext2/valid.txt"), *sorted(map(str, (data / "registry").glob("*.txt")))]


def pretrain(texts: Sequence[str], layers: int, folder: Path) -> None:
    """A BERT of random weights, trained to guess masked words: `mlm`, and `encoder` with mean pooling."""
    if (folder / "encoder" / "modules.json").is_file():
        return
    torch.manual_seed(0)
    tokenizer, steps = load_released()[1], PRETRAINING["steps"]
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=SIZE,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        intermediate_size=4 * SIZE,
        max_position_embeddings=128,
    )
    model = BertForMaskedLM(config).train()
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAINING["learning_rate"], weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 20, steps)
    ids = tokenizer(list(texts), truncation=True, max_length=SETTINGS["max_tokens"])["input_ids"]
    for step in range(steps):
        rows = torch.randint(len(ids), (PRETRAINING["batch_size"],)).tolist()
        batch = collate([{"input_ids": ids[row]} for row in rows])
        mask = (batch["input_ids"] != tokenizer.pad_token_id).long()
        chosen = batch["labels"] != -100
        states = model.bert(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        loss = torch.nn.functional.cross_entropy(model.cls(states[chosen]), batch["labels"][chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == steps - 1:
            print(f"masked words, step {step}: {float(loss):.3f}", file=sys.stderr)
    model.eval().save_pretrained(folder / "mlm")
    tokenizer.save_pretrained(folder / "mlm")
    model.bert.save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    transformer = Transformer(str(folder / "bert"), max_seq_length=128)
    encoder = SentenceTransformer(modules=[transformer, Pooling(SIZE, "mean")], device="cpu")
    encoder.save_pretrained(str(folder / "encoder"), create_model_card=False)


def write_pairs(data: Path, path: Path) -> None:
    """STS-B train pairs of score 4 and more and MRPC's paraphrases, without sentences that the tables read: many are of
    STS 2012 to 2016."""
    columns = STS_FILES["STS-B"][1]
    scored, dev = (read_scored_pairs(data / f"stsb/sts-{part}.csv", columns) for part in ("train", "dev"))
    known = {*read_tasks(data, list(STS_FILES)).texts(), *dev.first, *dev.second}
    rows = [row for *row, score in zip(scored.first, scored.second, scored.scores, strict=True) if score >= 4]
    lines = (data / "transfer/mrpc.train.tsv").read_text(encoding="utf-8").split("\n")
    rows += [line.split("\t")[1:3] for line in lines if line.startswith("1\t")]
    usable = [row for row in rows if not known & set(row)]
    print(f"pairs: {len(usable)} of {len(rows)}; the others are read by the tables", file=sys.stderr)
    write_atomically(path, "text\tpositive\n" + "".join(f"{one}\t{two}\n" for one, two in usable))


def measure(model: SentenceTransformer, data: Path) -> dict[str, Any]:
    """STS-B dev, the mean of seven STS tasks, the mean of some transfer tasks, in points, and every task."""
    encode = functools.partial(model.encode, batch_size=128, show_progress_bar=False)
    dev = measure_similarity(read_scored_pairs(data / "stsb/sts-dev.csv", STS_FILES["STS-B"][1]), encode)
    found = evaluate_encoder(encode, read_tasks(data, [*STS_FILES, *TRANSFER]))
    tasks = {name: value.together for name, value in found.similarity.items()}
    values = (dev.together, statistics.mean(tasks.values()), statistics.mean(found.accuracy.values()))
    points = {name: round(100 * value, 2) for name, value in zip(MEASURES, values, strict=True)}
    return {**points, "tasks": {name: round(100 * value, 2) for name, value in {**tasks, **found.accuracy}.items()}}


def run(arm: str, seed: int, data: Path, output: Path, keep: bool) -> dict[str, Any]:
    """Train and measure one arm with one seed."""
    options, start = ARMS[arm], output / f"start-{SETTINGS['layers']}"
    entry = {"arm": arm, "seed": seed, "options": options, "settings": SETTINGS, "head": head_of(arm)}
    if options is None:
        return {**entry, **measure(SentenceTransformer(str(start / "encoder"), device="cpu"), data)}
    places = {"MLM": str(start / "mlm"), "PAIRS": str(output / "pairs.tsv")}
    values = {"data": sources(data), **TEXT, **{key: value for key, value in SETTINGS.items() if key in RECIPE_KEYS}}
    values |= _with_places(options, places)
    folder = output / f"{arm.replace(' ', '_').replace('%', '').replace(',', '')}-{seed}"
    every = {"evaluate_every": 10_000, "checkpoint_every": 10_000}
    recipe = EncoderRecipe(encoder=str(start / "encoder"), seed=seed, output=str(folder), **every, **values)
    trained = EncoderRun(recipe, quiet=True, overwrite=True)
    if not trained.run():
        raise KeyboardInterrupt
    if keep:
        trained.complete()
    else:
        shutil.rmtree(folder)
    return {**entry, **measure(trained.model.eval(), data)}


RECIPE_KEYS = ("max_tokens", "batch_size", "max_steps", "learning_rate", "warmup")


def _with_places(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_places(item, places) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_places(item, places) for item in value]
    return places.get(value, value) if isinstance(value, str) else value


def table(known: Sequence[Mapping[str, Any]]) -> str:
    """Means over seeds, each seed's STS average, and the paired difference to SimCSE with its 95% interval."""
    head = f"| | seeds | {' | '.join(MEASURES)} | each seed | STS average - SimCSE |"
    lines = [head, "|---|---:|---:|---:|---:|---|---:|"] if known else []
    by_arm = {arm: {entry["seed"]: entry for entry in known if entry["arm"] == arm} for arm in ARMS}
    for arm, entries in by_arm.items():
        if not entries:
            continue
        means = " | ".join(f"{statistics.mean(entry[name] for entry in entries.values()):.2f}" for name in MEASURES)
        each = ", ".join(f"{entries[seed]['STS average']:.2f}" for seed in sorted(entries))
        both = [seed for seed in entries if seed in by_arm["SimCSE"] and arm != "SimCSE"]
        lines.append(
            f"| {arm} | {len(entries)} | {means} | {each} | "
            f"{_interval([entries[seed]['STS average'] - by_arm['SimCSE'][seed]['STS average'] for seed in both])} |"
        )
    return "\n".join(lines)


def _interval(values: Sequence[float]) -> str:
    """Mean and, of two values or more, the 95% interval by Student's t."""
    if not values:
        return ""
    mean = statistics.mean(values)
    if len(values) == 1:
        return f"{mean:+.2f}"
    half = half_interval(values)
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("runs/encoder_arms"))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), metavar="ARM", default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--keep-models", nargs="*", default=["SimCSE"], metavar="ARM", help="arms whose models stay")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print what is known and stop")
    options = parser.parse_args()
    results = KeptResults(options.results, ["arm", "seed"])
    if not options.table:
        if options.data is None:
            parser.error("--data FOLDER is needed to run arms")
        texts = load_training_texts(TextRecipe(data=sources(options.data), **TEXT))
        pretrain(texts, SETTINGS["layers"], options.output / f"start-{SETTINGS['layers']}")
        write_pairs(options.data, options.output / "pairs.tsv")
        for seed in options.seeds:
            for arm in options.arms:
                if any((entry["arm"], entry["seed"]) == (arm, seed) and is_current(entry) for entry in results.entries()):
                    continue
                entry = run(arm, seed, options.data, options.output, arm in options.keep_models)
                results.put(entry)
                print(arm, seed, {name: entry[name] for name in MEASURES}, file=sys.stderr)
    print(table([entry for entry in results.entries() if is_current(entry)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
