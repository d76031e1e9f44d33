"""Repeat any row of docs/experiments.md: train, then measure faithfulness and agreement with gold entity words.

    python benchmarks/experiments.py --data FOLDER --rows default contrastive --seeds 0 1 2
    python benchmarks/experiments.py --data FOLDER --all
    python benchmarks/experiments.py --data FOLDER --list
    python benchmarks/experiments.py --table

FOLDER holds wnut17/, wikigold/, ud-ewt/ and, for rows that train on it, wikitext2/. Results are kept in
benchmarks/results/experiments.jsonl: a row that is there with the same recipe and changes is not run again
(`--results new.jsonl` runs everything anew). Models stay in runs/experiments/ROW-SEED.
docs/experiments.md says which choices were made on what.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from hardkuma import features_hardkuma
from hardkuma.batch_hardkuma import content_mask
from hardkuma.common.files import KeptResults
from hardkuma.configuration_hardkuma import ENTITIES, MEANING
from hardkuma.data import LabelledSentence
from hardkuma.evaluation.baselines.encoder import SentenceEncoder, Tokens
from hardkuma.evaluation.baselines.gates import gate_scores
from hardkuma.evaluation.corpora import labels_of, read_corpus, texts_of
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.evaluation.metrics import Ranking, f1_from_counts, f1_of_selection
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.recipe import Recipe, load_recipe, read_values
from hardkuma.training.subsets import Job, SubsetEncoder, ValueStore

OUTPUT = Path("runs/experiments")
RESULTS = Path(__file__).with_name("results") / "experiments.jsonl"
CORPORA = {"WNUT17 dev": "wnut17/dev.conll", "WNUT17 test": "wnut17/test.conll", "wikigold": "wikigold/wikigold.conll"}
# Sentences of which words are removed: two corpora to choose by, two to report.
FAITHFULNESS = {**CORPORA, "UD-EWT dev": "ud-ewt/dev.conllu"}
CHOSEN_BY, REPORTED = ("WNUT17 dev", "UD-EWT dev"), ("WNUT17 test", "wikigold")
SAMPLE, FAITHFULNESS_SAMPLE = 800, 100
MEASURES = ("sufficiency", "comprehensiveness")
# The columns of the two tables, by their titles: of `meaning`, and of `entities`, or of the one selector that there is.
TABLES = {
    "sufficiency / comprehensiveness of `meaning`": [f"{part} {name}" for part in ("dev", "test") for name in MEASURES],
    "average precision of `entities`": [f"{name}{view}" for name in CORPORA for view in ("", ", surface")],
}

# One selector by the contrastive objective, cheap: the view `input` trains the gate head alone, on 1,600 sentences.
PROTOTYPE: dict[str, Any] = {"max_sentences": 1600, "max_steps": 75, "epochs": 4}
INPUT: dict[str, Any] = {
    "recipe": "contrastive",
    "model.view": "input",
    "model.selector_inputs": ["state", "input"],
    "model.selector_layer": -1,
    **PROTOTYPE,
}
# Re-encoding rationales, with gradients through the encoder, costs many times as much: rows with it, and the one that is
# compared with them, have fewer steps and smaller batches.
CONTRASTIVE: dict[str, Any] = {"recipe": "contrastive", **PROTOTYPE, "max_steps": 40, "batch_size": 32}


def _of_meaning(name: str, value: Any, entities: Any) -> dict[str, Any]:
    return {f"model.{name}": {"meaning": value, "entities": entities}}


ROWS: dict[str, dict[str, Any]] = {
    # Both selectors.
    "default": {},
    "released": {"recipe": "released"},
    # What `meaning` reads and how it is trained.
    "released, without words alone": {
        "recipe": "released",
        **_of_meaning("selector_inputs", ["state", "pooled"], ["state"]),
    },
    "default, without words alone": _of_meaning("selector_inputs", ["state", "pooled"], ["state"]),
    "default, measures alone": _of_meaning("selector_inputs", ["pooled", "alone"], ["state"]),
    "default, states alone": _of_meaning("selector_inputs", ["state"], ["state"]),
    "default, state x anchor too": _of_meaning("selector_inputs", ["state", "anchor", "pooled", "alone"], ["state"]),
    "default, leave-one-out too": _of_meaning("selector_inputs", ["state", "pooled", "removal", "alone"], ["state"]),
    "default, last layer": _of_meaning("selector_layer", -1, 0.66),
    "default, three layers": _of_meaning("selector_layer", [0.0, 0.5, 1.0], 0.66),
    "default, gates of tokens": {"model.selector_unit": "token", "model.meaning_weight": 0.0},
    **{
        f"released text, {n:,} sentences": {"recipe": "released", "max_sentences": n}
        for n in (1000, 2000, 4000, 8000, 16000)
    },
    # What `entities` is made of.
    "default, form alone": {"model.meaning_weight": 0.0},
    "default, entities of the last layer": _of_meaning("selector_layer", 0.66, -1),
    "default, 4 passes of form": {"entities_epochs": 4},
    # The contrastive objective.
    "as-written": {"recipe": "as-written", **PROTOTYPE},
    "as-written, neighbours": {"recipe": "as-written", "batches": "neighbours", **PROTOTYPE},
    "contrastive": CONTRASTIVE,
    "contrastive, random batches": {**CONTRASTIVE, "batches": "random"},
    "contrastive, view hidden": {**CONTRASTIVE, "model.view": "hidden"},
    "input": INPUT,
    "input, random batches": {**INPUT, "batches": "random"},
    "input, temperature .05": {**INPUT, "model.temperature": 0.05},
    "input, temperature 1": {**INPUT, "model.temperature": 1.0},
    "input, lambda_cmp 0": {**INPUT, "model.lambda_cmp": 0.0},
    "input, lambda_tv .1": {**INPUT, "model.lambda_tv": 0.1},
    "input, rate .1": {**INPUT, "model.target_rate": 0.1},
    "input, rate .3": {**INPUT, "model.target_rate": 0.3},
    "input, NT-Xent": {**INPUT, "model.contrastive": "nt_xent"},
    "input, relaxed": {**INPUT, "model.sampler": "relaxed"},
    "input, straight-through": {**INPUT, "model.sampler": "straight_through"},
    "input, attention features": {**INPUT, "model.selector_inputs": ["state", "input", "attention"]},
    "input, low-pass": {**INPUT, "model.frequency_filter": "low", "model.frequency_high": 0.5},
    "input, high-pass": {**INPUT, "model.frequency_filter": "high", "model.frequency_low": 0.5},
    "input, band-pass": {
        **INPUT,
        "model.frequency_filter": "band",
        "model.frequency_low": 0.25,
        "model.frequency_high": 0.75,
    },
}


def overrides_of(row: str, seed: int, data: Path, output: Path) -> tuple[str, dict[str, Any]]:
    """The recipe of a row by name, and what it changes."""
    changes = dict(ROWS[row])
    recipe = changes.pop("recipe", "default")
    sources = changes.get("data", load_recipe(recipe).data)
    changes["data"] = [source if source == "bundled" else str(data / Path(source)) for source in sources]
    return recipe, {**changes, "seed": seed, "output": str(output)}


# A frozen encoder says the same of the same tokens in every row, and gates often select the same words: it is asked once a
# process. By the encoder's fingerprint: embeddings of subsets of tokens, and outputs for batches of whole sentences.
_embeddings: dict[str | None, dict[tuple[bytes, bytes], Tensor]] = {}
_outputs: dict[str | None, dict[tuple[Any, ...], Any]] = {}

Subset = tuple[np.ndarray, np.ndarray]  # token ids, and which of them are kept


# Of subsets that gates learn from: how much they keep, and how much is left without them.
_values: dict[str | None, dict[tuple[bytes, bytes, tuple[int, ...]], Tensor]] = {}


def embed_subsets(model: HardKumaModel, rows: Sequence[Subset]) -> Tensor:
    """Embeddings, (rows, dim); removed tokens are left out instead of masked, which is the same up to rounding."""
    known = _embeddings.setdefault(model.config.encoder_fingerprint, {})
    keys = [(ids.tobytes(), kept.tobytes()) for ids, kept in rows]
    missing = {key: row for key, row in zip(keys, rows, strict=True) if key not in known}
    if missing:
        known.update(zip(missing, SubsetEncoder(model).embed(list(missing.values())), strict=True))
    return torch.stack([known[key] for key in keys])


class FrozenEncoder(SentenceEncoder):
    """The encoder of a model with gates."""

    def embed(
        self,
        tokens: Sequence[Tokens],
        kept: Sequence[Sequence[bool]] | None = None,
        progress: bool = False,
        label: str = "",
    ) -> Tensor:
        """As of every `SentenceEncoder`."""
        assert self.model is not None, "made with from_model"
        chosen = [[True] * len(item) for item in tokens] if kept is None else kept
        pairs = zip(tokens, chosen, strict=True)
        return embed_subsets(
            self.model, [(np.array(item.ids), np.array(row) | ~np.array(item.content)) for item, row in pairs]
        )


@contextmanager
def remembered_subsets() -> Iterator[None]:
    """Inside, a run asks the encoder once what a subset is: those that it learns from, and, by
    `HardKumaModel.encode_subsets`, those by which it looks how good its gates are."""

    def encode_subsets(model: HardKumaModel, input_ids: Tensor, attention_mask: Tensor, kept: Tensor) -> Tensor:
        content = content_mask(model.config, input_ids, attention_mask, None)
        rows: list[Subset] = []
        for ids, mask, free, sets in zip(input_ids, attention_mask.bool(), content, kept.bool(), strict=True):
            rows += [(ids[mask].numpy(), (row | ~free)[mask].numpy()) for row in sets]
        return embed_subsets(model, rows).unflatten(0, kept.shape[:2])

    measure_all = ValueStore.measure

    def measure(store: ValueStore, anchors: Tensor, jobs: Sequence[Job]) -> Tensor | None:
        known = _values.setdefault(store.fingerprint, {})
        tokens = [store.sentences.tokens[number] for number, _ in jobs]
        keys = [(item.ids.tobytes(), item.words.tobytes(), tuple(job[1])) for item, job in zip(tokens, jobs, strict=True)]
        missing = [job for key, job in zip(keys, jobs, strict=True) if key not in known]
        # What is kept on disk is found by all jobs of a run.
        some = missing if len(missing) < len(jobs) / 2 else jobs
        values = measure_all(store, anchors, some)
        if values is None:
            return None
        new = keys if some is jobs else [key for key in keys if key not in known]
        known.update(zip(new, values, strict=True))
        return torch.stack([known[key] for key in keys])

    with patch.object(HardKumaModel, "encode_subsets", encode_subsets), patch.object(ValueStore, "measure", measure):
        yield


@contextmanager
def remembered_states(model: HardKumaModel) -> Iterator[None]:
    """Inside, gates read the states of a batch that was encoded before; not where they tap its attention."""
    known, run = _outputs.setdefault(model.config.encoder_fingerprint, {}), features_hardkuma.run_encoder

    def run_once(
        encoder: Any, ids: Tensor, mask: Tensor, types: Any = None, tap: Any = None, *rest: Any, **wanted: bool
    ) -> Any:
        if tap is not None:
            return run(encoder, ids, mask, types, tap, *rest, **wanted)
        # Where gates read lower layers alone, the encoder is one of fewer layers.
        key = (ids.shape, ids.numpy().tobytes(), mask.numpy().tobytes(), encoder.config.num_hidden_layers, *wanted)
        if key not in known:
            known[key] = run(encoder, ids, mask, types, tap, *rest, **wanted)
        return known[key]

    with patch.object(features_hardkuma, "run_encoder", run_once):
        yield


@functools.cache
def sample_of(path: Path) -> list[LabelledSentence]:
    """The benchmark's sample of a corpus."""
    return read_corpus(path).sample(SAMPLE, 0)


