"""What a checkpoint folder holds beside weights and config: tokenizer, code, sentence-transformers files, the card.

A folder is written under a temporary name and moved into place, so that an interrupted save never leaves half a file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import cached_file, logging

from .configuration_hardkuma import HardKumaConfig

logger = logging.get_logger(__name__)

HERE = Path(__file__).parent
CARD_TEMPLATE, CARD_VALUES = "model_card.md", "card.json"
CARD_KEPT = ("training", "evaluation", "examples")  # what stays true of the weights when they are saved again
TRAVELLING_FILES = (
    "checks_hardkuma.py",
    "layers_hardkuma.py",
    "trust_hardkuma.py",
    "configuration_hardkuma.py",
    "surface_hardkuma.py",
    "attention_hardkuma.py",
    "encoders_hardkuma.py",
    "inputs_hardkuma.py",
    "outputs_hardkuma.py",
    "gates_hardkuma.py",
    "selectors_hardkuma.py",
    "pooling_hardkuma.py",
    "alone_hardkuma.py",
    "features_hardkuma.py",
    "losses_hardkuma.py",
    "folder_hardkuma.py",
    "pretrained_hardkuma.py",
    "windows_hardkuma.py",
    "records_hardkuma.py",
    "scoring_hardkuma.py",
    "words_hardkuma.py",
    "anchors_hardkuma.py",
    "pairs_hardkuma.py",
    "core_hardkuma.py",
    "modeling_hardkuma.py",
    "graphs_hardkuma.py",
    "onnx_hardkuma.py",
    "backends_hardkuma.py",
    "pipeline_hardkuma.py",
    "handler.py",
)
TOKENS = "1_WeightedLayerPooling"  # the folder of that module of sentence-transformers
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@contextmanager
def staged(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder beside `target`; on success its files replace those of `target`, on failure it vanishes.

    Weight files of an earlier save that the new one does not have (other shards) are removed.

    >>> with tempfile.TemporaryDirectory() as root:
    ...     with staged(Path(root) / "model") as folder:
    ...         _ = (folder / "config.json").write_text("{}")
    ...     sorted(p.name for p in (Path(root) / "model").iterdir())
    ['config.json']
    """
    target = Path(target)
    if target.is_file():
        raise NotADirectoryError(f"{target} is a file; give a folder to save into.")
    if target.resolve() == HERE.resolve():
        raise ValueError(f"{target} holds the source code of hardkuma; save into another folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield folder
        _publish(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, target: Path) -> None:
    # mkdtemp and safetensors make things private; a checkpoint gets the permissions that new files have.
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
    if not target.exists():
        os.rename(folder, target)
        return
    new = {path.name for path in folder.iterdir()}
    if any(name.endswith(".safetensors") for name in new):
        for old in target.glob("model*.safetensors*"):
            if old.name not in new:
                old.unlink()
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)


def write_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase, config: HardKumaConfig) -> None:
    """Tokenizer files, with the encoder's maximum length, so that `truncation=True` cuts where the encoder does."""
    if config.max_seq_length is not None:
        tokenizer.model_max_length = config.max_seq_length
    tokenizer.save_pretrained(folder)


def write_code(folder: Path, source: str | None = None) -> None:
    """All code that travels with a checkpoint; it needs torch and transformers alone.

    Args:
        folder: where to write.
        source: the checkpoint that the model was loaded from: where code comes from a checkpoint, the files that the model
            itself does not import (pipeline, handler) are still there.
    """
    for name in TRAVELLING_FILES:
        path = _find(name, source)
        if path is None:
            logger.warning("no %s found beside the code or in %s: the checkpoint goes without it.", name, source)
        else:
            shutil.copyfile(path, folder / name)


