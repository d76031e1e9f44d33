"""A tokenised batch before the encoder sees it: checked, padded on the right, every token with the number of its word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .configuration_hardkuma import HardKumaConfig, position_limit
from .words_hardkuma import ENGLISH, NUM_SURFACE_CLASSES, Language


@dataclass(frozen=True)
class Words:
    """Which word each token belongs to, by number: sums over words are additions into slots.

    Attributes:
        index: (batch, length) the slot of each token: its word's number from 0, special tokens included; the last slot for
            padding.
        slots: how many there are; one more than the longest sentence has words.

    >>> words = Words(torch.tensor([[0, 1, 1, 2]]), slots=3)
    >>> words.sum(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    tensor([[1., 5., 4.]])
    """

    index: Tensor
    slots: int

    def sum(self, values: Tensor) -> Tensor:
        """(batch, length, ...) of tokens -> (batch, slots, ...), summed over the tokens of each word."""
        batch, length = values.shape[:2]
        flat = (self.index + torch.arange(batch, device=self.index.device)[:, None] * self.slots).flatten()
        rows = values.reshape(batch * length, -1)
        sums = rows.new_zeros(batch * self.slots, rows.shape[1])
        return sums.index_add(0, flat, rows).view(batch, self.slots, *values.shape[2:])

    def mean(self, values: Tensor) -> Tensor:
        """(batch, length, size) -> (batch, slots, size), the mean over the tokens of each word."""
        return self.sum(values) / self.sum(torch.ones_like(values[..., :1])).clamp_min(1.0)

    def first(self, values: Tensor) -> Tensor:
        """(batch, length) whole numbers or bools -> (batch, slots), those of the first token of each word; 0 where there is
        no token, and in the slot of padding."""
        starts = torch.cat([torch.ones_like(self.index[:, :1]), self.index[:, 1:] - self.index[:, :-1]], dim=1) != 0
        # A mask with holes has padding in several places, whose numbers would be added up.
        starts = starts & (self.index < self.slots - 1)
        return self.sum((values * starts).float()).to(values.dtype)


@dataclass
class TokenBatch:
    """Checked inputs, padded on the right. All (batch, length), but embeddings, which are (batch, length, size).

    Exactly one of `input_ids` and `inputs_embeds` is there.
    """

    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    mask: Tensor  # bool
    content: Tensor  # bool
    token_type_ids: Tensor | None
    surface_ids: Tensor | None
    continues: Tensor  # bool, true where a token goes on with the word of the token before it
    roles: Tensor | None = None  # what the vocabulary says of tokens, see `token_roles`; None where nobody knows
    to_right: Tensor | None = None  # gather index that moved the padding to the right; None where it was there already
    to_caller: Tensor | None = None  # gather index that moves it back
    autocast: bool = False  # whether the caller wants the encoder in mixed precision

    def words(self, unit: str = "word", slots: int | None = None) -> Words:
        """The words of a selector with this unit: "token" makes every token a word of its own.

        Args:
            slots: how many to have at least; as many as are needed by default.
        """
        length = self.mask.shape[1]
        if unit == "token":
            number = torch.arange(length, device=self.mask.device).expand_as(self.mask)
        else:
            number = (self.mask & ~self.continues).long().cumsum(-1) - 1
        # A graph that is traced serves any batch: as many slots as tokens could need.
        last = length if unit == "token" or tracing() else max(int(number[:, -1].max()) + 1, 1)
        last = max(last, (slots or 0) - 1)
        return Words(torch.where(self.mask, number, last), last + 1)

    def repeated(self, sets: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Token ids, token types and embeddings with every row so many times in a row, for that many sets of its tokens."""
        given = (self.input_ids, self.token_type_ids, self.inputs_embeds)
        ids, types, embeddings = (None if tensor is None else tensor.repeat_interleave(sets, 0) for tensor in given)
        return ids, types, embeddings

    def align(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """A tensor of the caller's, (batch, ...) with the length at `dim`, padded on the right."""
        return _take(tensor, self.to_right, dim)

    def restore(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """A tensor with the length at `dim`, (batch, ...), on the caller's padding side again."""
        return _take(tensor, self.to_caller, dim)


class TokenInputs(TypedDict, total=False):
    """What may be known of tokens beside what a tokenizer gives; `HardKumaModel.forward` says what each is."""

    special_tokens_mask: Tensor | None  # (batch, length)
    surface_ids: Tensor | None  # (batch, length)
    inputs_embeds: Tensor | None  # (batch, length, size)
    continues: Tensor | None  # (batch, length)


class EncodedTokens(TypedDict, total=False):
    """One encoder pass over a batch: `HardKumaModel.encode_tokens` gives it, `forward` takes it back as `encoded`."""

    states: Tensor  # (batch, length, hidden) the last states
    layer_states: Tensor  # (batch, length, layers x hidden) of the inner layers that selectors read, ascending
    attention: Tensor  # (batch, length, 2) attention received and given, where a selector reads it
    anchor: Tensor  # (batch, dim) the sentence embedding; `forward` pools it again


def _take(tensor: Tensor, index: Tensor | None, dim: int) -> Tensor:
    """tensor.gather along `dim` with one index (batch, length) for all other axes."""
    if index is None:
        return tensor
    shape = [index.shape[0], *[1] * (tensor.ndim - 1)]  # not len, which an exporter would take for a constant
    shape[dim] = index.shape[1]
    return tensor.gather(dim, index.view(shape).expand_as(tensor))


def tracing() -> bool:
    """Whether a tracer or compiler is watching, for which no decision may depend on values."""
    return torch.jit.is_tracing() or torch.compiler.is_compiling()


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Full precision for a while, also where a caller wants the encoder in mixed precision.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    # Entering torch.autocast takes as long as several operators, so only where it is on.
    if tracing() or torch.is_autocast_enabled(device.type):
        return torch.autocast(device_type=device.type, enabled=False)
    return nullcontext()


def content_mask(config: HardKumaConfig, input_ids: Tensor, mask: Tensor | None, special: Tensor | None) -> Tensor:
    """c: the attention mask without special tokens, (batch, length) bool.

    >>> config = HardKumaConfig(special_token_ids=[0, 3])
    >>> content_mask(config, torch.tensor([[0, 7, 8, 3]]), torch.tensor([[1, 1, 1, 1]]), None)
    tensor([[False,  True,  True, False]])
    """
    mask = torch.ones_like(input_ids) if mask is None else mask
    if special is None:
        ids = torch.tensor(config.special_token_ids, dtype=input_ids.dtype, device=input_ids.device)
        special = torch.isin(input_ids, ids)
    return mask.bool() & ~special.bool()


# The role of a token of the vocabulary: it starts a word, goes on with one, or has no letter and no digit. A token that is
# a word of grammar has the role of that word (`Language.word_role`) and starts a word, too.
STARTS, CONTINUES, PUNCTUATION = 0, 1, 2
_WORD_MARKS = ("Ġ", "▁")  # of byte-pair encodings and of SentencePiece: a space before the token


def token_roles(tokenizer: PreTrainedTokenizerBase, size: int, language: Language = ENGLISH) -> Tensor:
    """(size,) the role of each token of the vocabulary, uint8.

    WordPiece marks what continues (##), byte-pair encodings and SentencePiece mark what starts (Ġ, ▁). Of a tokenizer that
    marks neither, every token starts a word.

    >>> from hardkuma import load_released
    >>> tokenizer = load_released()[1]
    >>> token_roles(tokenizer, len(tokenizer))[tokenizer.convert_tokens_to_ids(["paris", "##ian", ",", "the"])].tolist()
    [0, 1, 2, 3]
    """
    roles = torch.full((size,), STARTS, dtype=torch.uint8)
    for number, text, continues in vocabulary_tokens(tokenizer):
        if number < size and text:
            is_word = any(character.isalnum() for character in text)
            roles[number] = PUNCTUATION if not is_word else CONTINUES if continues else language.word_role(text)
    return roles


def vocabulary_tokens(tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[int, str, bool]]:
    """Number of every token, its text without the vocabulary's marks, and whether these say that it goes on with a word.

    >>> from hardkuma import load_released
    >>> tokenizer = load_released()[1]
    >>> wanted = tokenizer.convert_tokens_to_ids("##ian")
    >>> [text for number, text, continues in vocabulary_tokens(tokenizer) if number == wanted]
    ['ian']
    """
    vocabulary = tokenizer.get_vocab()
    prefixed = any(token.startswith("##") and len(token) > 2 for token in vocabulary)
    marked = any(token.startswith(_WORD_MARKS) and len(token) > 1 for token in vocabulary)
    for token, number in vocabulary.items():
        text = token.removeprefix("##") if prefixed else token.lstrip("".join(_WORD_MARKS)) if marked else token
        yield number, text, (prefixed or marked) and (token != text) == prefixed


def continuing_tokens(roles: Tensor, input_ids: Tensor) -> Tensor:
    """Which tokens go on with the word of the token before, (batch, length) bool, by the roles of the vocabulary alone.

    >>> continuing_tokens(torch.tensor([STARTS, CONTINUES, PUNCTUATION]), torch.tensor([[0, 1, 1, 2, 1]]))
    tensor([[False,  True,  True, False, False]])
    """
    role = roles[input_ids]
    before = torch.cat([torch.full_like(role[:, :1], PUNCTUATION), role[:, :-1]], dim=1)
    return (role == CONTINUES) & (before != PUNCTUATION)


def to_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The batch with every tensor on this device, those inside of nested dicts too.

    >>> to_device({"input_ids": torch.ones(1, 2), "encoded": {"states": torch.ones(1)}}, torch.device("meta"))["encoded"]
    {'states': tensor(..., device='meta', size=(1,))}
    """
    return {
        name: to_device(value, device) if isinstance(value, Mapping) else value.to(device, non_blocking=True)
        for name, value in batch.items()
    }


def attendable(mask: Tensor) -> Tensor:
    """The mask as the encoder gets it. A row without any token would make the attention's softmax NaN: it sees its first
    position instead, which pooling ignores.

    >>> attendable(torch.tensor([[True, False], [False, False]]))
    tensor([[1, 0],
            [1, 0]])
    """
    empty = ~mask.any(-1, keepdim=True)
    first = torch.arange(mask.shape[-1], device=mask.device) == 0
    return (mask | (empty & first)).long()


def prepare(
    config: HardKumaConfig,
    input_ids: Tensor | None,
    mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    roles: Tensor | None = None,
    **others: Unpack[TokenInputs],
) -> TokenBatch:
    """Check shapes, length and classes; move padding to the right.

    Without `continues` words are what the vocabulary's `roles` say (see `token_roles`), or else single tokens.
    """
    unknown = others.keys() - TokenInputs.__annotations__.keys()
    if unknown:
        raise TypeError(f"tokens have no {sorted(unknown)[0]!r}; known: {', '.join(TokenInputs.__annotations__)}.")
    inputs_embeds, continues = others.pop("inputs_embeds", None), others.get("continues")
    special, surface_ids = others.get("special_tokens_mask"), others.get("surface_ids")
    shape = _shape(input_ids, inputs_embeds)
    for name, tensor in {"attention_mask": mask, "token_type_ids": token_type_ids, **others}.items():
        if isinstance(tensor, Tensor) and tensor.shape != shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} but input_ids has {tuple(shape)}; "
                "pass both from the same tokenizer call."
            )
    limit = position_limit(config.encoder_config)
    if limit is not None and shape[1] > limit:
        raise ValueError(
            f"input of {shape[1]} tokens is longer than the {limit} that the encoder takes; "
            f"tokenise with truncation=True, max_length={config.max_seq_length or limit}, or split the text."
        )
    if surface_ids is not None and not _known(surface_ids):
        raise ValueError(f"surface_ids must lie in [0, {NUM_SURFACE_CLASSES - 1}]; make them with surface_batch.")
    if input_ids is not None:
        content = content_mask(config, input_ids, mask, special)
    else:
        assert inputs_embeds is not None
        content = torch.ones(shape, dtype=torch.bool, device=inputs_embeds.device) if mask is None else mask.bool()
        content = content if special is None else content & ~special.bool()
    mask = torch.ones_like(content) if mask is None else mask.bool()
    token_roles = None
    if input_ids is not None and config.encoder_config is not None:
        _check_vocabulary(input_ids, config.vocab_size)
    if input_ids is not None and roles is not None:
        token_roles = roles[input_ids]
        continues = continuing_tokens(roles, input_ids) if continues is None else continues
    if continues is None:
        continues = torch.zeros_like(content)
    else:  # nothing goes on with a special token, or after one
        before = torch.cat([torch.zeros_like(content[:, :1]), content[:, :-1]], dim=1)
        continues = continues.bool() & content & before
    batch = TokenBatch(
        input_ids,
        inputs_embeds,
        mask,
        content,
        token_type_ids,
        surface_ids,
        continues,
        token_roles,
        autocast=torch.is_autocast_enabled(mask.device.type),
    )
    return _pad_right(batch)


def _shape(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> torch.Size:
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give either input_ids or inputs_embeds, and not both.")
    tensor = input_ids if inputs_embeds is None else inputs_embeds
    assert tensor is not None
    name, axes = ("input_ids", "(batch, length)") if inputs_embeds is None else ("inputs_embeds", "(batch, length, size)")
    if not hasattr(tensor, "ndim"):
        raise TypeError(
            f"{name} must be a tensor {axes}, got a {type(tensor).__name__}: {tensor!r:.60}; tokenise first, "
            "model(**model.tokenizer(texts, padding=True, return_tensors='pt')), or use model.gate_records(texts) or "
            "model.highlight(texts)."
        )
    if tensor.ndim != axes.count(",") + 1 or 0 in tensor.shape:
        raise ValueError(
            f"{name} must be {axes} with at least one of each, got {tuple(tensor.shape)}; "
            "tokenise a non-empty list of texts with padding=True, return_tensors='pt'."
        )
    return tensor.shape[:2]


def _pad_right(batch: TokenBatch) -> TokenBatch:
    """Absolute positions count from the left: padding there would change the encoder's result."""
    lead = batch.mask.int().argmax(1)
    # A compiled graph serves both sides, so it always moves.
    if not tracing() and not bool(lead.any()):
        return batch
    length = batch.mask.shape[1]
    position = torch.arange(length, device=batch.mask.device)
    ahead, behind = position + lead[:, None], position - lead[:, None]
    batch.to_right = torch.where(ahead < length, ahead, ahead - length)
    batch.to_caller = torch.where(behind < 0, behind + length, behind)
    for name in (
        "input_ids",
        "inputs_embeds",
        "mask",
        "content",
        "token_type_ids",
        "surface_ids",
        "continues",
        "roles",
    ):
        tensor = getattr(batch, name)
        setattr(batch, name, None if tensor is None else batch.align(tensor))
    return batch


def _check_vocabulary(input_ids: Tensor, size: int) -> None:
    if tracing():
        return
    low, high = (int(number) for number in input_ids.aminmax())
    if low < 0 or high >= size:
        raise ValueError(
            f"input_ids has {low if low < 0 else high}, but the vocabulary is 0 to {size - 1}; "
            "tokenise with the model's own tokenizer."
        )


def _known(surface_ids: Tensor) -> bool:
    return tracing() or bool(((surface_ids >= 0) & (surface_ids < NUM_SURFACE_CLASSES)).all())