def measure(model: HardKumaModel, data: Path) -> dict[str, dict[str, float]]:
    """Against gold entity words on the benchmark's sample, with and without the surface view; and what the words of
    `meaning` keep and take away."""
    numbers: dict[str, dict[str, float]] = {}
    encoder, config = FrozenEncoder.from_model(model), model.config
    entities, meaning = (config.names[config.find_selector(default=name)] for name in (ENTITIES, MEANING))
    for name, path in CORPORA.items():
        sentences = sample_of(data / path)
        labels = labels_of(sentences)
        texts, words = texts_of(sentences)
        for surface in (False, True):
            scored = gate_scores(encoder, texts, words, use_surface=surface, selector=entities)
            selected = [[int(value) for value in item.selected or []] for item in scored]
            curve = Ranking(labels, [list(item.scores) for item in scored]).curve()
            numbers[f"{name}, surface" if surface else name] = {
                "ap": curve.average_precision(),
                "f1": f1_from_counts(f1_of_selection(labels, selected).sum(0)),
                "best_f1": curve.best_f1(),
            }
    for name, path in FAITHFULNESS.items():
        texts, words = texts_of(sample_of(data / path)[:FAITHFULNESS_SAMPLE])
        found = faithfulness(encoder, gate_scores(encoder, texts, words, selector=meaning))
        numbers[f"{name}, faithfulness"] = {
            "sufficiency": float(np.nanmean(found.areas(found.sufficiency))),
            "comprehensiveness": float(np.nanmean(found.areas(found.comprehensiveness))),
        }
    return numbers


