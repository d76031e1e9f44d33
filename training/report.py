"""What a run leaves for people: plots, the sections of its card, the record of versions."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.files import write_atomically
from ..common.packages import versions
from ..common.text import SHOWCASE, name_sources
from ..evaluation.parts import Parts
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import gate_records
from .criterion import Quality
from .fitting import RELEASED
from .form import FormTraining
from .recipe import Recipe, TextRecipe
from .removal import Removal

KINDS_PICTURE = "kinds.png"


@dataclass(frozen=True)
class Story:
    """What a run did, as far as its card tells.

    Attributes:
        sentences: how many were trained on.
        best_step: whose state was best by the label-free criterion.
        removal, form: what happened in these phases, where they took place.
        plots: names of the pictures beside the card.
        kinds: what selectors that part make of some text.
    """

    sentences: int
    best_step: int
    removal: Removal | None = None
    form: FormTraining | None = None
    plots: Sequence[str] = ()
    kinds: Parts | None = None


def plot_history(history: Sequence[dict[str, Any]], target_rates: Sequence[float], folder: Path) -> list[str]:
    """losses.png and rate.png from the log of a contrastive phase; the names of what was drawn."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [entry for entry in history if "loss" in entry]
    evaluations = [entry for entry in history if "score" in entry and "phase" not in entry]
    if not steps:
        return []
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in [key for key in steps[0] if key.startswith("loss")]:
        axes.plot([entry["step"] for entry in steps], [entry[name] for entry in steps], label=name.removeprefix("loss/"))
    axes.set(xlabel="step", ylabel="unweighted term", title="Loss and its terms")
    axes.legend()
    _save(figure, folder / "losses.png")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([e["step"] for e in steps], [e["rate"] for e in steps], label="selection rate (training)")
    for rate in sorted(set(target_rates)):
        axes.axhline(rate, linestyle="--", color="grey", label="target")
    if evaluations:
        axes.plot([e["step"] for e in evaluations], [e["score"] for e in evaluations], marker="o", label="held-out score")
    axes.set(xlabel="step", ylim=(0, 1), title="Selection rate and label-free score")
    axes.legend()
    _save(figure, folder / "rate.png")
    return ["losses.png", "rate.png"]


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    pyplot.close(figure)
    write_atomically(path, drawn.getvalue())


def show_words(model: HardKumaModel, texts: Sequence[str], selector: str) -> list[str]:
    """Each text with the words in bold that one selector selects, escaped for Markdown."""
    lines = []
    for text, record in zip(texts, gate_records(model, texts, selector=selector), strict=True):
        parts, position = [], 0
        for word in record["words"]:
            parts.append(_escape(text[position : word["start"]]))
            inside = _escape(word["word"])
            parts.append(f"**{inside}**" if word["selected"] else inside)
            position = word["end"]
        lines.append("".join([*parts, _escape(text[position:])]))
    return lines


def _escape(text: str) -> str:
    for character in "\\`*_{}[]<>#|":
        text = text.replace(character, "\\" + character)
    return text


def card_sections(
    model: HardKumaModel,
    recipe: Recipe,
    story: Story,
    qualities: Mapping[str, Quality],
    dev: dict[str, float] | None,
) -> dict[str, str]:
    """The fields of the card that a run knows.

    Args:
        qualities: of the gates that are saved, by the name of the selector.
        dev: figures against a labelled file, where the recipe names one.
    """
    return {
        "training": "\n\n".join(_training_paragraphs(model, recipe, story)),
        "plots": _plots(story.plots),
        "evaluation": _evaluation(model, qualities, dev, story.kinds),
        "examples": _examples(model),
    }


