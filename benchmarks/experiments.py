"""Repeat what docs/experiments.md says: train a row, then measure faithfulness and agreement with gold entity words.

    python benchmarks/experiments.py --data FOLDER --rows default "default, last layer" --seeds 0 1 2
    python benchmarks/experiments.py --data FOLDER --all              every row; --list shows what each changes
    python benchmarks/experiments.py --table                          the tables, from what has been run
    python benchmarks/experiments.py --data FOLDER --encoders mine=runs/mine/model other=ORG/NAME
    python benchmarks/experiments.py --data FOLDER --parts [NAME ...]  selectors that divide the words: parts, dual, ...
    python benchmarks/experiments.py --texts [FILE ...]               `meaning` beside other methods, on any text

FOLDER holds wnut17/, wikigold/, ud-ewt/ and, for rows that train on it, wikitext2/ and transfer/. Results are kept in
benchmarks/results/experiments.jsonl, each with the revision of the code that made it; what is there is not run again
(`--results new.jsonl` runs everything anew). Models stay in runs/experiments/ROW-SEED.

--encoders: the default recipe on each encoder; what words of `meaning`, of largest norm and random words keep and take
away. --parts: mutual information with gold parts of speech, faithfulness, and stability over seeds.
--texts: without files, two texts that come with every installation and that no recipe reads: Python's
reference manual and what installed packages say of themselves. 100 sentences each; differences are paired by sentence,
with 95% intervals.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import metadata
from itertools import combinations
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from hardkuma import HardKumaModel, load_released
from hardkuma.common.files import write_atomically
from hardkuma.common.packages import require, versions
from hardkuma.configuration_hardkuma import MEANING
from hardkuma.data import LabelledSentence, read_texts, split_sentences
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import METHODS
from hardkuma.evaluation.baselines.words import WordScores, text_words
from hardkuma.evaluation.corpora import labels_of, read_corpus, texts_of
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.evaluation.metrics import Ranking
from hardkuma.evaluation.parts import CONTENT_TAGS, Parts, measure_parts, normalised_mutual_information, part_selectors
from hardkuma.evaluation.statistics import bootstrap, spearman, weighted_mean
from hardkuma.scoring_hardkuma import score_selectors
from hardkuma.training.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = Path("runs/experiments")
RESULTS = Path(__file__).with_name("results") / "experiments.jsonl"
SAMPLE, REMOVED = 800, 100  # sentences of a corpus: for average precision, and of which words are removed
CORPORA = {"WNUT17 dev": "wnut17/dev.conll", "WNUT17 test": "wnut17/test.conll", "wikigold": "wikigold/wikigold.conll"}
UD_EWT = "ud-ewt/dev.conllu"
# Corpora to choose by, and corpora to report.
PARTS = {"dev": (CORPORA["WNUT17 dev"], UD_EWT), "test": (CORPORA["WNUT17 test"], CORPORA["wikigold"])}
MEASURES = ("sufficiency", "comprehensiveness")
FAITHFULNESS_COLUMNS = [f"{part} {name}" for part in PARTS for name in MEASURES]
PRECISION_COLUMNS = [f"{name}{view}" for name in CORPORA for view in ("", ", surface")]


class KeptResults:
    """Results of long experiments in a file of JSON lines. A result takes the place of the one with the same keys.

    The file is read anew before it is written, so that several runs beside each other may share it.

    Args:
        path: the file; it need not exist.
        keys: fields whose values together name a result.
    """

    def __init__(self, path: Path, keys: Sequence[str]):
        self.path, self.keys = path, list(keys)

    def entries(self) -> list[dict[str, Any]]:
        """All results, in the order of their keys."""
        if not self.path.is_file():
            return []
        found = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                entry = json.loads(line)
                missing = [key for key in self.keys if key not in entry]
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number}, is not a JSON object: {error}; mend or delete it."
                ) from error
            if missing:
                raise ValueError(f"{self.path}, line {number}, has no {', '.join(missing)}; mend or delete it.")
            found.append(entry)
        return found

    def put(self, entry: dict[str, Any]) -> None:
        """Keep a result."""
        others = [known for known in self.entries() if self._key(known) != self._key(entry)]
        ordered = sorted([*others, entry], key=lambda known: [str(part) for part in self._key(known)])
        write_atomically(self.path, "".join(json.dumps(known) + "\n" for known in ordered))

    def _key(self, entry: dict[str, Any]) -> list[Any]:
        return [entry[key] for key in self.keys]


# ---- rows ---------------------------------------------------------------------------------------------------------------

ROWS: dict[str, dict[str, Any]] = {
    "default": {},
    # What `meaning` reads.
    "default, without isolated words": {"meaning.reads": ["state", "pool_share"]},
    "default, without states": {"meaning.reads": ["pool_share", "isolated"]},
    "default, states alone": {"meaning.reads": ["state"]},
    "default, state x anchor too": {"meaning.reads": ["state", "anchor", "pool_share", "isolated"]},
    "default, leave-one-out too": {"meaning.reads": ["state", "pool_share", "leave_one_out", "isolated"]},
    "default, last layer": {"meaning.layer": -1},
    "default, three layers": {"meaning.layer": [0.0, 0.5, 1.0]},
    "default, gates of tokens": {"meaning.unit": "token", "entities.unit": "token", "entities.backoff": 0.0},
    **{f"released text, {n:,} sentences": {"recipe": "released", "max_sentences": n} for n in (1000, 4000, 16000)},
}

# Selectors that divide the words: a recipe, and what is changed in it.
THREE = {"selectors.third": load_recipe("dual").selectors["first"]}
DIVISIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "parts": ("parts", {}),
    "dual": ("dual", {}),
    "dual, lambda_kl 0": ("dual", {"model.lambda_kl": 0.0}),
    "dual, three": ("dual", {**THREE, "model.lambda_kl": -30.0}),
}


def overrides_of(row: str) -> tuple[str, dict[str, Any]]:
    """The recipe of a row by name, and what it changes, by the names that recipes have."""
    changes = dict(ROWS[row])
    recipe = changes.pop("recipe", "default")
    of_selectors = ("meaning.", "entities.")
    return recipe, {f"selectors.{key}" if key.startswith(of_selectors) else key: value for key, value in changes.items()}


def train(recipe: str, changes: dict[str, Any], folder: Path) -> HardKumaModel:
    """A model that `train.py` has trained into a folder."""
    words = [sys.executable, str(ROOT / "train.py"), recipe, "--output", str(folder)]
    words += [word for key, value in changes.items() for word in (f"--{key}", json.dumps(value))]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return HardKumaModel.from_pretrained(folder / "model").eval()


# ---- measures -----------------------------------------------------------------------------------------------------------


@functools.cache
def sample_of(path: Path) -> list[LabelledSentence]:
    """The benchmark's sample of a corpus."""
    return read_corpus(path).sample(SAMPLE, 0)


