# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""SGD and AdamW: the numbers of torch.optim, in place."""

from __future__ import annotations

from collections.abc import Iterable

import membound.ndarray as nd
from membound._core import NDArray
from membound.arrays import type_name
from membound.autograd._tensor import Tensor


class _Optimizer:
    """Parameters, and the numbers of an update."""

    def __init__(self, parameters: Iterable[Tensor], **numbers: float) -> None:
        name = type(self).__name__
        self.parameters = list(parameters)
        for x in self.parameters:
            if not isinstance(x, Tensor) or not (x.requires_grad and x.is_leaf):
                raise TypeError(
                    f"{name}: argument 'parameters' must have leaves that require grad, got "
                    f"{'another Tensor' if isinstance(x, Tensor) else type_name(x)}"
                )
        if not self.parameters or len(set(map(id, self.parameters))) < len(self.parameters):
            raise ValueError(
                f"{name}: argument 'parameters' must have one Tensor or more, each once, got "
                f"{len(self.parameters)}"
            )
        for key, number in numbers.items():
            if not number >= 0:
                raise ValueError(f"{name}: argument '{key}' must not be negative, got {number}")

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for x in self.parameters:
            x.grad = None


class SGD(_Optimizer):
    """Gradient descent, with momentum if wanted: the numbers of torch.optim.SGD.

    Args:
        parameters: leaves that require grad, each once.
        lr: the step for a gradient of 1; may be changed between steps.
        momentum: how much of the step before is kept.
        weight_decay: times the parameter, is added to its gradient.
        nesterov: looks ahead by one step of momentum.

    Raises:
        ValueError: no parameters, one twice, negative numbers, nesterov without momentum.
        TypeError: what is no leaf that requires grad.

    >>> x = ag.Tensor([1.0], requires_grad=True)
    >>> optimizer = ag.SGD([x], lr=0.25)
    >>> ag.sum(x * x).backward()
    >>> optimizer.step()
    >>> x.data
    array([0.5])
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and not momentum:
            raise ValueError("SGD: argument 'nesterov' must be False without momentum, got True")
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.nesterov = nesterov
        self._steps: dict[int, NDArray] = {}  # the step before, by place among the parameters

    def step(self) -> None:
        """Update each parameter that has a gradient."""
        for at, x in enumerate(self.parameters):
            if x.grad is None:
                continue
            wide = nd.astype(x.data, _state_dtype(x), copy=False)
            step = nd.astype(x.grad, wide.dtype, copy=False)
            if self.weight_decay:
                step = step + self.weight_decay * wide
            if self.momentum:
                before = self._steps.get(at)
                kept = self.momentum * before + step if before is not None else step.copy()
                self._steps[at] = kept
                step = step + self.momentum * kept if self.nesterov else kept
            x.data[...] = wide - self.lr * step


class AdamW(_Optimizer):
    """Adam with decoupled weight decay: the numbers of torch.optim.AdamW.

    Moments are float32, float64 for float64.

    Args:
        parameters: leaves that require grad, each once.
        lr: the size of a step; may be changed between steps.
        betas: how much is kept of the means of gradients and of their squares.
        eps: is added to the root of the mean of squares.
        weight_decay: times lr, is the part of a parameter that a step takes away.

    Raises:
        ValueError: no parameters, one twice, negative numbers, betas of 1 or more.
        TypeError: what is no leaf that requires grad.

    >>> x = ag.Tensor([1.0], requires_grad=True)
    >>> optimizer = ag.AdamW([x], lr=0.5, weight_decay=0.0)
    >>> ag.sum(x * x).backward()
    >>> optimizer.step()
    >>> round(x.item(), 6)
    0.5
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, beta1=betas[0], beta2=betas[1], **numbers)
        if max(betas) >= 1:
            raise ValueError(f"AdamW: argument 'betas' must be below 1, got {betas}")
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self._moments: dict[int, tuple[NDArray, NDArray]] = {}  # by place among the parameters
        self._counts = [0] * len(self.parameters)  # steps that each has taken

    def step(self) -> None:
        """Update all parameters that have a gradient, in one call for each number of steps."""
        calls: dict[int, list[tuple[NDArray, ...]]] = {}
        for at, x in enumerate(self.parameters):
            if x.grad is None:
                continue
            if at not in self._moments:
                kind = {"dtype": _state_dtype(x)}
                self._moments[at] = nd.zeros_like(x.data, **kind), nd.zeros_like(x.data, **kind)
            self._counts[at] += 1
            calls.setdefault(self._counts[at], []).append((x.data, x.grad, *self._moments[at]))
        for count, arrays in calls.items():
            nd.adamw(
                *map(list, zip(*arrays, strict=True)),
                lr=self.lr,
                beta1=self.betas[0],
                beta2=self.betas[1],
                eps=self.eps,
                weight_decay=self.weight_decay,
                step=count,
            )


def _state_dtype(x: Tensor) -> nd.DType:
    """Return the dtype to compute an update in."""
    return nd.result_type(x.dtype, nd.float32)
