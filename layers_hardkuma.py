"""The layers of an encoder as `selector_layer` says them: by number, from the end, or as a fraction of the depth."""

from __future__ import annotations


def is_last(layer: int | float) -> bool:
    """Whether a layer of `selector_layer` is the last one: -1, or the whole depth.

    >>> is_last(-1), is_last(1.0), is_last(1)
    (True, True, False)
    """
    return layer == -1 or (isinstance(layer, float) and layer == 1.0)


def state_name(layer: int | float) -> str:
    """The feature that holds the states of a layer, as the config says it.

    >>> state_name(-1), state_name(1.0), state_name(0.5), state_name(0.0)
    ('state', 'state', 'state 0.5', 'state 0')
    """
    return "state" if is_last(layer) else f"state {layer or 0}"  # 0 and 0.0 are one layer, and equal as keys


def norm_name(layer: int | float) -> str:
    """The feature that holds the norms of these states.

    >>> norm_name(4)
    'norm of state 4'
    """
    return f"norm of {state_name(layer)}"


def layer_number(layer: int | float, depth: int) -> int:
    """Which of the states 0 (the embeddings) to `depth` a layer of `selector_layer` is.

    >>> layer_number(4, 6), layer_number(-2, 6), layer_number(0.5, 12), layer_number(0.66, 6)
    (4, 5, 6, 4)
    """
    if isinstance(layer, float):
        return round(layer * depth)
    number = layer if layer >= 0 else depth + 1 + layer
    if not 0 <= number <= depth:
        raise ValueError(f"selector_layer is {layer}, but the encoder has states 0 to {depth}.")
    return number
