# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A language model's last layer, whose logits exist for one chunk of rows at a time.

``membound::linear_row_losses`` has the loss of each row, and its entropy. Its gradient computes the
logits again: a fourth product of matrices, in place of all logits or of gradients that are kept
from the forward to the backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from membound import _core
from membound.torch._operators import Operator, check_tensor, rows_like
from membound.torch._schemas import SCHEMAS

CHUNK_ROWS = 1024
# The options of cross_entropy, and their types.
OPTIONS: dict[str, str] = SCHEMAS["cross_entropy"]["options"]


def product_dtype(x: Any) -> torch.dtype:
    """The dtype of matrix products with x: autocast's if it is on and x is not float64."""
    kind = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


class LastLayer:
    """``x @ weight.T + bias`` over a temperature, chunk by chunk, and the gradients of all three.

    The products are torch's, in the dtype of x; gradients are summed in their own dtypes.
    """

    def __init__(
        self, x: Any, weight: Any, bias: Any, chunk_rows: int, temperature: float = 1.0
    ) -> None:
        self._x = x.reshape(-1, x.shape[-1])
        self._weight = weight.to(x.dtype)
        self._bias = None if bias is None else bias.to(x.dtype)
        self._chunk_rows, self._scale = chunk_rows, 1.0 / temperature
        self._parameters = x, weight, bias
        self.gradients: tuple[Any, ...] = (None, None, None)

    def chunks(self) -> Iterator[slice]:
        for first in range(0, len(self._x), self._chunk_rows):
            yield slice(first, first + self._chunk_rows)

    def logits(self, rows: slice) -> Any:
        if self._scale == 1.0:
            return torch.nn.functional.linear(self._x[rows], self._weight, self._bias)
        bias, share = self._bias, self._scale
        if bias is None:
            bias, share = self._weight.new_zeros(1), 0.0
        return torch.addmm(bias, self._x[rows], self._weight.mT, beta=share, alpha=self._scale)

    def make_gradients(self, wanted: Any) -> None:
        self.gradients = tuple(
            torch.zeros_like(t, memory_format=torch.contiguous_format) if want else None
            for t, want in zip(self._parameters, wanted, strict=True)
        )

    def add_gradients(self, rows: slice, dlogits: Any) -> None:
        dx, dweight, dbias = self.gradients
        if dx is not None:
            _write_product(dx.view(self._x.shape)[rows], dlogits, self._weight)
        if dweight is not None:
            _add_product(dweight, dlogits.mT, self._x[rows])
        if dbias is not None:
            dbias.add_(dlogits.sum(0))


