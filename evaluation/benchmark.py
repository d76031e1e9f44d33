"""The benchmark: every method on the same sentences, at equal selection rate, in one command.

    hardkuma benchmark --data DIR --model CHECKPOINT --output runs/benchmark

It can be stopped and started again: a method that is done with the same settings is not run twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..common.files import hold_output, write_atomically
from ..common.packages import versions
from ..common.text import MINILM
from ..data import LabelledSentence
from ..encoder_hardkuma import fingerprint
from ..modeling_hardkuma import HardKumaModel
from .baselines.encoder import SentenceEncoder, tracker
from .baselines.gates import View, find_view
from .baselines.registry import GATES, METHODS, Method, find_method
from .baselines.spacy_entities import spacy_scores
from .baselines.words import WordScores
from .corpora import Corpus, find_corpora, labels_of, lower_cased, slug, texts_of
from .faithfulness import RATES
from .measure import faithfulness_metrics, hard_words, label_metrics, lower_case_metrics, precision_recall
from .metrics import Ranking
from .report import report_html
from .results import MethodResult, as_json, compare_faithfulness, load_result, result_path, save_result
from .tables import markdown_report

SPACY_HINT = "install one that has a component `ner`, such as `python -m spacy download en_core_web_sm`."
Checkpoint = str | Path | HardKumaModel | SentenceEncoder


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on besides method, corpus and encoder.

    Attributes:
        sample: sentences per corpus for methods of at most one pass per sentence.
        expensive_sample: sentences for the others; the first of the same sample.
        faithfulness_sample: sentences that sufficiency and comprehensiveness are measured on; the first ones too, and no
            more than `expensive_sample`, so that every method is measured on the same.
        seeds: of methods that need one (expensive ones use the first alone).
        rates, removal: see `faithfulness`.
        bootstrap: draws for the intervals.
        sample_seed: which sentences are drawn.
        examples: sentences shown in the report.
        selector: of all gates, where a checkpoint has several; by default each row asks for its own.
        lower: measure decisions on lower-cased text too.
    """

    sample: int = 800
    expensive_sample: int = 100
    faithfulness_sample: int = 100
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[float, ...] = RATES
    removal: str = "mask"
    bootstrap: int = 1000
    sample_seed: int = 0
    examples: int = 6
    selector: str | None = None
    lower: bool = True

    def __post_init__(self) -> None:
        for name in ("sample", "expensive_sample", "faithfulness_sample"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 sentence, got {getattr(self, name)}.")
        if not self.seeds:
            raise ValueError("seeds must name at least one seed, got none; use (0,).")


@dataclass
class Benchmark:
    """What a run made: results, and where they are."""

    results: list[MethodResult]
    folder: Path
    notes: list[str] = field(default_factory=list)

    @property
    def table(self) -> Path:
        return self.folder / "benchmark.md"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"


def run_benchmark(
    data: str | Path | Sequence[str | Path],
    methods: Sequence[str] | None = None,
    sample: int = 800,
    seeds: Sequence[int] = (0, 1, 2),
    output: str | Path = "runs/benchmark",
    *,
    encoder: str | Path | SentenceEncoder | None = None,
    models: Mapping[str, Sequence[Checkpoint]] | Sequence[Checkpoint] = (),
    corpora: Sequence[str] | None = None,
    resume: bool = True,
    progress: bool = False,
    command: str | None = None,
    **settings: Any,
) -> Benchmark:
    """Run methods on corpora; write a JSON file each, a Markdown table and an HTML report.

    Args:
        data: a folder with wnut17 and wikigold, or CoNLL files.
        methods: names from `METHODS`; all that are installed by default.
        sample, seeds, settings: see `Settings`.
        output: folder for results.
        encoder: for the baselines: a name, a folder or a SentenceEncoder; the first model's, or MiniLM, by default.
        models: HardKuma checkpoints (folders, models or SentenceEncoders); several count as seeds of one recipe.
            {name: checkpoints} compares recipes.
        corpora: names to keep, of those found in `data`.
        resume: skip what was done with the same settings.
        command: the command to write into results.
    """
    config = Settings(sample=sample, seeds=tuple(seeds), **settings)
    chosen = find_corpora(data, corpora)
    command = command or f"run_benchmark({str(data)!r}, methods={methods!r}, output={str(output)!r})"
    folder, results, shown = Path(output), list[MethodResult](), dict[str, list[LabelledSentence]]()
    with hold_output(folder):
        named = models if isinstance(models, Mapping) else {"": models} if len(models) else {}
        groups = {name: [load_checkpoint(one) for one in many] for name, many in named.items()}
        if encoder is None and groups:
            encoder = next(iter(groups.values()))[0]
        shared = encoder if isinstance(encoder, SentenceEncoder) else SentenceEncoder.load(encoder or MINILM)
        contenders, notes = find_contenders(methods, shared, groups, config.selector)
        with tracker(len(chosen) * len(contenders), progress, "benchmark") as bar:
            for corpus in chosen:
                of_corpus = []
                for contender in contenders:
                    bar.set_postfix_str(f"{corpus.name}: {contender.method.name}")
                    of_corpus.append(_run_or_load(folder, corpus, contender, config, command, resume))
                    bar.update(1)
                compare_faithfulness(of_corpus, config.bootstrap)
                for result in of_corpus:
                    save_result(folder, result)
                results += [_encoder_alone(corpus, shared, config, command), *of_corpus]
                sentences = corpus.sample(config.sample, config.sample_seed)
                shown[corpus.name] = [sentences[i] for i in _example_numbers(sentences, config)]
        benchmark = Benchmark(results, folder, notes)
        write_atomically(benchmark.table, markdown_report(results, command, notes))
        write_atomically(benchmark.report, report_html(results, shown, command, notes))
    return benchmark


# ---- who runs: every method with its encoders, gates row by row -----------------------------------------------------


@dataclass
class Contender:
    """A method with the encoders that it runs on: one, or several checkpoints of one recipe.

    Attributes:
        prints: digests of what the numbers depend on, one for each encoder.
        selector: whose gates are shown; empty for other methods.
        faithful: whether its faithfulness is measured: words of names are not chosen to carry the embedding.
    """

    method: Method
    encoders: list[SentenceEncoder]
    prints: list[str]
    selector: str = ""
    faithful: bool = True


def load_checkpoint(source: Checkpoint) -> SentenceEncoder:
    """The encoder of a checkpoint, with its gates."""
    if isinstance(source, SentenceEncoder):
        loaded = source
    elif isinstance(source, (str, Path)):
        loaded = SentenceEncoder.load(source)
    else:
        loaded = SentenceEncoder.from_model(source)
    if loaded.model is None:
        raise ValueError(f"{source} is an encoder without gates; give a HardKuma checkpoint, or pass it as encoder=.")
    return loaded


def find_contenders(
    methods: Sequence[str] | None,
    encoder: SentenceEncoder,
    groups: Mapping[str, list[SentenceEncoder]],
    selector: str | None,
) -> tuple[list[Contender], list[str]]:
    """All rows in the order of the methods, and notes on those that are left out.

    Args:
        methods: names; all that can run by default.
        encoder: of the baselines.
        groups: checkpoints by recipe, for the gates.
        selector: of all gates; by default each row asks for its own.
    """
    chosen = [find_method(name) for name in (METHODS if methods is None else dict.fromkeys(methods))]
    contenders: list[Contender] = []
    notes: list[str] = []
    print_of_encoder = fingerprint(encoder.encoder)
    for method in chosen:
        if method.missing:
            hint = f"{method.title} needs {', '.join(method.missing)}: pip install 'hardkuma[{method.extra}]'"
            if methods is not None:
                raise ImportError(f"{hint}, or leave {method.name!r} out.")
            notes.append(f"Left out: {hint}.")
        elif method.role != GATES:
            contenders.append(Contender(method, [encoder], [print_of_encoder], faithful=method.ranked))
        elif not groups:
            notes.append(f"Left out: {method.title} needs a HardKuma checkpoint (--model).")
    if methods is None and not any(method.function is spacy_scores for method in chosen):
        notes.append(f"No spaCy model to compare with: {SPACY_HINT}")
    for name, encoders in groups.items():
        of_group, left_out = _gate_contenders([m for m in chosen if m.role == GATES], name, encoders, selector)
        contenders += of_group
        notes += left_out
        if of_group and any(fingerprint(one.encoder) != print_of_encoder for one in encoders):
            notes.append(
                f"{of_group[0].method.title}: on another encoder than the baselines, so that faithfulness differs in scale."
            )
    order = {method.name: number for number, method in enumerate(chosen)}
    return sorted(contenders, key=lambda one: order[one.method.name.partition("@")[0]]), notes


def _gate_contenders(
    methods: Sequence[Method], name: str, encoders: list[SentenceEncoder], selector: str | None
) -> tuple[list[Contender], list[str]]:
    """Rows of one recipe's checkpoints; one that shows the same gates as another is left out."""
    contenders: dict[tuple[View, ...], Contender] = {}
    notes = []
    prints = [fingerprint(one.model or one.encoder) for one in encoders]
    configs = [one.model.config for one in encoders if one.model is not None]
    for method in methods:
        views = tuple(find_view(config, selector=selector, **method.options) for config in configs)
        shown = ", ".join(dict.fromkeys(view.selector for view in views))
        title = method.title
        if any(config.num_selectors > 1 for config in configs) and f", {shown}" not in title:
            title = title.replace("gates", f"gates, {shown}", 1)
        own = replace(method, title=title)
        if name:
            own = replace(own, name=f"{method.name}@{slug(name)}", title=f"{title}, {name}")
        if views in contenders:
            same = contenders[views].method.title
            notes.append(f"Left out: {own.title}; it shows the same gates of this checkpoint as {same}.")
            continue
        by_default = [config.names[config.find_selector()] for config in configs]
        faithful = selector is not None or [view.selector for view in views] == by_default
        contenders[views] = Contender(own, encoders, prints, shown, faithful)
    return list(contenders.values()), notes


# ---- one method on one corpus ---------------------------------------------------------------------------------------


def _run_or_load(
    folder: Path, corpus: Corpus, contender: Contender, config: Settings, command: str, resume: bool
) -> MethodResult:
    method = contender.method
    settings = {
        **{key: list(value) if isinstance(value, tuple) else value for key, value in asdict(config).items()},
        "method": method.name.partition("@")[0],
        "title": method.title,  # has the version of a spaCy model
        "faithful": contender.faithful,
        "options": dict(method.options),
        "corpus": corpus.digest,
        "encoders": contender.prints,
        "hardkuma": __version__,  # another version may compute another number
    }
    known = load_result(result_path(folder, corpus.name, method.name), settings) if resume else None
    if known is not None:
        return known
    result = _measure(corpus, contender, config, settings, command)
    save_result(folder, result)  # at once: a run that is stopped keeps it
    return result


def _measure(
    corpus: Corpus, contender: Contender, config: Settings, settings: dict[str, Any], command: str
) -> MethodResult:
    method = contender.method
    sentences = corpus.sample(config.expensive_sample if method.expensive else config.sample, config.sample_seed)
    runs, seconds, forward, backward = _score(corpus, contender, config, sentences)
    metrics = label_metrics(sentences, runs, config.bootstrap, ranked=method.ranked)
    if config.lower and method.lower:
        small = [lower_cased(sentence) for sentence in sentences]
        runs_of_small = _score(corpus, contender, config, small)[0]
        metrics |= lower_case_metrics(small, runs_of_small, config.bootstrap, ranked=method.ranked)
    curves, areas = {}, {}
    if contender.faithful:
        owners = [encoder for encoder in contender.encoders for _ in range(len(runs) // len(contender.encoders))]
        few = min(config.faithfulness_sample, config.expensive_sample, len(sentences))
        faithful, curves["faithfulness"], by_sentence = faithfulness_metrics(
            owners, [run[:few] for run in runs], config.rates, config.removal, config.bootstrap
        )
        metrics |= faithful
        areas = {name: [_finite(value) for value in values] for name, values in by_sentence.items()}
    measured: dict[str, dict[str, Any]] = {name: {**as_json(interval)} for name, interval in metrics.items()}
    common: dict[str, float | None] = {}
    if method.ranked:
        labels = labels_of(sentences)
        of_runs = [Ranking(labels, [item.scores for item in run]).curve().average_precision() for run in runs]
        measured["average_precision"]["runs"] = [round(value, 6) for value in of_runs]
        curves["precision_recall"] = precision_recall(sentences, runs)
        shared = min(config.expensive_sample, len(sentences))
        on_shared = label_metrics(sentences[:shared], [run[:shared] for run in runs], config.bootstrap)
        common = {**as_json(on_shared["average_precision"]), "sentences": shared}
    for name, rows in hard_words(sentences).items():
        if f"recall_{name}" in measured:
            measured[f"recall_{name}"]["words"] = sum(map(sum, rows))
    numbers = [i for i in _example_numbers(corpus.sample(config.sample, config.sample_seed), config) if i < len(sentences)]
    examples = [{"scores": [round(v, 6) for v in runs[0][i].scores], "selected": runs[0][i].selected} for i in numbers]
    return MethodResult(
        **_head(method.name, method.title, method.role, method.cost, corpus, sentences, command),
        runs=len(runs),
        settings=settings,
        seconds=round(seconds, 4),
        forward_passes=forward,
        backward_passes=backward,
        metrics=measured,
        common=common,
        curves=curves,
        examples=examples,
        selector=contender.selector,
        areas=areas,
    )


def _finite(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None


def _head(
    method: str, title: str, role: str, cost: str, corpus: Corpus, sentences: list[LabelledSentence], command: str
) -> dict[str, Any]:
    return {
        "method": method,
        "title": title,
        "role": role,
        "cost": cost,
        "corpus": corpus.name,
        "sentences": len(sentences),
        "words": sum(len(sentence.offsets) for sentence in sentences),
        "command": command,
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _score(
    corpus: Corpus, contender: Contender, config: Settings, sentences: list[LabelledSentence]
) -> tuple[list[list[WordScores]], float, int, int]:
    """Word scores of every run, with the seconds and passes that they took."""
    method = contender.method
    texts, words = texts_of(sentences)
    extra: dict[str, Any] = {"counts": corpus.counts} if method.counted else {}
    if method.role == GATES:
        extra["selector"] = config.selector
    options: list[dict[str, Any]] = [{}]
    if method.seeded:
        options = [{"seed": seed} for seed in (config.seeds[:1] if method.expensive else config.seeds)]
    method.scores(contender.encoders[0], texts[:2], words[:2], **extra, **options[0])  # imports and caches are not cost
    runs, forward, backward, seconds = [], 0, 0, 0.0
    for encoder in contender.encoders:
        for option in options:
            start = time.perf_counter()
            with encoder.counting() as used:
                runs.append(method.scores(encoder, texts, words, **extra, **option))
            seconds += time.perf_counter() - start
            forward, backward = forward + used.forward, backward + used.backward
    return runs, seconds, forward, backward


def _encoder_alone(corpus: Corpus, encoder: SentenceEncoder, config: Settings, command: str) -> MethodResult:
    """What it costs to embed the sentences, which every method is compared with."""
    sentences = corpus.sample(config.sample, config.sample_seed)
    texts, _ = texts_of(sentences)
    encoder.encode(texts[:2])
    start = time.perf_counter()
    with encoder.counting() as used:
        encoder.encode(texts)
    seconds = time.perf_counter() - start
    return MethodResult(
        **_head("encoder", "the encoder alone", "encoder", "1", corpus, sentences, command),
        runs=1,
        settings={},
        seconds=round(seconds, 4),
        forward_passes=used.forward,
        backward_passes=0,
    )


def _example_numbers(sample: Sequence[LabelledSentence], config: Settings) -> list[int]:
    """Numbers of sentences of the sample that every method has: those of readable length with an entity."""
    shared = sample[: config.expensive_sample]
    fit = [i for i, s in enumerate(shared) if 6 <= len(s.offsets) <= 30 and any(s.entity_mask)]
    return (fit or list(range(len(shared))))[: config.examples]
