"""Who runs in a benchmark: every method with its encoders; gates row by row, each of its own selector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..common.text import MINILM
from ..encoder_hardkuma import fingerprint
from ..modeling_hardkuma import HardKumaModel
from .baselines.encoder import SentenceEncoder
from .baselines.gates import View, find_view
from .baselines.registry import METHODS, Method, find_method
from .data import slug

SPACY = "spacy_entities"
SPACY_HINT = "install one that has a component `ner`, such as `python -m spacy download en_core_web_sm`."
Checkpoint = str | Path | HardKumaModel | SentenceEncoder


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


def group_models(models: Mapping[str, Sequence[Checkpoint]] | Sequence[Checkpoint]) -> dict[str, list[Checkpoint]]:
    """Checkpoints by recipe; a list is one recipe without a name.

    >>> group_models(["runs/a", "runs/b"])
    {'': ['runs/a', 'runs/b']}
    """
    if isinstance(models, Mapping):
        return {name: list(many) for name, many in models.items()}
    if isinstance(models, (str, Path)):
        models = [models]
    return {"": list(models)} if len(models) else {}


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


def find_peer_encoder(
    encoder: str | Path | SentenceEncoder | None, groups: Mapping[str, list[SentenceEncoder]]
) -> SentenceEncoder:
    """The encoder of the peers: the one given, the first checkpoint's, or MiniLM."""
    if isinstance(encoder, SentenceEncoder):
        return encoder
    if encoder is None and groups:
        return next(iter(groups.values()))[0]
    return SentenceEncoder.load(MINILM if encoder is None else encoder)


def find_contenders(
    methods: Sequence[str] | None,
    peers: SentenceEncoder,
    groups: Mapping[str, list[SentenceEncoder]],
    selector: str | None,
) -> tuple[list[Contender], list[str]]:
    """All rows in the order of the methods, and notes on those that are left out.

    Args:
        methods: names; all that can run by default.
        peers: the encoder of the peers.
        groups: checkpoints by recipe, for the gates.
        selector: of all gates; by default each row asks for its own.

    >>> from hardkuma.evaluation.baselines.toy import toy_encoder
    >>> find_contenders(["gates"], toy_encoder({"a": [1.0]}), {}, None)
    ([], ['Left out: HardKuma gates (max) needs a HardKuma checkpoint (--model).'])
    """
    chosen = [find_method(name) for name in (METHODS if methods is None else dict.fromkeys(methods))]
    contenders: list[Contender] = []
    notes: list[str] = []
    print_of_peers = fingerprint(peers.encoder)
    for method in chosen:
        if method.missing:
            hint = f"{method.title} needs {', '.join(method.missing)}: pip install 'hardkuma[{method.extra}]'"
            if methods is not None:
                raise ImportError(f"{hint}, or leave {method.name!r} out.")
            notes.append(f"Left out: {hint}.")
        elif method.kind != "gates":
            contenders.append(Contender(method, [peers], [print_of_peers], faithful=method.ranked))
        elif not groups:
            notes.append(f"Left out: {method.title} needs a HardKuma checkpoint (--model).")
    if methods is None and not any(method.module == SPACY for method in chosen):
        notes.append(f"No spaCy model to compare with: {SPACY_HINT}")
    for name, encoders in groups.items():
        of_group, left_out = _gate_contenders([m for m in chosen if m.kind == "gates"], name, encoders, selector)
        contenders += of_group
        notes += left_out
        if of_group and any(fingerprint(one.encoder) != print_of_peers for one in encoders):
            notes.append(
                f"{of_group[0].method.title}: on another encoder than the peers, so that faithfulness differs in scale."
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