def average_precision(encoder: SentenceEncoder, path: Path, method: str) -> float:
    """Of word scores against gold entity words."""
    sentences = sample_of(path)
    scores = METHODS[method].scores(encoder, *texts_of(sentences))
    return Ranking(labels_of(sentences), [list(item.scores) for item in scores]).curve().average_precision()


def areas(
    encoder: SentenceEncoder, method: str, texts: list[str], words: list | None = None
) -> dict[str, np.ndarray]:  # fmt: skip
    """(texts,) sufficiency and comprehensiveness of a method's top words, by name."""
    kept = faithfulness(encoder, METHODS[method].scores(encoder, texts, words))
    return {name: kept.areas(getattr(kept, name)) for name in MEASURES}


def mean_areas(encoder: SentenceEncoder, method: str, data: Path, corpora: Sequence[str]) -> dict[str, float]:
    """Means over sentences, then over corpora."""
    found = [areas(encoder, method, *texts_of(sample_of(data / path)[:REMOVED])) for path in corpora]
    return {name: statistics.mean(float(np.nanmean(one[name])) for one in found) for name in MEASURES}


def run_row(row: str, seed: int, data: Path) -> dict[str, Any]:
    """Train and measure one row with one seed."""
    recipe, changes = overrides_of(row)
    sources = [source if source == "bundled" else str(data / source) for source in load_recipe(recipe).data]
    started = time.time()
    folder = OUTPUT / f"{row.replace(', ', '-').replace(' ', '_')}-{seed}"
    encoder = SentenceEncoder.from_model(train(recipe, {**changes, "data": sources, "seed": seed}, folder))
    columns = {
        f"{part} {name}": value
        for part, corpora in PARTS.items()
        for name, value in mean_areas(encoder, "gates_meaning", data, corpora).items()
    }
    for name, path in CORPORA.items():
        columns[name] = average_precision(encoder, data / path, "gates")
        columns[f"{name}, surface"] = average_precision(encoder, data / path, "gates_surface")
    revision, seconds = versions().get("revision", "unknown")[:7], round(time.time() - started)
    columns = {name: round(value, 5) for name, value in columns.items()}
    return {"row": row, "seed": seed, "revision": revision, "seconds": seconds, "columns": columns}


