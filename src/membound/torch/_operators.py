# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""How a differentiable op of membound becomes one of torch.

Each gets three operators in torch's registry::

    membound::op           with its gradient, for those who call torch.ops themselves
    membound::op_forward   without: what compiled graphs, exports and subclasses run
    membound::op_backward  the gradients

and two recording functions. Eager calls on plain tensors run the extension under the one that costs
least (3.5 us where a gradient is wanted; the dispatcher would cost 2.5 us a call and its autograd
7 us more). Everything that traces, wraps or transforms tensors meets the operators under the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import library

from membound.torch._sharding import announce, tell_dtensor

LIBRARY = library.Library("membound", "DEF")

# Where calls have to be operators: Dynamo, a mode that watches the dispatcher, torch.func.
dynamo_traces = torch.compiler.is_dynamo_compiling
dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_FUNCTION_PARTS = ("forward", "backward", "setup_context", "generate_vmap_rule")
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True)
class Operator:
    """An op and its gradient. Tensors come first in every call, then the options, by position."""

    name: str
    tensors: dict[str, str | None]  # its inputs and the gradient of each; "weight?" may be None
    options: dict[str, str]  # name -> type in torch's schema language
    results: dict[str, bool]  # name -> whether gradients flow through it; those come first
    forward: Callable[..., tuple[Any, ...]]  # (*tensors, *options)
    shapes: Callable[..., tuple[Any, ...]]  # the same call: empty results on any kind of tensor
    saves: tuple[str, ...]  # which inputs and results the gradient reads
    gradients: dict[str, str]  # name -> which of the saved, or of d<result>, it has the shape of
    backward: Callable[..., tuple[Any, ...]]  # (grads, saved, options, wanted) -> gradients
    rows: tuple[str, ...]  # inputs with batch axes: a batch axis more is but more rows
    # Of inputs (as far as their shapes are known) and options by name: how they can be sharded, the
    # axis of each input and result. None: along any axis of rows.
    ways: Callable[[dict[str, Any], dict[str, Any]], list[dict[str, int]]] | None = None

    def __post_init__(self) -> None:
        _register(self)
        announce(self)
        operators = [_raw_operator(self, way) for way in ("forward", "backward")]
        for name, value in (
            ("_pick", _differentiable(self)),
            ("_eager", _function(self, self.forward, _spread(self))),
            ("_compiled", _function(self, *operators)),
            ("_traced", _transformable_function(self)),
        ):
            object.__setattr__(self, name, value)

    def __call__(self, *arguments: Any) -> Any:
        """The differentiable results, with the gradient recorded in the way that the call needs."""
        if dynamo_traces():
            return self._compiled.apply(*arguments)  # type: ignore[attr-defined]
        if dispatch_modes() or _transforms() or _holds_subclasses(arguments[: len(self.tensors)]):
            tell_dtensor()
            return self._pick(_tuple(self._traced.apply(*arguments)))  # type: ignore[attr-defined]
        return self._eager.apply(*arguments)  # type: ignore[attr-defined]


def _holds_subclasses(tensors: tuple[Any, ...]) -> bool:
    return any(type(t) not in PLAIN and isinstance(t, torch.Tensor) for t in tensors)


def _differentiable(op: Operator) -> Callable[[tuple[Any, ...]], Any]:
    """The results that gradients flow through: the first ones, alone if it is one."""
    count = sum(op.results.values())
    return lambda results: results[0] if count == 1 else results[:count]


def _tuple(results: Any) -> tuple[Any, ...]:
    """torch's operators return one result bare."""
    return results if isinstance(results, tuple) else (results,)


def _names(op: Operator) -> list[str]:
    return [name.rstrip("?") for name in op.tensors]