def _training_paragraphs(model: HardKumaModel, recipe: Recipe, story: Story) -> Iterator[str]:
    data, names = name_sources(recipe.data), model.config.names
    about = f"Trained without labels on {story.sentences:,} sentences of {data} by the recipe in `recipe.yaml` "
    about += f"(seed {recipe.seed}"
    if recipe.meaning is not None:
        taken = names[model.config.find_selector()]
        source = "the head that comes with hardkuma" if recipe.meaning == RELEASED else f"`{recipe.meaning}`"
        yield f"{about}).\n\nGates of `{taken}`: those of {source}, not trained here."
    elif story.removal is None:
        yield (
            f"{about}, batches of {recipe.batch_size}, {recipe.batches}); the state of step {story.best_step} was best by "
            "the label-free criterion below."
        )
    else:
        yield (
            f"{about}).\n\nGates of `{names[model.config.find_selector()]}`: {story.removal.subsets:,} subsets of the "
            f"words of {story.removal.sentences:,} sentences were encoded, and the gates' log-odds fitted so that their "
            "sum over a subset tells how much of the sentence's embedding it keeps and how much is lost without it "
            f"(unexplained variance {story.removal.unexplained:.2f})."
        )
    if story.form is not None:
        yield story.form.describe()
    if story.kinds is not None:
        yield (
            f"Gates of {', '.join(f'`{name}`' for name in story.kinds.names)}: they divide the words among themselves by "
            "kind. Each sees a word as itself and as a gap between its neighbours; the views are aligned, the selectors "
            f"separated, and together they select what `{names[model.config.find_selector()]}` does. No label takes part: "
            "their names are their most typical words, unless somebody gave others."
        )


def _plots(names: Sequence[str]) -> str:
    if not names:
        return ""
    pictures = "\n".join(f"![{Path(name).stem}]({name})" for name in names)
    title = "Selectors x parts of speech" if list(names) == [KINDS_PICTURE] else "Losses and selection rate over the run"
    return f"\n{title}:\n\n{pictures}"


def _evaluation(
    model: HardKumaModel, qualities: Mapping[str, Quality], dev: dict[str, float] | None, kinds: Parts | None
) -> str:
    evaluation = "No held-out text was evaluated."
    if qualities:
        lines = [
            "On held-out text of the same source, with the gates as they are saved, keeping the most probable words of "
            "each sentence at the target rate: cosine of their re-encoded embedding to the sentence's (sufficiency, higher "
            "is better) and of the others' (remainder, lower is better).\n",
            "| selector | target rate | sufficiency | remainder | mean selection probability |",
            "|---|---:|---:|---:|---:|",
        ]
        for name, quality in qualities.items():
            rate = model.config.of_selector("target_rate", model.config.names.index(name))
            cells = (quality.sufficiency, quality.remainder, quality.rate)
            lines.append(f"| {name} | {rate:g} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
        evaluation = "\n".join(lines)
    if dev is not None:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in dev.items())
        evaluation += (
            f"\n\nAgainst the gold entity words of the development file, which took no part in training: {numbers}."
        )
    if kinds is not None:
        where = "some training text" if kinds.tags is None else "the development file, whose tags took no part in training"
        evaluation += f"\n\nSelectors that part, on {where}:\n\n{kinds.describe()}"
    return evaluation


def _examples(model: HardKumaModel) -> str:
    parts = ["Sentences from outside the corpus, hard ones among them; selected words in bold."]
    for name in model.config.names:
        lines = "\n".join(f"- {line}" for line in show_words(model, SHOWCASE, name))
        parts.append(f"`{name}`:\n\n{lines}" if model.config.num_selectors > 1 else lines)
    return "\n\n".join(parts)


def write_record(folder: Path, recipe: TextRecipe, seconds: float, processes: int) -> None:
    """recipe.yaml and run.json (versions, revision, seed, processes, wall time) beside the result."""
    recipe.save(folder / "recipe.yaml")
    record = {"versions": versions(), "seed": recipe.seed, "processes": processes, "seconds": round(seconds, 1)}
    write_atomically(folder / "run.json", json.dumps(record, indent=2) + "\n")