def _write_product(out: Any, a: Any, b: Any) -> None:
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _add_product(total: Any, a: Any, b: Any) -> None:
    """Under autocast the sum keeps its own dtype, at the cost of one product's memory."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


# --- the loss and the entropy of each row ---


def _options_of(given: Any) -> tuple[dict[str, Any], float, bool]:
    """The options of cross_entropy, of logits over the temperature; it; whether entropies are."""
    *options, temperature, entropy = given
    named = dict(zip(OPTIONS, options, strict=True))
    if named["softcap"] is not None:
        named["softcap"] /= temperature
    return named, temperature, entropy


def row_losses(x, weight, bias, labels, class_weight, chunk_rows, *given):
    options, temperature, with_entropy = _options_of(given)
    layer = LastLayer(x, weight, bias, chunk_rows, temperature)
    targets = labels.reshape(-1)
    losses, entropies, lse = (one.zero_() for one in _shapes(x))
    of_rows, of_entropies, of_lse = losses.view(-1), entropies.view(-1), lse.view(-1, 2)

    def piece(rows):  # a function, so that its logits are freed before the next are made
        _, of_lse[rows] = _core.cross_entropy(
            layer.logits(rows), targets[rows], class_weight, out=of_rows[rows], return_lse=True,
            entropy=of_entropies[rows] if with_entropy else None, **options,
        )  # fmt: skip

    for rows in layer.chunks():
        piece(rows)
    return losses, entropies, lse


def _shapes(x, *_):
    rows = rows_like(x)
    return rows, torch.empty_like(rows), rows.new_empty((*rows.shape, 2))


def row_gradients(grads, saved, options, wanted, write=None):
    """dx, dweight and dbias.

    write: ``write(dloss, logits, rows, lse, of_entropy, out)`` in place of the kernel, where the
    vocabulary is sharded.
    """
    x, weight, bias, labels, class_weight, entropies, lse = saved
    chunk_rows, *given = options
    named, temperature, with_entropy = _options_of(given)
    layer = LastLayer(x, weight, bias, chunk_rows, temperature)
    layer.make_gradients(wanted)
    targets, lse = labels.reshape(-1), lse.view(-1, 2)
    dloss, dentropy = (one.reshape(-1) / temperature for one in grads)
    entropies = entropies.reshape(-1) if with_entropy else None

    def piece(rows):
        logits, of_entropy = layer.logits(rows), {}
        if with_entropy:
            of_entropy = {"entropy": entropies[rows], "dentropy": dentropy[rows]}
        if write is not None:
            write(dloss[rows], logits, rows, lse[rows], of_entropy, logits)
        else:
            given = dloss[rows], logits, targets[rows], lse[rows], class_weight
            _core.cross_entropy_backward(*given, dlogits=logits, **of_entropy, **named)
        layer.add_gradients(rows, logits)

    for rows in layer.chunks():
        piece(rows)
    return layer.gradients


def _strategies(tensors, _):
    axes = tensors["x"].ndim - 1
    return [dict.fromkeys(("x", "labels", "loss", "entropy", "lse"), at) for at in range(axes)]


ROW_LOSSES = Operator(
    name="linear_row_losses",
    tensors={
        "x": "dx", "weight": "dweight", "bias?": "dbias", "labels": None, "class_weight?": None,
    },
    options={"chunk_rows": "int", **OPTIONS, "temperature": "float", "with_entropy": "bool"},
    results={"loss": True, "entropy": True, "lse": False},
    forward=row_losses,
    shapes=_shapes,
    saves=("x", "weight", "bias", "labels", "class_weight", "entropy", "lse"),
    gradients={"dx": "x", "dweight": "weight", "dbias": "bias"},
    backward=row_gradients,
    rows=("x", "labels"),
    strategies=_strategies,
)  # fmt: skip


# --- arguments ---


def check_last_layer(op, x, weight, labels, bias, class_weight, chunk_rows):
    tensors = {
        "x": x, "weight": weight, "labels": labels, "bias": bias, "class_weight": class_weight,
    }  # fmt: skip
    for name, tensor in tensors.items():
        optional = tensor is None and name in ("bias", "class_weight")
        if not optional:
            check_tensor(op, name, tensor)
    for name, tensor in tensors.items():
        if tensor is not None and name != "labels" and not tensor.dtype.is_floating_point:
            raise TypeError(
                f"{op}: argument '{name}' must be float16, bfloat16, float32 or float64, got "
                f"{str(tensor.dtype).removeprefix('torch.')}"
            )
    if chunk_rows < 1:
        raise ValueError(f"{op}: argument 'chunk_rows' must be at least 1, got {chunk_rows}")
    if x.ndim < 1:
        raise ValueError(f"{op}: argument 'x' must have at least 1 axis, got 0")
    vocab = weight.shape[0] if weight.ndim == 2 else None
    if vocab is None or weight.shape[1] != x.shape[-1]:
        raise ValueError(
            f"{op}: argument 'weight' must have shape (vocab, {x.shape[-1]}), as wide as 'x', got "
            f"{tuple(weight.shape)}"
        )
    for name, tensor, shape in (
        ("labels", labels, x.shape[:-1]), ("bias", bias, (vocab,)),
        ("class_weight", class_weight, (vocab,)),
    ):  # fmt: skip
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"{op}: argument '{name}' must have shape {tuple(shape)}, got {tuple(tensor.shape)}"
            )
