# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The tensor: an array with a place in the graph. Its operators, shapes and indices."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import membound.ndarray as nd
from membound import _core
from membound._core import Device, DType, NDArray
from membound.arrays import type_name
from membound.autograd._graph import Backward, Edge, Node, Walk, is_recording
from membound.ndarray._arguments import array_of, axes_of
from membound.ndarray._indexing import axes_taken

Operand = Any  # Tensor, NDArray, or a number of Python
Rule = Callable[[NDArray], NDArray]  # from the gradient of a result to that of an input
_OPERANDS = (NDArray, bool, int, float)


class Tensor:
    """An array, ``data``, through whose operations gradients can be had.

    Operators and the functions of ``membound.autograd`` take Tensors, NDArrays and numbers, which
    broadcast and promote as in ``membound.ndarray``. Comparisons give an NDArray of bool. An
    operation of a Tensor that requires grad saves arrays without a copy: do not write to ``data``
    between it and ``backward``. There is no gradient of a gradient.

    Args:
        data: what ``membound.ndarray.asarray`` takes; the memory of an array is shared.
        requires_grad: makes it a leaf, whose ``grad`` ``backward`` adds to; for dtypes of floats.
        dtype, device: as of ``asarray``: numbers become float64 on the CPU by default.

    Raises:
        TypeError: requires_grad with integers or bool.

    >>> x = ag.Tensor([[1.0, 2.0]], requires_grad=True)
    >>> ag.sum(x * x).backward()
    >>> x.grad
    array([[2., 4.]])
    """

    __slots__ = ("__weakref__", "_edge", "data", "grad")
    __array_ufunc__ = None  # an operator with a NumPy array is the Tensor's, which refuses it

    data: NDArray
    grad: NDArray | None
    _edge: Edge | None

    def __init__(
        self,
        data: Any,
        *,
        requires_grad: bool = False,
        dtype: DType | str | None = None,
        device: Device | str | None = None,
    ) -> None:
        is_plain = isinstance(data, NDArray) and dtype is None and device is None
        self.data = data if is_plain else nd.asarray(data, dtype=dtype, device=device)
        self.grad = self._edge = None
        if requires_grad:
            if self.dtype.kind != "real floating":
                raise TypeError(
                    f"Tensor: argument 'data' must be of floats to require grad, got {self.dtype}"
                )
            self._edge = Node("leaf", leaf=weakref.ref(self)), 0

    @property
    def requires_grad(self) -> bool:
        """Whether ``backward`` of what comes of it goes through it."""
        return self._edge is not None

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made it."""
        return self._edge is None or self._edge[0].leaf is not None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> DType:
        return self.data.dtype  # type: ignore[return-value]

    @property
    def device(self) -> Device:
        return self.data.device  # type: ignore[return-value]

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    def item(self) -> Any:
        """Return the number of a tensor of one element; this waits for a GPU."""
        return self.data.item()

    def tolist(self) -> Any:
        """Return nested lists of numbers; this waits for a GPU."""
        return self.data.tolist()

    def detach(self) -> Tensor:
        """Return a tensor on the same data that requires no grad."""
        return Tensor(self.data)

    def backward(self, gradient: NDArray | None = None) -> None:
        """Add the gradient of this tensor to ``grad`` of each leaf that it comes from.

        The graph is freed on the way, so that this can be done once.

        Args:
            gradient: that of this tensor: its shape, dtype and device; 1 by default, of a tensor
                of one element.

        Raises:
            ValueError: a tensor that does not require grad, or has several elements and no
                gradient; a gradient of another shape or device.
            TypeError: a gradient that is no NDArray, or of another dtype.
            RuntimeError: a graph that was freed.

        >>> x = ag.Tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).backward(nd.asarray([1.0, 10.0]))
        >>> x.grad
        array([ 2., 40.])
        """
        Walk("backward", [_root("backward", self, gradient)], None).run()

    def reshape(self, shape: tuple[int, ...]) -> Tensor:
        """As the function of this name."""
        return reshape(self, shape)

    def permute_dims(self, axes: tuple[int, ...]) -> Tensor:
        """As the function of this name."""
        return permute_dims(self, axes)

    def broadcast_to(self, shape: tuple[int, ...]) -> Tensor:
        """As the function of this name."""
        return broadcast_to(self, shape)

    @property
    def T(self) -> Tensor:  # noqa: N802 - the name of the standard
        """The transpose of a matrix; other ranks raise ValueError."""
        return from_rules("T", self.data.T, (self, lambda dy: dy.mT))

    @property
    def mT(self) -> Tensor:  # noqa: N802
        """Matrices (..., N, M) of (..., M, N)."""
        return from_rules("mT", self.data.mT, (self, lambda dy: dy.mT))

    def __getitem__(self, key: Any) -> Tensor:
        return _indexed(self, key)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[at] for at in range(len(self)))

    def __len__(self) -> int:
        return len(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("Tensor: NumPy takes the array in it: numpy.asarray(tensor.data)")

    def __bool__(self) -> bool:
        return bool(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __float__(self) -> float:
        return float(self.data)

    def __reduce__(self) -> Any:
        """Copy and pickle leaves: a copy has a gradient of its own."""
        if not self.is_leaf:
            raise TypeError(
                "Tensor: only a leaf can be copied or pickled, got the result of a recorded "
                "operation: use detach()"
            )
        return _leaf, (self.data, self.requires_grad, self.grad)

    def __repr__(self) -> str:
        return f"Tensor({self.data!r}{', requires_grad=True' if self.requires_grad else ''})"

    def __add__(self, other: Operand) -> Tensor:
        return _add(self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return _add(other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return _subtract(self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return _subtract(other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return _multiply(self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return _multiply(other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return _divide(self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _divide(other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return _pow(self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return _pow(other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return matmul(other, self)

    def __pos__(self) -> Tensor:
        return from_rules("positive", +self.data, (self, same))

    def __neg__(self) -> Tensor:
        return from_rules("negative", -self.data, (self, lambda dy: -dy))

    def __abs__(self) -> Tensor:
        x = self.data
        return from_rules("abs", abs(x), (self, lambda dy: dy * nd.sign(x)))

    def __eq__(self, other: object) -> NDArray:  # type: ignore[override]
        return nd.equal(self.data, data_of("equal", "x2", other))

    def __ne__(self, other: object) -> NDArray:  # type: ignore[override]
        return nd.not_equal(self.data, data_of("not_equal", "x2", other))

    def __lt__(self, other: Operand) -> NDArray:
        return nd.less(self.data, data_of("less", "x2", other))

    def __le__(self, other: Operand) -> NDArray:
        return nd.less_equal(self.data, data_of("less_equal", "x2", other))

    def __gt__(self, other: Operand) -> NDArray:
        return nd.greater(self.data, data_of("greater", "x2", other))

    def __ge__(self, other: Operand) -> NDArray:
        return nd.greater_equal(self.data, data_of("greater_equal", "x2", other))

    __hash__ = object.__hash__


def _leaf(data: NDArray, requires_grad: bool, grad: NDArray | None) -> Tensor:
    x = Tensor(data, requires_grad=requires_grad)
    x.grad = grad
    return x


def _root(function: str, x: Tensor, gradient: NDArray | None) -> tuple[Edge, NDArray]:
    """Return the edge that a walk begins at, with its gradient."""
    if x._edge is None:
        raise ValueError(f"{function}: expected a tensor that requires grad, got one that does not")
    if gradient is None:
        if x.size != 1:
            raise ValueError(
                f"{function}: argument 'gradient' must be given for a tensor of several elements, "
                f"got None for shape {x.shape}"
            )
        return x._edge, nd.ones_like(x.data)
    if not isinstance(gradient, NDArray) or gradient.dtype != x.dtype:
        got = gradient.dtype if isinstance(gradient, NDArray) else type_name(gradient)
        raise TypeError(
            f"{function}: argument 'gradient' must be an NDArray of {x.dtype}, got {got}"
        )
    if gradient.shape != x.shape or gradient.device != x.device:
        raise ValueError(
            f"{function}: argument 'gradient' must have shape {x.shape} on {x.device}, got "
            f"{gradient.shape} on {gradient.device}"
        )
    return x._edge, gradient


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    gradients: NDArray | Sequence[NDArray | None] | None = None,
) -> Any:
    """Return the gradients of outputs with respect to inputs; no ``grad`` is written.

    Only what lies between them is computed. The graph is freed on the way, as by ``backward``.

    Args:
        outputs: one Tensor or several, whose gradients add up.
        inputs: one or several, leaves or what was computed of them.
        gradients: one for each of outputs, as of ``Tensor.backward``.

    Returns:
        An NDArray with the shape, dtype and device of each input: one, or a tuple of them.

    Raises:
        What ``Tensor.backward`` raises, and ValueError for an input that the outputs do not
        come from.

    >>> x = ag.Tensor(3.0, requires_grad=True)
    >>> ag.grad(x * x, x)
    array(6.)
    """
    ends, starts = _tensors("outputs", outputs), _tensors("inputs", inputs)
    if gradients is None:
        gradients = [None] * len(ends)
    elif isinstance(gradients, NDArray):
        gradients = [gradients]
    if len(gradients) != len(ends):
        raise ValueError(
            f"grad: argument 'gradients' must have one for each of {len(ends)} outputs, got "
            f"{len(gradients)}"
        )
    roots = [_root("grad", x, dy) for x, dy in zip(ends, gradients, strict=True)]
    edges = [x._edge for x in starts]
    walk = Walk("grad", roots, [edge for edge in edges if edge is not None])
    reached = set(walk.order)
    for at, edge in enumerate(edges):
        if edge is None or edge[0] not in reached:
            raise ValueError(
                f"grad: argument 'inputs' must have tensors that the outputs come from, got one "
                f"at {at} that they do not"
            )
    found = walk.run()
    # A result of an operation with several may be one that the outputs do not depend on.
    result = tuple(
        found[edge] if edge in found else nd.zeros_like(x.data)
        for edge, x in zip(edges, starts, strict=True)
    )
    return result[0] if isinstance(inputs, Tensor) else result


def _tensors(name: str, several: Tensor | Sequence[Tensor]) -> list[Tensor]:
    found = [several] if isinstance(several, Tensor) else list(several)
    for x in found:
        if not isinstance(x, Tensor):
            raise TypeError(f"grad: argument '{name}' must be Tensors, got {type_name(x)}")
    return found


def data_of(function: str, name: str, x: Operand) -> Any:
    """Return the array of a Tensor; NDArrays and numbers as they are."""
    if isinstance(x, Tensor):
        return x.data
    if isinstance(x, _OPERANDS):
        return x
    raise TypeError(
        f"{function}: argument '{name}' must be a Tensor, an NDArray or a number, got "
        f"{type_name(x)}"
    )


def tensor_of(function: str, x: Any) -> Tensor:
    """Return x, an NDArray as a Tensor."""
    return x if isinstance(x, Tensor) else Tensor(array_of(function, "x", x))


def needs_grad(x: Any) -> bool:
    """Whether x is a Tensor that requires grad."""
    return isinstance(x, Tensor) and x._edge is not None


def record(name: str, results: Any, inputs: Sequence[Any], backward: Backward) -> Any:
    """Return an array, or a tuple of arrays, as Tensors that know how they were made.

    inputs are Tensors and what else there is, of which none needs a gradient.
    """
    arrays = results if isinstance(results, tuple) else (results,)
    tensors = tuple(map(Tensor, arrays))
    edges = [x._edge if isinstance(x, Tensor) else None for x in inputs]
    if is_recording() and any(edges):
        node = Node(name, edges, backward, len(arrays))
        for at, tensor in enumerate(tensors):
            tensor._edge = node, at
    return tensors if isinstance(results, tuple) else tensors[0]


def from_rules(name: str, result: NDArray, *pairs: tuple[Any, Rule]) -> Tensor:
    """Return a result as a Tensor, with a rule for the gradient of each input.

    Rules of inputs that require none are dropped, with what they hold. A gradient is summed over
    axes that its input was broadcast along.
    """
    kept = [(x, rule) for x, rule in pairs if needs_grad(x)]
    targets = [(rule, x.data.shape, x.data.dtype) for x, rule in kept]

    def backward(needs: Sequence[bool], dy: NDArray) -> list[NDArray | None]:
        return [
            _summed_to(shape, dtype, rule(dy)) if need else None
            for need, (rule, shape, dtype) in zip(needs, targets, strict=True)
        ]

    return record(name, result, [x for x, _ in kept], backward)


def _summed_to(shape: tuple[int, ...], dtype: DType, gradient: NDArray) -> NDArray:
    if gradient.shape != shape:
        more = gradient.ndim - len(shape)
        axes = (at for at, length in enumerate(shape, more) if length != gradient.shape[at])
        summed = nd.sum(gradient, axis=(*range(more), *axes), keepdims=True)
        gradient = summed.reshape(shape)
    return gradient if gradient.dtype == dtype else nd.astype(gradient, dtype)


def same(dy: NDArray) -> NDArray:
    """Return the gradient: the rule of sums and of what is undone by summing to a shape."""
    return dy


def _both(function: str, x1: Operand, x2: Operand) -> tuple[Any, Any]:
    return data_of(function, "x1", x1), data_of(function, "x2", x2)


def _add(x1: Operand, x2: Operand) -> Tensor:
    a, b = _both("add", x1, x2)
    return from_rules("add", nd.add(a, b), (x1, same), (x2, same))


def _subtract(x1: Operand, x2: Operand) -> Tensor:
    a, b = _both("subtract", x1, x2)
    return from_rules("subtract", nd.subtract(a, b), (x1, same), (x2, lambda dy: -dy))


def _multiply(x1: Operand, x2: Operand) -> Tensor:
    a, b = _both("multiply", x1, x2)
    return from_rules(
        "multiply", nd.multiply(a, b), (x1, lambda dy: dy * b), (x2, lambda dy: dy * a)
    )


def _divide(x1: Operand, x2: Operand) -> Tensor:
    a, b = _both("divide", x1, x2)
    y = nd.divide(a, b)
    return from_rules("divide", y, (x1, lambda dy: dy / b), (x2, lambda dy: -dy * y / b))


def _pow(x1: Operand, x2: Operand) -> Tensor:
    """Return x1**x2; where x2 is 0 it does not depend on x1, nor on x2 > 0 where x1 is 0."""
    a, b = _both("pow", x1, x2)
    y = nd.pow(a, b)

    def of_base(dy: NDArray) -> NDArray:
        if not isinstance(b, NDArray):
            return dy * (b * a ** (b - 1)) if b else nd.zeros_like(dy)
        return nd.where(b == 0, 0.0, dy * b * nd.pow(a, b - 1))

    def of_exponent(dy: NDArray) -> NDArray:
        base = a if isinstance(a, NDArray) else nd.full_like(b, a)
        return nd.where((base == 0) & (b >= 0), 0.0, dy * y * nd.log(base))

    return from_rules("pow", y, (x1, of_base), (x2, of_exponent))


def matmul(x1: Operand, x2: Operand, /) -> Tensor:
    """Return the product of matrices, as ``x1 @ x2``.

    Args:
        x1: (..., M, K), or a vector (K,).
        x2: (..., K, N), or a vector (K,); dtypes promote, other axes broadcast.

    Raises:
        ValueError: other lengths, no axes.

    >>> ag.matmul(ag.Tensor([[1.0, 2.0]]), ag.Tensor([3.0, 4.0]))
    Tensor(array([11.]))
    """
    a, b = _both("matmul", x1, x2)
    y = nd.matmul(a, b)
    is_row, is_column = a.ndim == 1, b.ndim == 1
    rows, columns = a[None] if is_row else a, b[:, None] if is_column else b
    batch = y.shape[: y.ndim - 2 + is_row + is_column]
    full = (*batch, rows.shape[-2], columns.shape[-1])

    def of_rows(dy: NDArray) -> NDArray:
        return dy.reshape(full) @ columns.mT  # summed to x1's shape, over one row if it is a vector

    def of_columns(dy: NDArray) -> NDArray:
        if columns.ndim == 2:  # one product, and no sum of one for each batch
            flat = rows.reshape((math.prod(rows.shape[:-1]), rows.shape[-1]))
            dx = flat.mT @ dy.reshape((flat.shape[0], full[-1]))
        else:
            dx = rows.mT @ dy.reshape(full)
        return dx[..., 0] if is_column else dx

    return from_rules("matmul", y, (x1, of_rows), (x2, of_columns))


def reshape(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Return the elements of x, in C order, in another shape; one length may be -1.

    A view where strides allow one. Another number of elements raises ValueError.

    >>> ag.reshape(ag.Tensor([[1.0, 2.0]]), (-1,))
    Tensor(array([1., 2.]))
    """
    x = tensor_of("reshape", x)
    own = x.shape
    return from_rules("reshape", nd.reshape(x.data, shape), (x, lambda dy: dy.reshape(own)))


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Return a view with the axes in another order; what is none raises ValueError.

    >>> ag.permute_dims(ag.Tensor([[1.0, 2.0]]), (1, 0)).shape
    (2, 1)
    """
    x = tensor_of("permute_dims", x)
    y = nd.permute_dims(x.data, axes)
    order = axes_of("permute_dims", axes, x.ndim, "axes")
    inverse = tuple(sorted(range(x.ndim), key=order.__getitem__))
    return from_rules("permute_dims", y, (x, lambda dy: dy.permute_dims(inverse)))


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Return a view in a shape that x broadcasts to; others raise ValueError.

    >>> ag.broadcast_to(ag.Tensor([1.0, 2.0]), (3, 2)).shape
    (3, 2)
    """
    x = tensor_of("broadcast_to", x)
    return from_rules("broadcast_to", nd.broadcast_to(x.data, shape), (x, same))