def shown(numbers: dict[str, dict[str, float]]) -> dict[str, float]:
    """What the tables show of all that was measured, by column."""
    columns = {}
    for part, corpora in (("dev", CHOSEN_BY), ("test", REPORTED)):
        for name in MEASURES:
            columns[f"{part} {name}"] = statistics.mean(numbers[f"{corpus}, faithfulness"][name] for corpus in corpora)
    return columns | {name: numbers[name]["ap"] for name in TABLES["average precision of `entities`"]}


def changes_of(row: str) -> dict[str, Any]:
    """What a row changes, as it is kept with its results."""
    return {key: value for key, value in ROWS[row].items() if key != "data"}


@functools.cache
def recipe_digest(name: str) -> str:
    """Of the settings in a recipe's file; comments and the order of lines do not count.

    >>> recipe_digest("default") == recipe_digest("default"), recipe_digest("default") == recipe_digest("released")
    (True, False)
    """
    return hashlib.sha256(json.dumps(read_values(name, Recipe), sort_keys=True).encode()).hexdigest()[:12]


def digest_of(row: str) -> str:
    """Of the recipe that a row changes."""
    return recipe_digest(ROWS[row].get("recipe", "default"))


def is_current(entry: dict[str, Any]) -> bool:
    """Whether a result is of today's recipe, and of what its row changes in it today."""
    row = entry["row"]
    return row in ROWS and entry["changes"] == changes_of(row) and entry["recipe"] == digest_of(row)