def _function(op: Operator, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """What records eager calls, and what Dynamo traces.

    setup_context would cost 10 us more a call, and Dynamo fails on it where no gradient is wanted.
    """
    count = len(op.tensors)
    save, wanted, by_input = _saver(op), _wanted_by(op), _by_input(op)
    pick, gradients = _differentiable(op), _gradient_function(op)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            results = _tuple(forward(*arguments))
            ctx.save_for_backward(*save(arguments, results))
            ctx.options = arguments[count:]
            return pick(results)

        @staticmethod
        def backward(ctx, *grads):
            needs = ctx.needs_input_grad
            # With create_graph=True what comes out must know that it ends here. (Compiled graphs
            # refuse second derivatives by themselves, and Dynamo takes no Function within another.)
            further = not dynamo_traces() and torch.is_grad_enabled()
            run = gradients.apply if further else backward
            found = run(*grads, *ctx.saved_tensors, *ctx.options, wanted(needs))
            return by_input(_tuple(found), needs)

    return _named(Recorded, op)


def _transformable_function(op: Operator) -> Any:
    """On whatever the operators take. torch.func asks for setup_context, and for all results."""
    count, flows = len(op.tensors), list(op.results.values())
    save, wanted, by_input = _saver(op), _wanted_by(op), _by_input(op)
    forward_operator, gradients = _raw_operator(op, "forward"), _gradient_function(op)
    alike = bool(op.rows)  # all results have one shape

    class Transformable(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments):
            return forward_operator(*arguments)

        @staticmethod
        def setup_context(ctx, inputs, output):
            results = _tuple(output)
            ctx.save_for_backward(*save(inputs, results))
            ctx.options = inputs[count:]
            if not all(flows):
                ctx.mark_non_differentiable(*results[sum(flows) :])
            ctx.set_materialize_grads(not alike)

        @staticmethod
        def backward(ctx, *grads):
            needs = ctx.needs_input_grad
            through = _filled(grads[: sum(flows)])
            found = gradients.apply(*through, *ctx.saved_tensors, *ctx.options, wanted(needs))
            return by_input(_tuple(found), needs)

    return _named(Transformable, op)


def _filled(grads: tuple[Any, ...]) -> list[Any]:
    """With zeros for the results that nobody used; torch's own are never DTensors."""
    like = next(g for g in grads if g is not None)
    return [torch.zeros_like(like) if g is None else g for g in grads]


def _spread(op: Operator) -> Callable[..., Any]:
    """The op's backward with its arguments in a row, as the operator has them."""
    first = sum(op.results.values())
    last = first + len(op.saves)

    def backward(*arguments):
        grads, saved, options = arguments[:first], arguments[first:last], arguments[last:-1]
        return op.backward(grads, saved, options, arguments[-1])

    return backward


def _gradient_function(op: Operator) -> Any:
    """The gradients, which torch.func wants to record as well; what would follow is refused."""
    name, backward_operator = op.name, _raw_operator(op, "backward")

    class Gradients(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments):
            return backward_operator(*arguments)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(*_):
            raise RuntimeError(f"membound's {name} has first derivatives only")

    return Gradients


def _named(function: Any, op: Operator) -> Any:
    """The same class by the op's name: profiles and printed graphs show that of its making."""
    own = {name: value for name, value in vars(function).items() if name in _FUNCTION_PARTS}
    return type(function)(op.name, function.__bases__, {**own, "__module__": __name__})


def _saver(op: Operator) -> Callable[..., list[Any]]:
    """What of a call's arguments and results the gradient reads."""
    places, count = [*_names(op), *op.results], len(op.tensors)
    wanted = [places.index(name) for name in op.saves]

    def save(arguments, results):
        both = (*arguments[:count], *results)
        return [both[at] for at in wanted]

    return save


def _wanted_by(op: Operator) -> Callable[..., list[bool]]:
    """From which inputs need a gradient to which are computed; two inputs can share one."""
    inputs = list(op.tensors.values())
    sharing = [[at for at, g in enumerate(inputs) if g == gradient] for gradient in op.gradients]

    def wanted(needs):
        return [any(needs[at] for at in places) for places in sharing]

    return wanted


def _by_input(op: Operator) -> Callable[..., tuple[Any, ...]]:
    """From the gradients to one value for each argument."""
    order = list(op.gradients)
    places = [None if g is None else order.index(g) for g in op.tensors.values()]
    options = [None] * len(op.options)

    def by_input(found, needs):
        given = [
            found[at] if at is not None and need else None
            for at, need in zip(places, needs, strict=False)
        ]
        return (*given, *options)

    return by_input


def _raw_operator(op: Operator, direction: str) -> Callable[..., Any]:
    return getattr(torch.ops.membound, f"{op.name}_{direction}").default


def contiguous_like(tensor: Any) -> Any:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def rows_like(x: Any) -> Any:
    """One number for each row, in the dtype of sums."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(x.shape[:-1], dtype=wide)


# --- torch's registry ---


def _register(op: Operator) -> None:
    tensors = [
        f"Tensor{'?' if name.endswith('?') else ''} {name.rstrip('?')}" for name in op.tensors
    ]
    options = [f"{kind} {name}" for name, kind in op.options.items()]
    results = ", ".join("Tensor" for _ in op.results)
    signature = f"({', '.join(tensors + options)}) -> ({results})"
    for name in (op.name, f"{op.name}_forward"):
        define(name, signature, op.forward, op.shapes)
    _register_backward(op, tensors, options)
    _register_autograd(op)
    _register_batching(op)


def define(name: str, signature: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register an operator of torch's without a gradient; both functions return tuples."""

    def run(*arguments):
        # Here gradients are somebody else's business; the kernel would ask for them to be recorded.
        # Mostly they are off already, and asking costs less than switching (2 us).
        if not torch.is_grad_enabled():
            return _bare(kernel(*arguments))
        with torch.no_grad():
            return _bare(kernel(*arguments))

    def shapes(*arguments):
        return _bare(fake(*arguments))

    LIBRARY.define(name + signature, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, run, "CPU")
    LIBRARY.impl(name, run, "CUDA")
    library.register_fake(f"membound::{name}", shapes, lib=LIBRARY)


def _bare(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results or None


def _register_backward(op: Operator, tensors: list[str], options: list[str]) -> None:
    kinds = dict(zip(_names(op), tensors, strict=True))
    incoming = [f"d{name}" for name, flows in op.results.items() if flows]
    grads = [f"Tensor {name}" for name in incoming]
    saved = [kinds.get(name, f"Tensor {name}") for name in op.saves]
    results = ", ".join("Tensor" for _ in op.gradients)
    signature = f"({', '.join([*grads, *saved, *options, 'bool[] wanted'])}) -> ({results})"
    last, run = len(grads) + len(saved), _spread(op)

    def kernel(*arguments):
        return tuple(arguments[0].new_empty(0) if g is None else g for g in run(*arguments))

    def fake(*arguments):
        by_name = dict(zip((*incoming, *op.saves), arguments[:last], strict=True))
        return tuple(
            contiguous_like(by_name[like]) if wanted else arguments[0].new_empty(0)
            for like, wanted in zip(op.gradients.values(), arguments[-1], strict=True)
        )

    define(f"{op.name}_backward", signature, kernel, fake)


def _register_autograd(op: Operator) -> None:
    traced = _transformable_function(op)
    library.register_autograd(
        f"membound::{op.name}", traced.backward, setup_context=traced.setup_context, lib=LIBRARY
    )


def _register_batching(op: Operator) -> None:
    """torch.vmap: a batch axis of rows alone is more rows; of a weight, one call for each."""
    names = _names(op)

    def rule(info, in_dims, *arguments):
        run = _raw_operator(op, "forward")
        tensors, options = arguments[: len(names)], arguments[len(names) :]
        as_rows = all(d is None or name in op.rows for name, d in zip(names, in_dims, strict=False))
        if not as_rows:
            return _one_by_one(run, info.batch_size, in_dims, arguments)
        moved = [
            _batch_first(t, d, info.batch_size) if name in op.rows else t
            for name, t, d in zip(names, tensors, in_dims, strict=False)
        ]
        results = run(*moved, *options)
        return results, _bare(tuple(0 for _ in op.results))

    def backward_rule(info, in_dims, *arguments):
        run = _raw_operator(op, "backward")
        return _one_by_one(run, info.batch_size, in_dims, arguments)

    for name in (op.name, f"{op.name}_forward"):
        library.register_vmap(f"membound::{name}", rule, lib=LIBRARY)
    library.register_vmap(f"membound::{op.name}_backward", backward_rule, lib=LIBRARY)


def _batch_first(tensor: Any, dim: int | None, size: int) -> Any:
    if tensor is None:
        return None
    if dim is None:
        return tensor.expand(size, *tensor.shape)
    return tensor.movedim(dim, 0)


def _one_by_one(run: Any, size: int, in_dims: Any, arguments: Any) -> tuple[Any, Any]:
    calls = [
        run(
            *(
                a.select(d, at) if isinstance(d, int) else a
                for a, d in zip(arguments, in_dims, strict=True)
            )
        )
        for at in range(size)
    ]
    stacked = tuple(torch.stack(results) for results in zip(*map(_tuple, calls), strict=True))
    return _bare(stacked), _bare(tuple(0 for _ in stacked))