def _indexed(x: Tensor, key: Any) -> Tensor:
    """Return x[key]; elements that it names several times get the sum of their gradients."""
    entries = key if isinstance(key, tuple) else (key,)
    parts = tuple(_plain(x, part) for part in entries)
    own = x.shape
    return from_rules("indexing", x.data[parts], (x, lambda dy: _scattered(dy, parts, own)))


def _plain(x: Tensor, part: Any) -> Any:
    if isinstance(part, list):
        return nd.asarray(part, dtype=nd.int64 if part == [] else None, device=x.device)
    return part.data if isinstance(part, Tensor) else part


def _scattered(dy: NDArray, parts: tuple[Any, ...], shape: tuple[int, ...]) -> NDArray:
    """Return zeros to which dy is added at a key."""
    repeats = any(isinstance(part, NDArray) and part.dtype != "bool" for part in parts)
    if not repeats or dy.size == 0:
        dx = nd.zeros(shape, dtype=dy.dtype, device=dy.device)
        if dy.size:
            dx[parts] = dy
        return dx
    # The gradient of a lookup: of rows of the axes that the key leaves as they are.
    is_open = any(part is Ellipsis for part in parts)
    indexed = len(shape) if is_open else sum(map(axes_taken, parts))
    count, width = math.prod(shape[:indexed]), math.prod(shape[indexed:])
    rows = nd.arange(count, device=dy.device).reshape(shape[:indexed])[parts]
    dx = _core.embedding_backward(dy.reshape((rows.size, width)), rows.reshape((-1,)), count)
    return dx.reshape(shape)
