# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What holds parameters: a base class that finds them, a linear layer, layers in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound.ndarray as nd
from membound._core import Device, DType
from membound.autograd._tensor import Tensor, matmul


class Module:
    """An object with parameters: the leaves among its attributes that require grad.

    >>> class Scale(ag.Module):
    ...     def __init__(self):
    ...         self.factor = ag.Tensor([2.0], requires_grad=True)
    >>> len(Scale().parameters())
    1
    """

    def parameters(self) -> list[Tensor]:
        """Return each parameter once, those of modules, lists, tuples and dicts too, in order."""
        found, seen, waiting = [], set(), [self]
        while waiting:
            value: Any = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
                found.append(value)
            elif isinstance(value, Module):
                waiting += reversed(vars(value).values())
            elif isinstance(value, list | tuple | dict):
                waiting += reversed(list(value.values() if isinstance(value, dict) else value))
        return found


class Linear(Module):
    """``x @ weight + bias`` for x of (..., in_features).

    Args:
        in_features, out_features: lengths of the last axis of x and of the result.
        generator: where weights come from, a ``membound.ndarray.Generator``: uniform up to
            ``in_features ** -0.5``, as torch's.
        bias: whether there is one.
        dtype, device: of ``weight`` (in_features, out_features) and ``bias`` (out_features,).

    >>> layer = ag.Linear(2, 3, generator=nd.Generator(0))
    >>> layer(nd.ones((5, 2), dtype=nd.float32)).shape
    (5, 3)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        generator: nd.Generator,
        bias: bool = True,
        dtype: DType | str = nd.float32,
        device: Device | str | None = None,
    ) -> None:
        bound = in_features**-0.5
        kind: dict[str, Any] = {"low": -bound, "high": bound, "dtype": dtype, "device": device}
        weight = generator.uniform((in_features, out_features), **kind)
        self.weight = Tensor(weight, requires_grad=True)
        self.bias: Tensor | None = None
        if bias:
            self.bias = Tensor(generator.uniform((out_features,), **kind), requires_grad=True)

    def __call__(self, x: Any) -> Tensor:
        """Return a Tensor (..., out_features); another last axis of x raises ValueError."""
        y = matmul(x, self.weight)
        return y if self.bias is None else y + self.bias


class Sequential(Module):
    """Layers and functions, each called with the result of the one before.

    >>> model = ag.Sequential(ag.Linear(2, 3, generator=nd.Generator(0)), ag.relu)
    >>> len(model.parameters())
    2
    """

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        self.layers = layers

    def __call__(self, x: Any) -> Any:
        """Return what the last layer gives."""
        for layer in self.layers:
            x = layer(x)
        return x
