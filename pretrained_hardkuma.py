"""Loading, saving, pushing and initialising: what both model classes share with every transformers model, made strict."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers import initialization as init
from transformers.modeling_utils import load_state_dict
from transformers.utils import cached_file, hf_api

from .configuration_hardkuma import HardKumaConfig
from .encoders_hardkuma import Projection, fingerprint, load_encoder, load_tokenizer
from .folder_hardkuma import (
    HUB_ID,
    staged,
    write_card,
    write_code,
    write_sentence_transformers,
    write_tokenizer,
)
from .gates_hardkuma import GateHead, Selector


class HardKumaPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation that both model classes share."""

    config_class = HardKumaConfig
    base_model_prefix = "hardkuma"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _keep_in_fp32_modules_strict = ["gate_head"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Selector):
            init.xavier_uniform_(module.hidden.weight)
            init.zeros_(module.hidden.bias)
            # Nearly the same gate for every token at the start.
            init.normal_(module.shapes.weight, std=0.02)
            init.zeros_(module.shapes.bias)
        elif isinstance(module, GateHead):
            init.zeros_(module.input_center)
            init.zeros_(module.rate_multiplier)
            init.zeros_(module.surface_log_odds)
        elif isinstance(module, Projection):
            init.xavier_uniform_(module.linear.weight)
            if module.linear.bias is not None:
                init.zeros_(module.linear.bias)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *args: Any,
        config: PreTrainedConfig | None = None,
        encoder: str | Path | None = None,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As in transformers, but a checkpoint that does not fit is an error instead of random weights.

        Args:
            pretrained_model_name_or_path: checkpoint folder or Hub id; full, or a gate head alone.
            encoder: for a gate head alone: where its encoder is, if not under the name that it was saved with.
        """
        path = str(pretrained_model_name_or_path)
        hub = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "local_files_only") if key in kwargs}
        if config is None:
            config = cls.config_class.from_pretrained(path, **hub)
        if config.model_type != cls.config_class.model_type:
            raise ValueError(
                f"{path} holds a {config.model_type!r} model, not 'hardkuma'; "
                f"to put gates on it call HardKumaModel.from_encoder({path!r})."
            )
        if config.gate_head_only:
            return cls._from_gate_head(path, config, encoder, kwargs.get("dtype"), hub)
        try:
            model, info = super().from_pretrained(path, *args, config=config, output_loading_info=True, **kwargs)
        except Exception as error:
            raise _explained(error, path) from error
        if info["missing_keys"]:
            missing = sorted(info["missing_keys"])
            raise ValueError(
                f"the weights in {path} lack {len(missing)} tensors of this model, the first {missing[0]!r}: "
                "the checkpoint belongs to another model or is incomplete; save it again with model.save_pretrained."
            )
        model._base()._freeze()
        return (model, info) if output_loading_info else model

    @classmethod
    def _from_gate_head(
        cls, path: str, config: HardKumaConfig, encoder: str | Path | None, dtype: Any, hub: dict[str, Any]
    ) -> Any:
        name = config.encoder_name_or_path if encoder is None else str(encoder)
        # A name in a downloaded config may only be a Hub id: it must not make us read local paths.
        if name is None or (encoder is None and not HUB_ID.fullmatch(name)):
            raise ValueError(f"{path} holds a gate head without its encoder ({name!r}); pass encoder='folder or Hub id'.")
        parts = load_encoder(name, dtype=dtype)
        found = fingerprint(parts.encoder)
        if found != config.encoder_fingerprint:
            raise ValueError(
                f"the gate head in {path} was trained on an encoder with fingerprint {config.encoder_fingerprint}, but "
                f"{name!r} has {found}; pass the right encoder=."
            )
        values = {**config.to_dict(), "gate_head_only": False}
        model = cls._assemble(parts, HardKumaConfig(**values))
        model._base().name_or_path = path  # where its card's fields are
        weights = _read_weights(path, hub)
        model._base().gate_head.load_state_dict({key.removeprefix("gate_head."): value for key, value in weights.items()})
        return model.eval()

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

    def save_pretrained(
        self,
        save_directory: str | Path,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        tokenizer: PreTrainedTokenizerBase | None = None,
        card: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a folder that is complete: weights, config, tokenizer, code, sentence-transformers files and a card.

        Args:
            save_directory: folder, made if needed; an existing one is replaced file by file once all are written.
            tokenizer: saved with the model; by default the one that came with the encoder or the checkpoint.
            card: fields of the card by name; see model_card.md.
            kwargs: as in transformers (`max_shard_size`, ...).
        """
        base = self._base()
        if base is not self and state_dict is not None:
            prefix = f"{self.base_model_prefix}."
            state_dict = {key.removeprefix(prefix): value for key, value in state_dict.items()}
        tokenizer = self.tokenizer if tokenizer is None else tokenizer
        if not is_main_process:
            return
        repo_id, hub = kwargs.pop("repo_id", Path(save_directory).name), kwargs.pop("token", None)
        with staged(save_directory) as folder:
            PreTrainedModel.save_pretrained(base, folder, state_dict=state_dict, **kwargs)
            write_code(folder, base.name_or_path)
            write_tokenizer(folder, tokenizer, base.config)
            write_sentence_transformers(folder)
            write_card(folder, base.config, base.name_or_path, card)
        if push_to_hub:
            _upload(self, save_directory, repo_id, token=hub)

    def push_to_hub(
        self, repo_id: str, *, private: bool | None = None, token: str | bool | None = None, **kwargs: Any
    ) -> Any:
        """Upload what `save_pretrained` writes, with our card (transformers would put its own in its place)."""
        saving = {key: kwargs.pop(key) for key in ("tokenizer", "card", "max_shard_size") if key in kwargs}
        with tempfile.TemporaryDirectory() as root:
            self.save_pretrained(Path(root) / "model", **saving)
            return _upload(self, Path(root) / "model", repo_id, private=private, token=token, **kwargs)

    def save_gate_head(self, save_directory: str | Path) -> None:
        """Save the gate head alone (under 1 MB for MiniLM); `from_pretrained` finds the encoder again by name.

        Refused when the encoder is no longer the one that the name stands for.
        """
        base = self._base()
        if fingerprint(base.encoder) != base.config.encoder_fingerprint:
            raise ValueError(
                "the encoder's weights were trained or changed, so a gate head alone would not find them again; "
                "save the whole model with save_pretrained."
            )
        weights = {key: value for key, value in base.state_dict().items() if key.startswith("gate_head.")}
        base.config.gate_head_only = True
        try:
            with staged(save_directory) as folder:
                PreTrainedModel.save_pretrained(base, folder, state_dict=weights)
                # The package that loads a head brings its own code.
                for copied in folder.glob("*.py"):
                    copied.unlink()
        finally:
            base.config.gate_head_only = False


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


def _explained(error: Exception, path: str) -> Exception:
    """A broken weights file in words; any other error as it is."""
    if type(error).__name__ != "SafetensorError":  # by name: safetensors is not ours to import here
        return error
    return OSError(
        f"the weights in {path} cannot be read ({error}): the file is cut short or not safetensors; "
        "download or save the checkpoint again."
    )


def _read_weights(path: str, hub: dict[str, Any]) -> dict[str, Tensor]:
    try:
        return load_state_dict(cached_file(path, "model.safetensors", **hub))
    except Exception as error:
        raise _explained(error, path) from error


def _upload(model: PreTrainedModel, folder: str | Path, repo_id: str, private: bool | None = None, **kwargs: Any) -> Any:
    repo_id = hf_api().create_repo(repo_id, private=private, token=kwargs.get("token"), exist_ok=True).repo_id
    kwargs.setdefault("commit_message", "Upload HardKuma model")
    return model._upload_modified_files(str(folder), repo_id, files_timestamps={}, **kwargs)