def hand_on(source: Path, target: Path) -> None:
    """Put a folder, if there is one, in the place of another, by links to its files."""
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, copy_function=os.link)


def run(row: str, seed: int, data: Path) -> dict[str, Any]:
    """Train and measure one row with one seed."""
    from hardkuma.training.trainer import Trainer

    folder = OUTPUT / f"{row.replace(', ', '-').replace(' ', '_')}-{seed}"
    recipe, changes = overrides_of(row, seed, data, folder)
    started = time.time()
    # What the encoder says of a text is the same for many rows: the store goes from one to the next, which rebuilds it
    # if its layers are others. What subsets of words are worth goes on even then. (Some of the sentences are another text
    # with every seed.)
    sentences = changes.get("max_sentences")
    text = json.dumps([changes["data"], sentences, sentences and seed])
    store = OUTPUT / "stores" / hashlib.sha256(text.encode()).hexdigest()[:12]
    shutil.rmtree(folder, ignore_errors=True)
    hand_on(store, folder / "store")
    trainer = Trainer(load_recipe(recipe, changes))
    hand_on(store / "removal", folder / "store" / "removal")
    with remembered_subsets():
        if not trainer.run():
            sys.exit(f"{row}, seed {seed}, was interrupted: nothing is kept of it.")
        hand_on(folder / "store", store)
        model = HardKumaModel.from_pretrained(trainer.complete()).eval()
    seconds = time.time() - started
    evaluations = [entry for entry in trainer.progress.history if entry.get("phase") == "saved"]
    with remembered_states(model):
        numbers = measure(model, data)
    return {
        "row": row,
        "seed": seed,
        "changes": changes_of(row),
        "recipe": digest_of(row),
        "seconds": round(seconds),
        "label_free": evaluations[-1]["score"] if evaluations else None,
        "columns": shown(numbers),
        "numbers": numbers,
    }


def table(known: list[dict[str, Any]]) -> str:
    """All results so far, mean and spread over seeds: two tables, of faithfulness and of entity words."""
    lines = []
    for title, columns in TABLES.items():
        lines += [f"{title}:", "", f"| row | seeds | {' | '.join(columns)} |", "|---|---:|" + "---:|" * len(columns)]
        for row in ROWS:
            results = [entry["columns"] for entry in known if entry["row"] == row]
            if results:
                cells = [_cell([result[column] for result in results]) for column in columns]
                lines.append(f"| {row} | {len(results)} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.3f}".lstrip("0")
    return mean if len(values) == 1 else f"{mean} ± {(max(values) - min(values)) / 2:.3f}".replace("± 0", "± ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", default=["default"])
    parser.add_argument("--all", action="store_true", help="run every row")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--list", action="store_true", help="show the rows and what they change")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print what is known and stop")
    options = parser.parse_args()
    if options.list:
        for name, changes in ROWS.items():
            print(f"{name}: {changes}")
        return 0
    results = KeptResults(options.results, ["row", "seed"])
    if not options.table:
        if options.data is None:
            parser.error("--data FOLDER is needed to run rows")
        for seed in options.seeds:
            for row in ROWS if options.all else options.rows:
                if any((entry["row"], entry["seed"]) == (row, seed) and is_current(entry) for entry in results.entries()):
                    continue
                entry = run(row, seed, options.data)
                results.put(entry)
                columns = {name: round(value, 3) for name, value in entry["columns"].items()}
                print(f"{row}, seed {seed}, {entry['seconds']} s: {columns}", flush=True)
    print(table([entry for entry in results.entries() if is_current(entry)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
