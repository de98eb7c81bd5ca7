# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The fused ops of membound with their fused gradients; shapes and dtypes are as in membound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from membound import _core
from membound._core import NDArray
from membound.autograd._tensor import Tensor, data_of, from_rules, needs_grad, record, tensor_of

Table = Tensor | NDArray | None


def _constant(function: str, name: str, x: Any) -> Any:
    """Return the array of an argument that has no gradient; what is no tensor as it is."""
    if needs_grad(x):
        raise ValueError(
            f"{function}: argument '{name}' must not require grad, as it has no gradient: pass "
            f"{name}.detach()"
        )
    return x.data if isinstance(x, Tensor) else x


def _optional(function: str, name: str, x: Any) -> Any:
    return None if x is None else data_of(function, name, x)


def softmax(
    x: Tensor, mask: Table = None, *, scale: float = 1.0, causal_offset: int | None = None
) -> Tensor:
    """Return the softmax of ``scale * x + mask`` over the last axis: ``membound.softmax``.

    Args:
        x: (..., cols), floats.
        mask: bool, False drops an element; or floats that are added, with a gradient if it
            requires grad. It broadcasts to x.
        scale: multiplies x.
        causal_offset: row i keeps columns j <= i + causal_offset; None keeps all.

    Raises:
        ValueError, TypeError: a shape, device or dtype that does not fit.

    >>> ag.softmax(ag.Tensor([[0.0, 0.0]]))
    Tensor(array([[0.5, 0.5]]))
    """
    x = tensor_of("softmax", x)
    added = _optional("softmax", "mask", mask)
    y = _core.softmax(x.data, added, scale=scale, causal_offset=causal_offset)
    return from_rules(
        "softmax",
        y,
        (x, lambda dy: _core.softmax_backward(dy, y, scale=scale)),
        (mask, lambda dy: _core.softmax_backward(dy, y)),
    )


def cross_entropy(
    logits: Tensor,
    labels: Tensor | NDArray,
    weight: Table = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "none",
) -> Tensor:
    """Return the cross entropy of rows of logits and their labels: ``membound.cross_entropy``.

    Args:
        logits: (..., cols), floats.
        labels: (...), int32 or int64, the column of each row; rows of ignore_index do not count.
        weight: (cols,) of each class, without a gradient.
        reduction: "none" for the loss of each row, "sum" or "mean" for one number.
        ignore_index, label_smoothing, z_loss, softcap: as in ``membound.cross_entropy``.

    Returns:
        The loss in float32, float64 for float64: (...) or ().

    Raises:
        ValueError, TypeError: a shape, device, option or dtype that does not fit; a weight that
            requires grad.

    >>> ag.cross_entropy(ag.Tensor([[0.0, 0.0]]), nd.asarray([1]), reduction="mean")
    Tensor(array(0.69314718))
    """
    rows = tensor_of("cross_entropy", logits).data
    of_rows = _constant("cross_entropy", "labels", labels)
    of_classes = _constant("cross_entropy", "weight", weight)
    options: dict[str, Any] = {
        "ignore_index": ignore_index, "label_smoothing": label_smoothing, "z_loss": z_loss,
        "softcap": softcap, "reduction": reduction,
    }  # fmt: skip
    loss, lse = _core.cross_entropy(rows, of_rows, of_classes, return_lse=True, **options)

    def backward(_: Sequence[bool], dy: NDArray) -> tuple[NDArray]:
        return (_core.cross_entropy_backward(dy, rows, of_rows, lse, of_classes, **options),)

    return record("cross_entropy", loss, (logits,), backward)