def _find(name: str, source: str | None, beside_code: bool = True) -> Path | None:
    """A file of this package, from beside the code or from the checkpoint that the code came with."""
    if beside_code and (HERE / name).is_file():
        return HERE / name
    if not source:
        return None
    path = cached_file(
        source,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if path is None else Path(path)


def write_sentence_transformers(folder: Path, dimension: int) -> None:
    """Files that make `SentenceTransformer(folder, trust_remote_code=True).encode` return the rationale embedding.

    `encode(texts, embedding="anchor")` gives another one, `encode(texts, rate=0.2)` another selection,
    `encode(texts, selector="entities")` that of another selector: "kwargs" names the
    arguments of `encode` that sentence-transformers hands on to `HardKumaModel.sentence_features`.

    Of what that method returns its `Transformer` hands on one tensor, and hidden states where the config asks for them. A
    mean over layers, here of the last one alone, calls these "token_embeddings", which `encode(output_value=...)` wants.

    Args:
        folder: where to write.
        dimension: of the embeddings.
    """
    sentences: dict[str, Any] = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    sentences["kwargs"] = ["embedding", "rate", "selector"]
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "sentence_features", "method_output_name": "embedding"}},
        "module_output_name": "sentence_embedding",
        "config_kwargs": {"output_hidden_states": True},
    }
    tokens = {"idx": 1, "name": "1", "path": TOKENS, "type": "sentence_transformers.models.WeightedLayerPooling"}
    _write_json(folder / "modules.json", [sentences, tokens])
    _write_json(folder / "sentence_bert_config.json", settings)
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    (folder / TOKENS).mkdir(exist_ok=True)
    # sentence-transformers asks the last module for the dimension of an embedding.
    layers = {"embedding_dimension": dimension, "layer_start": 0, "num_hidden_layers": 0}
    _write_json(folder / TOKENS / "config.json", layers)
    # One number: not worth another import in a file that travels.
    header = json.dumps({"layer_weights": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / TOKENS / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", 1.0))


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_card(folder: Path, config: HardKumaConfig, source: str | None, values: dict[str, str] | None = None) -> None:
    """README.md from the template `model_card.md`, which travels along so that a reloaded model can write cards too.

    Args:
        folder: where to write.
        config: fills in the encoder, the view and the table of settings.
        source: the checkpoint that the model was loaded from, searched for the template if the package is not there.
        values: further fields of the template by name ("name", "training", "plots", "evaluation", "examples"). Those
            that hold for the weights are kept in card.json; None takes them from there, for a model saved again.
    """
    path = _find(CARD_TEMPLATE, source)
    if path is None:
        logger.warning("no %s found beside the code or in %s: the checkpoint gets no card.", CARD_TEMPLATE, source)
        return
    template = path.read_text(encoding="utf-8")
    if values is None:
        values = _known_values(source)
    kept = {name: values[name] for name in CARD_KEPT if name in values}
    if kept:
        _write_json(folder / CARD_VALUES, kept)
    (folder / CARD_TEMPLATE).write_text(template, encoding="utf-8")
    (folder / "README.md").write_text(render_card(template, config, values), encoding="utf-8")


def _known_values(source: str | None) -> dict[str, str]:
    """The fields that came with the checkpoint; text and nothing else is taken from it."""
    path = _find(CARD_VALUES, source, beside_code=False)
    if path is None:
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return {name: values[name] for name in CARD_KEPT if isinstance(values.get(name), str)}
    except (ValueError, AttributeError):
        logger.warning("%s in %s is not a JSON object: its card's fields are left out.", CARD_VALUES, source)
        return {}


def render_card(template: str, config: HardKumaConfig, values: dict[str, str] | None = None) -> str:
    """Fill in `{{ field }}` marks. A field that the template does not have, or a mark without a value, is an error.

    >>> render_card("{{ name }} uses {{ view }}.", HardKumaConfig(view="input"), {"name": "demo"})
    'demo uses input.'
    """
    encoder, default = config.encoder_name_or_path, config.find_selector()
    fields = {
        "name": "HardKuma gates",
        "base_model": f"base_model: {encoder}\n" if encoder else "",
        "encoder": f"`{encoder}`" if encoder else "an encoder without a Hub id",
        "view": config.view,
        "selector": config.names[default],
        "selectors": _about_selectors(config),
        "unit": "tokens" if config.of_selector("selector_unit", default) == "token" else "words",
        "settings": _settings_table(config),
        "plots": "",
        "training": "Nothing was recorded about how these gates were trained. Gates that nobody trained are random.",
        "evaluation": "No numbers were measured for this checkpoint.",
        "examples": "No examples were recorded for this checkpoint.",
    }
    unknown = set(values or {}) - set(fields)
    if unknown:
        raise ValueError(f"the card has no field {sorted(unknown)[0]!r}; its fields: {', '.join(sorted(fields))}.")
    fields.update(values or {})

    def fill(match: re.Match[str]) -> str:
        if match.group(1) not in fields:
            raise ValueError(f"the card's template asks for {match.group(1)!r}; known: {', '.join(sorted(fields))}.")
        return fields[match.group(1)]

    return re.sub(r"\{\{ (\w+) \}\}", fill, template)


def _about_selectors(config: HardKumaConfig) -> str:
    """How to ask for one of several selectors; nothing where there is one."""
    if config.num_selectors == 1:
        return ""
    names = ", ".join(f"`{name}`" for name in config.names)
    return (
        f'\nIts selectors are {names}. `model(**inputs, selector="{config.names[0]}")` gives one, and so do `encode`, the\n'
        "pipelines and the token classifier with `selector=`; without a name the model gives all, side by side, the token\n"
        "classifier `entities` (or the first) and all others `meaning` (or the first).\n"
    )


def _settings_table(config: HardKumaConfig) -> str:
    defaults = HardKumaConfig().to_dict()
    of_encoder = {"encoder_config", "encoder_fingerprint", "encoder_name_or_path", "projections"}
    tokens = {"special_token_ids", "frame_token_ids"}
    of_every_config = {"architectures", "auto_map", "dtype", "id2label", "label2id", "model_type", "transformers_version"}
    hidden = of_encoder | tokens | of_every_config
    rows = [
        f"| `{name}` | `{value}` |"
        for name, value in config.to_dict().items()
        if name not in hidden and not name.startswith("_") and (value != defaults.get(name) or name == "view")
    ]
    return "\n".join(["| setting | value |", "|---|---|", *rows])