def table_line(row: str, known: list[dict[str, Any]], columns: Sequence[str]) -> str:
    """Mean ± half of the distance between the largest and the smallest seed."""
    cells = []
    for column in columns:
        values = [entry["columns"][column] for entry in known if entry["row"] == row]
        spread = (max(values) - min(values)) / 2
        cells.append(f"{statistics.mean(values):.3f} ± {spread:.3f}".replace("0.", "."))
    return f"| {row} | {' | '.join(cells)} |"


def print_tables(known: list[dict[str, Any]]) -> None:
    for columns in (FAITHFULNESS_COLUMNS, PRECISION_COLUMNS):
        rows = [row for row in ROWS if any(entry["row"] == row and columns[0] in entry["columns"] for entry in known)]
        if rows:
            print(f"| row | {' | '.join(columns)} |\n|---|" + "---:|" * len(columns))
            print("\n".join(table_line(row, known, columns) for row in rows), end="\n\n")


# ---- other encoders, selectors that divide the words, other texts -------------------------------------------------------


def compare_encoders(named: Sequence[str], seed: int, data: Path) -> None:
    """A line for each NAME=ENCODER: gates of the default recipe on it."""
    print("| encoder | sufficiency / comprehensiveness of meaning | largest norm | random | entities | form alone |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, _, path in (item.partition("=") for item in named):
        model = train("default", {"encoder": path, "seed": seed}, OUTPUT / f"encoder-{name}-{seed}")
        encoder, cells = SentenceEncoder.from_model(model), []
        for method in ("gates_meaning", "norm_sum", "random"):
            means = mean_areas(encoder, method, data, PARTS["test"])
            cells.append(" / ".join(f"{value:.3f}" for value in means.values()))
        for method in ("gates", "gates_form"):
            cells.append(f"{statistics.mean(average_precision(encoder, data / p, method) for p in PARTS['test']):.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def show_parts(names: Sequence[str], seeds: Sequence[int], data: Path, number: int | None = None) -> None:
    """Selectors that divide the words, against gold parts of speech, which nothing is trained on; and what the words of
    each selector, and of all of them together, keep and take away."""
    corpus = read_corpus(data / UD_EWT)
    for name in names:
        recipe, changes = DIVISIONS[name]
        runs = []
        table: dict[str, list[float]] = {}  # the values of all seeds, by measure
        for seed in seeds:
            model = train(recipe, {**changes, "seed": seed}, OUTPUT / f"{name.replace(' ', '_').replace(',', '')}-{seed}")
            parts = measure_parts(model, corpus.sentences[:number])
            runs.append(parts)
            found = {"NMI": parts.information(), "NMI of content words": parts.information(CONTENT_TAGS)}
            found["mean Spearman of two selectors"] = parts.mean_correlation()
            for scored, means in division_areas(model, data).items():
                found |= {f"{measure}, {scored}": mean for measure, mean in zip(MEASURES, means, strict=True)}
            for measure, value in found.items():
                table.setdefault(measure, []).append(value)
            print(f"\n{name}, seed {seed}: " + ", ".join(f"{measure} {value:.3f}" for measure, value in found.items()))
            print(parts.describe(), flush=True)
            for part, row, rate in zip(parts.names, parts.probabilities, parts.targets, strict=True):
                selected = np.argsort(-row)[: round(rate * len(row))]
                counts = Counter(np.array(parts.tags)[selected].tolist()).most_common(3)
                print(
                    f"{part}, its most probable words: " + ", ".join(f"{tag} {n / len(selected):.2f}" for tag, n in counts)
                )
        if len(runs) > 1:
            print(f"\n| {name} | seeds {', '.join(map(str, seeds))} | mean ± half of its 95% interval |\n|---|---:|---:|")
            for measure, values in table.items():
                seen = ", ".join(f"{value:.3f}" for value in values)
                print(f"| {measure} | {seen} | {statistics.mean(values):.3f} ± {half_interval(values):.3f} |")
            stability = stability_of_parts(runs)
            print(f"\n{name}, stability: " + ", ".join(f"{key} {value:.3f}" for key, value in stability.items()))


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95% interval of the mean of two or more values, by Student's t."""
    student = require("scipy.stats", "benchmark").t
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def match_selectors(first: Parts, second: Parts) -> list[int]:
    """For each selector of one run the number of the one of another run that is most like it, each taken once: the sum of
    Spearman correlations over the same words is as large as can be (`scipy.optimize.linear_sum_assignment`)."""
    if first.words != second.words:
        raise ValueError("the runs saw different words; measure both on the same texts.")
    scores = np.array([[spearman(a, b) for b in second.probabilities] for a in first.probabilities])
    assign = require("scipy.optimize", "benchmark").linear_sum_assignment
    return assign(-scores)[1].tolist()


def stability_of_parts(runs: Sequence[Parts]) -> dict[str, float]:
    """Agreement of runs (seeds), the mean over pairs of them: Spearman of matched selectors, the share of words whose most
    probable selectors are matched, and their NMI, which needs no matching."""
    correlations, agreements, informations = [], [], []
    for one, other in combinations(runs, 2):
        matched = match_selectors(one, other)
        correlations += [spearman(one.probabilities[k], other.probabilities[j]) for k, j in enumerate(matched)]
        agreements.append(float((np.array(matched)[one.chosen] == other.chosen).mean()))
        informations.append(normalised_mutual_information(one.chosen.tolist(), other.chosen.tolist()))
    means = [float(np.mean(values)) for values in (correlations, agreements, informations)]
    return dict(zip(("spearman", "agreement", "nmi"), means, strict=True))


def scores_of_parts(
    model: HardKumaModel, texts: Sequence[str], words: Sequence[Sequence[tuple[int, int]]] | None = None
) -> dict[str, list[WordScores]]:
    """Word scores of every selector by name, and as `union` the probability that any gate of a part opens,
    1 - prod(1 - p_k)."""
    scored = score_selectors(model, list(texts), words=words, batch_size=64)
    found = {name: [WordScores(item.text, item.words, item.probabilities) for item in scored[name]] for name in scored}
    found["union"] = []
    for items in zip(*(scored[name] for name in part_selectors(model.config)), strict=True):
        closed = np.prod([1 - np.array(item.probabilities) for item in items], axis=0)
        found["union"].append(WordScores(items[0].text, items[0].words, (1 - closed).tolist()))
    return found


def division_areas(model: HardKumaModel, data: Path) -> dict[str, list[float]]:
    """Mean sufficiency and comprehensiveness on dev of the union, of `meaning` where there is one, or else the mean of all
    selectors."""
    encoder, found = SentenceEncoder.from_model(model), {}
    of_corpora = [scores_of_parts(model, *texts_of(sample_of(data / path)[: REMOVED // 2])) for path in PARTS["dev"]]
    for name in ("union", MEANING) if MEANING in model.config.names else of_corpora[0]:
        kept = [faithfulness(encoder, scores[name]) for scores in of_corpora]
        found[name] = [float(np.mean([np.nanmean(one.areas(getattr(one, key))) for one in kept])) for key in MEASURES]
    if MEANING not in found:
        found["mean of selectors"] = np.mean([values for name, values in found.items() if name != "union"], 0).tolist()
    return found


def manual_sentences() -> Iterable[str]:
    """Of Python's reference manual, those of words and ordinary signs alone: no code, no markup."""
    for topic in topics.values():
        for paragraph in re.split(r"\n\s*\n", topic):
            sentences = split_sentences(" ".join(paragraph.split()))
            yield from (text for text in sentences if re.fullmatch(r"[A-Z][\w\s,;:'’()-]+\.", text))


def package_summaries() -> Iterable[str]:
    return sorted({(package.metadata["Summary"] or "").strip() for package in metadata.distributions()})


def compare_texts(files: Sequence[Path], number: int = REMOVED) -> None:
    """Sufficiency and comprehensiveness of several methods, and what the released `meaning` has more."""
    encoder = SentenceEncoder.from_model(load_released()[0])
    methods = ("gates_meaning", "shap", "integrated_gradients", "keybert", "loo_word", "norm_sum", "random")
    sources = {path.name: read_texts(path) for path in files}
    found: dict[str, dict[str, list[np.ndarray]]] = {method: {name: [] for name in MEASURES} for method in methods}
    for source in (sources or {"manual": manual_sentences(), "packages": package_summaries()}).values():
        sentences = list(dict.fromkeys(source))
        long = [text for text, words in zip(sentences, text_words(sentences), strict=True) if len(words) >= 4]
        drawn = [long[i] for i in np.random.default_rng(0).permutation(len(long))[:number]]
        for method in methods:
            for name, values in areas(encoder, method, drawn).items():
                found[method][name].append(values)
    print("| method | " + " | ".join(f"{name} | `meaning` minus it" for name in MEASURES) + " |\n|---|" + "---:|" * 4)
    for method in methods:
        cells = []
        for name in MEASURES:
            ours, theirs = (np.concatenate(found[of][name]) for of in (methods[0], method))
            gap = bootstrap(lambda w, d=ours - theirs: {"gap": weighted_mean(d, w)}, len(ours), samples=5000)["gap"]
            cells += [f"{np.nanmean(theirs):.3f}", f"{gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"]
        print(f"| {METHODS[method].title} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", default=[])
    parser.add_argument("--all", action="store_true", help="run every row")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--list", action="store_true", help="show the rows and what they change")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print what is known")
    parser.add_argument("--encoders", nargs="+", default=[], metavar="NAME=ENCODER")
    shown = f"selectors that divide the words, any of {'; '.join(DIVISIONS)}"
    parser.add_argument("--parts", nargs="*", choices=list(DIVISIONS), metavar="NAME", help=shown)
    parser.add_argument("--sentences", type=int, metavar="N", help="tagged sentences for --parts (default: all)")
    parser.add_argument("--texts", type=Path, nargs="*", metavar="FILE", help="of any format that `hardkuma train` reads")
    options = parser.parse_args()
    rows, results = list(ROWS) if options.all else options.rows, KeptResults(options.results, ["row", "seed"])
    if options.data is None and (rows or options.encoders or options.parts is not None):
        parser.error("--data FOLDER is needed for this")
    if options.list:
        print("\n".join(f"{name}: {changes}" for name, changes in ROWS.items()))
    for seed, row in ((seed, row) for seed in options.seeds for row in rows):
        if all((entry["row"], entry["seed"]) != (row, seed) for entry in results.entries()):
            entry = run_row(row, seed, options.data)
            results.put(entry)
            columns = {name: round(value, 3) for name, value in entry["columns"].items()}
            print(f"{row}, seed {seed}, {entry['seconds']} s: {columns}", flush=True)
    if options.table or rows:
        print_tables(results.entries())
    if options.encoders:
        compare_encoders(options.encoders, options.seeds[0], options.data)
    if options.parts is not None:
        show_parts(options.parts or list(DIVISIONS), options.seeds, options.data, options.sentences)
    if options.texts is not None:
        compare_texts(options.texts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
