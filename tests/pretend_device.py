"""A device that is none: its tensors live on the CPU, but count as elsewhere, with all that follows on a GPU.

    import tests.pretend_device as pretend       # once, in a process of its own: torch knows the device from then on
    model.to(pretend.DEVICE)

Numbers are real, so that code which looks at them runs, and results can be compared with the CPU's to the bit. An operation
that is given tensors of both places is an error, as it is on a GPU (but for numbers of no dimension and CPU indices, which
GPUs take too); so are numpy's hands on such a tensor, and a CPU generator that is to draw on the device. The device has
random numbers of its own, and autocast of its own, for products of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretend"
aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default)
TAKES_CPU_INDICES = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
AUTOCAST = ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "scaled_dot_product_attention")


class Random:
    """The device's generator."""

    state = torch.Generator().manual_seed(0).get_state()

    @classmethod
    @contextmanager
    def used(cls) -> Iterator[None]:
        """While it lasts, the CPU's generator is this one."""
        of_cpu = torch.get_rng_state()
        torch.set_rng_state(cls.state)
        try:
            yield
        finally:
            cls.state = torch.get_rng_state()
            torch.set_rng_state(of_cpu)


class DeviceModule(_DummyBackendModule):
    """What `torch.cuda` is to a GPU."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> Tensor:
        return Random.state.clone()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        Random.state = state.clone()

    def manual_seed_all(self, seed: int) -> None:
        Random.state = torch.Generator().manual_seed(seed).get_state()


_setup_privateuseone_for_python_backend(NAME, backend_module=DeviceModule())
DEVICE = torch.device(NAME, 0)


class PretendTensor(torch.Tensor):
    """A tensor on the device; `inner` is the same on the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[PretendTensor], inner: Tensor) -> PretendTensor:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **layout, device=DEVICE)
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, **options: Any) -> Any:
        raise TypeError(f"a tensor on {DEVICE} has no numpy array; call .cpu() first")

    __array__ = numpy

    def __repr__(self) -> str:
        return f"{self.inner!r} on {DEVICE}"


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Check where all tensors are, compute on the CPU, and say that the result is on the device."""
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    check(func, args, tensors)
    on_device = goes_to_device(func, args, kwargs)
    if on_device and isinstance(kwargs.get("generator"), torch.Generator):
        raise RuntimeError(f"{func}: expected a generator of {DEVICE}, got one of the CPU")
    theirs = {id(tensor.inner): tensor for tensor in tensors if isinstance(tensor, PretendTensor)}
    draws = on_device and torch.Tag.nondeterministic_seeded in func.tags

    def to_outer(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return theirs[id(value)] if id(value) in theirs else PretendTensor(value)

    # A view that is made in inference mode could not follow the tensor that it is of.
    with torch.inference_mode(False), Random.used() if draws else nullcontext():
        result = func(*tree_map(to_inner, args), **tree_map(to_inner, kwargs))
        result = tree_map(to_outer, result) if on_device else result
    is_ours = on_device and func.namespace == "aten" and theirs
    return return_and_correct_aliasing(func, args, kwargs, result) if is_ours else result


def check(func: Any, args: tuple, tensors: list[Tensor]) -> None:
    if func in MOVES:
        return
    if func in TAKES_CPU_INDICES:  # into a tensor of the device, and not the other way round
        tensors = [args[0], *(value for value in args[2:3] if isinstance(value, Tensor))]
        indices = [index for index in args[1] if isinstance(index, PretendTensor)]
        tensors += indices if not isinstance(args[0], PretendTensor) else []
    strangers = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor) and tensor.ndim > 0]
    if strangers and any(isinstance(tensor, PretendTensor) for tensor in tensors):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in strangers)
        raise RuntimeError(f"{func}: expected all tensors on {DEVICE}, found some on the CPU, of shape {shapes}")


def goes_to_device(func: Any, args: tuple, kwargs: dict) -> bool:
    # `to` comes as it was written in inference mode, its device by place.
    device = kwargs.get("device") or next((value for value in args if isinstance(value, torch.device)), None)
    if device is not None:
        return torch.device(device).type == NAME
    if func in MOVES:
        return isinstance(args[0], PretendTensor)
    return True  # a CPU operation never comes here


def to_inner(value: Any) -> Any:
    if isinstance(value, PretendTensor):
        return value.inner
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def in_half(operation: Any) -> Callable[..., Any]:
    """The operation as autocast has it."""
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.dtype in (torch.float32, torch.bfloat16, torch.float16)
        return value.to(torch.get_autocast_dtype(NAME)) if is_float else value

    def cast_and_run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(without):
            return operation(*tree_map(cast, args), **tree_map(cast, kwargs))

    return cast_and_run


# Operations that make tensors have none to go by; these come here.
_all = torch.library.Library("_", "IMPL")
_all.fallback(lambda func, *args, **kwargs: run(func, args, kwargs), "PrivateUse1")
_all.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_aten = torch.library.Library("aten", "IMPL")
# `torch.tensor(..., device=)` asks no subclass, and there is no fallback for tensors that are one.
_aten.impl("copy_", lambda *args, **kwargs: run(aten.copy_.default, args, kwargs), "PrivateUse1")
for _name in AUTOCAST:
    _aten.impl(_name, in_half(getattr(aten, _name)), "AutocastPrivateUse1")
