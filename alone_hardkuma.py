"""What words mean by themselves, beside what their sentence means: the encoder's own vectors of single tokens.

With e_t the pooled state of token t alone between the special tokens of a text, scaled to length 1, u_w the sum of e_t over
the tokens of a word w, scaled to length 1, U the sum of u_w over the words of the sentence, and a its pooled state:

    "alone"     cos(u_w, a), cos(u_w, U), 1 - cos(U - u_w, a)

The first says how much of the sentence a word has by itself, the others how much of that the other words have as well. A
token is encoded alone when a model first meets it, and then remembered: these vectors belong to the encoder and not to a
sentence, so a sentence still costs one pass.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention_hardkuma import run_encoder
from .configuration_hardkuma import HardKumaConfig
from .encoders_hardkuma import embedding_table
from .inputs_hardkuma import TokenBatch, tracing
from .pooling_hardkuma import normalize, pool

TOKENS = 6144  # of one batch of tokens that are encoded alone, with those around them
_FILLING = threading.Lock()  # of the module, since a model with a lock could not be copied


class TokensAlone:
    """The vectors of single tokens that one encoder gives, as far as they have been asked for.

    They are forgotten when the encoder's weights, or the adapters in use, change (but for a change of `weight.data`, which
    torch does not count): an encoder that is being trained gives them anew in every step, without gradients. In half
    precision: a vocabulary of 30,000 tokens of 384 dimensions takes 23 MB.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> ids = model.tokenizer("Paris", return_tensors="pt")["input_ids"]
    >>> vector = TokensAlone(model.encoder, model.config).vectors(ids)[0, 1]
    >>> bool(torch.allclose(vector, model(ids).anchor_embedding[0], atol=1e-3))
    True
    """

    def __init__(self, encoder: PreTrainedModel, config: HardKumaConfig):
        self.encoder, self.config = encoder, config
        # What the vectors were made of; by token, the row of its vector, or -1; the vectors. Replaced as one: other threads
        # may be reading.
        self._known: tuple[Any, Tensor, Tensor] | None = None
        # The encoder's modules when they were last looked for: where they keep their weights and their children, and those
        # with adapters that can be switched.
        self._weights: list[dict[str, nn.Parameter | None]] = []
        self._children: list[dict[str, nn.Module | None]] = []
        self._adapted: list[nn.Module] = []

    def vectors(self, input_ids: Tensor) -> Tensor:
        """(batch, length) token ids -> (batch, length, hidden) vectors of length 1, fp32."""
        if tracing():
            if self._known is None or len(self._known[1]) != len(self._known[2]):
                raise ValueError(
                    'this model reads tokens "alone", which a compiled graph cannot encode as it meets them: call '
                    "model.remember_tokens() before torch.compile or torch.export."
                )
            _, rows, vectors = self._known
        else:
            rows, vectors = self._remember(input_ids)
        return nn.functional.embedding(rows[input_ids], vectors).float()

    def remember_all(self) -> None:
        """Encode every token of the vocabulary that is not known yet."""
        device = self.encoder.device  # "meta" for weights that are elsewhere until they are needed
        device = torch.device("cpu") if device.type == "meta" else device
        self._remember(torch.arange(len(embedding_table(self.encoder)), device=device))

    def _remember(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        made_of = self._state()
        known = self._known
        if known is None or known[0] != made_of or bool((known[1][input_ids] < 0).any()):
            with _FILLING:
                known, made_of = self._known, self._state()  # another thread may have been here
                if known is None or known[0] != made_of:
                    made_of = self._look()
                    known = (made_of, *self._nothing(input_ids.device))
                known = self._known = (made_of, *self._learn(known[1], known[2], input_ids))
        return known[1], known[2]

    def _look(self) -> Any:
        """Find the encoder's modules, and return `_state`."""
        modules = list(self.encoder.modules())
        self._adapted = [layer for layer in modules if hasattr(layer, "_disable_adapters")]
        self._weights, self._children = [part._parameters for part in modules], [part._modules for part in modules]
        for weight in (weight for place in self._weights for weight in place.values()):
            if type(weight) is not nn.Parameter and hasattr(weight, "device_mesh"):
                raise ValueError(
                    'a selector that reads tokens "alone" needs the encoder whole on each device, and it is sharded; leave '
                    '"alone" out of selector_inputs, or do not shard.'
                )
        return self._state()

    def _state(self) -> Any:
        """What the vectors hang on: the encoder's modules, where its weights are and how often they have been changed in
        place, and the adapters in use. Looked at in every call, so it must be fast."""
        children = [child for place in self._children for child in place.values()]
        weights = [weight for place in self._weights for weight in place.values() if weight is not None]
        places = [weight.data_ptr() for weight in weights]
        # Weights that were made in inference mode cannot change, and do not count.
        changes = [0 if weight.is_inference() else weight._version for weight in weights]
        adapters = [(layer.disable_adapters, tuple(layer.active_adapters)) for layer in self._adapted]  # type: ignore[arg-type]
        return children, places, changes, adapters

    def _nothing(self, device: torch.device) -> tuple[Tensor, Tensor]:
        size = len(embedding_table(self.encoder))
        with torch.inference_mode(False):  # tensors that gradients may pass by, whatever the mode of this call
            return (
                torch.full((size,), -1, dtype=torch.long, device=device),
                torch.zeros(0, self.config.hidden_size, dtype=torch.float16, device=device),
            )

    def _learn(self, rows: Tensor, vectors: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        off = torch.autocast(device_type=rows.device.type, enabled=False)
        with torch.inference_mode(False), torch.no_grad(), off:
            new = torch.unique(input_ids.clone())
            new = new[rows[new] < 0]
            step = max(1, TOKENS // (1 + sum(map(len, self.config.frame_token_ids))))
            parts = [self._encode(part).half() for part in new.split(step)]
            rows = rows.clone()
            rows[new] = len(vectors) + torch.arange(len(new), device=rows.device)
            return rows, torch.cat([vectors, *parts])

    def _encode(self, tokens: Tensor) -> Tensor:
        """(tokens,) -> (tokens, hidden): each encoded alone, between the special tokens."""
        before, behind = (tokens.new_tensor(part).expand(len(tokens), -1) for part in self.config.frame_token_ids)
        ids = torch.cat([before, tokens[:, None], behind], dim=1)
        training = [module for module in self.encoder.modules() if module.training]
        for module in training:
            module.training = False  # without dropout
        try:
            states = run_encoder(self.encoder, ids, torch.ones_like(ids)).last_hidden_state
        finally:
            for module in training:
                module.training = True
        pooled = pool(states, torch.ones_like(ids)[:, None], self.config.pooling_modes)[:, 0]
        return normalize(pooled[:, : states.shape[-1]])


def alone_measures(vectors: Tensor, anchor: Tensor, batch: TokenBatch) -> Tensor:
    """How much of its sentence each word has by itself, in three numbers that every token of the word carries.

    Args:
        vectors: (batch, length, hidden) of the tokens alone, of length 1.
        anchor: (batch, 1, hidden) the sentence's pooled state, of length 1.
        batch: its words and content.

    Returns:
        (batch, length, 3); see the equations above.

    >>> from hardkuma.inputs_hardkuma import prepare
    >>> batch = prepare(HardKumaConfig(), torch.tensor([[5, 6]]))
    >>> alone_measures(torch.eye(2)[None], torch.tensor([[[1.0, 0.0]]]), batch)[0].round(decimals=4)
    tensor([[1.0000, 0.7071, 1.0000],
            [0.0000, 0.7071, 0.0000]])
    """
    content = batch.content.float()
    # All of it by products of tokens with tokens and with a, so that what is (batch, length, hidden) is read and never
    # written. `joins` sums over the tokens of a word.
    joins = batch.same_word * content[:, None]
    products = joins.bmm(vectors.bmm(vectors.transpose(1, 2)))  # of words with tokens
    scales = (products * joins).sum(-1).clamp_min(1e-12).rsqrt() * content  # 1 / length of the word's sum
    along = anchor.bmm(vectors.transpose(1, 2)).transpose(1, 2)  # in this order four times as fast
    with_anchor = joins.bmm(along)[..., 0] * scales  # cos(u_w, a)
    with_total = products.bmm(scales[..., None])[..., 0] * scales  # u_w U
    firsts = ~batch.continues
    size = (with_total * firsts).sum(-1, keepdim=True)  # |U|^2
    total_with_anchor = (with_anchor * firsts).sum(-1, keepdim=True)
    # A word that is all there is leaves nothing, and nothing has no direction: its cosine counts as 0.
    left = (size - 2 * with_total + 1).clamp_min(0.0).sqrt()
    rest = torch.where(left > 1e-3, (total_with_anchor - with_anchor) / left.clamp_min(1e-3), 0.0)
    measures = [with_anchor, with_total * size.clamp_min(1e-12).rsqrt(), 1 - rest]
    return torch.stack(measures, dim=-1) * content[..., None]