def rms_norm(
    x: Tensor,
    weight: Table = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> Tensor:
    """Return ``x / sqrt(mean(x * x) + eps) * (weight + weight_offset)``: ``membound.rms_norm``.

    Args:
        x: (..., cols), floats; the mean is over the last axis.
        weight: (cols,), or (heads, cols) for x of (..., heads, cols); None for no weight.
        eps, weight_offset, rounding: as in ``membound.rms_norm``.

    Raises:
        ValueError, TypeError: a shape, device, option or dtype that does not fit.

    >>> ag.rms_norm(ag.Tensor([[3.0, 4.0]]), eps=12.5)
    Tensor(array([[0.6, 0.8]]))
    """
    own = tensor_of("rms_norm", x).data
    factor = _optional("rms_norm", "weight", weight)
    how: dict[str, Any] = {"weight_offset": weight_offset, "rounding": rounding}
    y, rstd = _core.rms_norm(own, factor, eps=eps, return_rstd=True, **how)

    def backward(needs: Sequence[bool], dy: NDArray) -> Sequence[NDArray | None]:
        need = {"need_dx": needs[0], "need_dweight": needs[1]}
        return _core.rms_norm_backward(dy, own, factor, rstd, **how, **need)

    return record("rms_norm", y, (x, weight), backward)


def layer_norm(
    x: Tensor,
    weight: Table = None,
    bias: Table = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> Tensor:
    """Return x less its mean, over its deviation, times weight plus bias: ``membound.layer_norm``.

    Args:
        x: (..., cols), floats; mean and deviation are over the last axis.
        weight, bias: (cols,), or (heads, cols) for x of (..., heads, cols); None for none.
        eps, weight_offset: as in ``membound.layer_norm``; torch has an eps of 1e-5.

    Raises:
        ValueError, TypeError: a shape, device, option or dtype that does not fit.

    >>> ag.layer_norm(ag.Tensor([[1.0, 5.0]]), eps=12.0)
    Tensor(array([[-0.5,  0.5]]))
    """
    own = tensor_of("layer_norm", x).data
    factor = _optional("layer_norm", "weight", weight)
    y, mean, rstd = _core.layer_norm(
        own,
        factor,
        _optional("layer_norm", "bias", bias),
        eps=eps,
        weight_offset=weight_offset,
        return_stats=True,
    )

    def backward(needs: Sequence[bool], dy: NDArray) -> Sequence[NDArray | None]:
        return _core.layer_norm_backward(
            dy,
            own,
            factor,
            mean,
            rstd,
            weight_offset=weight_offset,
            need_dx=needs[0],
            need_dweight=needs[1],
            need_dbias=needs[2],
        )

    return record("layer_norm", y, (x, weight, bias), backward)


def rope(
    q: Tensor, k: Tensor | None = None, cos: Table = None, sin: Table = None, **options: Any
) -> Any:
    """Return q and k turned by the angles of their positions: ``membound.rope``.

    Args:
        q: (batch, seq, heads, head_dim), floats, or in another layout.
        k: likewise, but for the number of heads; None for q alone.
        cos, sin: tables, without a gradient.
        options: as in ``membound.rope``, but out, k_out and stream: freqs, position_ids, layout,
            interleaved and so on, without a gradient.

    Returns:
        A Tensor like q, with k a pair.

    Raises:
        ValueError, TypeError: a shape, device, option or dtype that does not fit; tables that
            require grad.

    >>> x = ag.Tensor([[[[1.0, 0.0]]]])
    >>> ag.rope(x, None, nd.asarray([[0.6]]), nd.asarray([[0.8]]))
    Tensor(array([[[[0.6, 0.8]]]]))
    """
    for name in ("out", "k_out", "stream", "device"):
        if name in options:
            raise TypeError(f"rope: argument '{name}' is not taken here, got {options[name]!r}")
    tensors = [tensor_of("rope", x) for x in (q, k) if x is not None]
    tables = [_constant("rope", name, x) for name, x in (("cos", cos), ("sin", sin))]
    options = {name: _constant("rope", name, value) for name, value in options.items()}
    arrays = [x.data for x in tensors]
    found = _core.rope(arrays[0], arrays[1] if k is not None else None, *tables, **options)

    def backward(_: Sequence[bool], *given: NDArray | None) -> Sequence[NDArray | None]:
        came = [dy for dy in given if dy is not None]
        turned = _core.rope_backward(*came, *[None] * (2 - len(came)), *tables, **options)
        each = iter(turned if isinstance(turned, tuple) else (turned,))
        return [None if dy is None else next(each) for dy in given]

    return record("rope", found, tensors, backward)


def gated_activation(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    kind: str = "silu",
    packing: str = "halves",
    alpha: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Table = None,
) -> Tensor:
    """Return ``act(gate) * up``, the middle of a gated block: ``membound.gated_activation``.

    Args:
        gate: (..., cols) floats with up; without, (..., 2 * cols), packed as packing says, or with
            packing="gate" (..., cols), which nothing multiplies.
        up: the shape and dtype of gate.
        kind: "silu", "gelu", "gelu_tanh", "sigmoid", "relu", "relu2", "situ", or another name.
        row_scale: a factor of each row, without a gradient.
        packing, alpha, limit, up_offset: as in ``membound.gated_activation``.

    Returns:
        A Tensor (..., cols).

    Raises:
        ValueError, TypeError: a shape, device, option or dtype that does not fit; a row_scale that
            requires grad.

    >>> ag.gated_activation(ag.Tensor([[1.0, 2.0, 3.0, 4.0]]), kind="relu")
    Tensor(array([[3., 8.]]))
    """
    inputs = [tensor_of("gated_activation", x) for x in (gate, up) if x is not None]
    arrays = [x.data for x in inputs]
    scales = _constant("gated_activation", "row_scale", row_scale)
    how: dict[str, Any] = {
        "kind": kind, "packing": packing, "alpha": alpha, "limit": limit, "up_offset": up_offset,
        "row_scale": scales,
    }  # fmt: skip
    y = _core.gated_activation(*arrays, **how)

    def backward(needs: Sequence[bool], dy: NDArray) -> Sequence[NDArray | None]:
        need = {"need_dgate": needs[0], "need_dup": needs[1]} if len(needs) == 2 else {}
        found = _core.gated_activation_backward(dy, *arrays, **how, **need)
        return found if isinstance(found, tuple) else (found,)

    return record("gated_activation", y, inputs, backward)


def silu_and_mul(gate: Tensor, up: Tensor | None = None, **options: Any) -> Tensor:
    """Return ``silu(gate) * up``: ``gated_activation`` with kind="silu" and its other options.

    >>> ag.silu_and_mul(ag.Tensor([[0.0, 5.0]]))
    Tensor(array([[0.]]))
    """
    return gated_activation(gate, up, kind="silu", **options)


def embedding(
    ids: Tensor | NDArray,
    weight: Tensor,
    *,
    padding_idx: int | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Return the rows of a table that ids name, times scale: ``membound.embedding``.

    Args:
        ids: (...), int32 or int64; those outside of the table give zeros.
        weight: (vocab, dim), floats.
        padding_idx: the id whose row gets no gradient.
        scale: multiplies the rows.

    Returns:
        A Tensor (..., dim).

    Raises:
        ValueError, TypeError: a shape, device or dtype that does not fit.

    >>> ag.embedding(nd.asarray([1, 0]), ag.Tensor([[1.0], [2.0]]))
    Tensor(array([[2.],
           [1.]]))
    """
    table = tensor_of("embedding", weight)
    rows = _constant("embedding", "ids", ids)
    how: dict[str, Any] = {"padding_idx": padding_idx, "scale": scale}
    y = _core.embedding(rows, table.data, **how)
    vocab = table.shape[0]

    def backward(_: Sequence[bool], dy: NDArray) -> tuple[NDArray]:
        return (_core.embedding_backward(dy, rows, vocab, **how),)

    return record("embedding", y, (table,), backward)
