# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Registers a differentiable op of membound with torch.

Each op gets these operators in torch's registry::

    membound::op            records a gradient: used by compiled graphs that need one, and by
                            direct calls of torch.ops
    membound::op_forward    records nothing: used by exports and tensor subclasses
    membound::op_inference  the same without the results that only the gradient reads, if there
                            are any: used by compiled graphs that record nothing
    membound::op_backward   computes the gradients

Their kernels are in C++ (_kernels.py); code from Inductor calls them without the dispatcher if
possible (_inductor.py). An op without a gradient has ``op``, which raises if a gradient is
required, and ``op_inference``, which does not check.

Each op also gets two recording functions. Eager calls on plain tensors use the faster one, which
C++ calls (src/bindings/torch/recording.cpp): it adds 3.5 us to the kernel if a gradient is
required, where the dispatcher would add 2.5 us and its autograd 7 us more. Calls that are traced,
wrapped or transformed use the other, which calls the operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import library
from torch._functorch.utils import unwrap_dead_wrappers

from membound import _core
from membound.arrays import type_name
from membound.torch._columns import has_sharded_columns
from membound.torch._inductor import builtin_of, register_builtin, register_lowering
from membound.torch._kernels import implement
from membound.torch._recording import (
    as_tuple,
    differentiable_results,
    dynamo_traces,
    eager_function,
    flat_backward,
    inference_direction,
    jit_traces,
    names_of,
    raw_apply,
    raw_operator,
    records,
    refuse_gradients,
    refuse_tangents,
    transformable_function,
)
from membound.torch._schemas import SCHEMAS
from membound.torch._sharding import add_operator, register_with_dtensor

LIBRARY = library.Library("membound", "DEF")
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
    gradients: dict[str, str]  # name -> the saved tensor or d<result> whose shape it has
    backward: Callable[..., tuple[Any, ...]]  # (grads, saved, options, wanted) -> gradients
    rows: tuple[str, ...]  # inputs with batch axes: one more batch axis only adds rows
    # Sharding strategies, from inputs (with known shapes) and options by name: the sharded axis of
    # each input and result. None: any axis of rows.
    strategies: Callable[[dict[str, Any], dict[str, Any]], list[dict[str, int]]] | None = None
    gradient_dtypes: dict[str, str] = field(default_factory=dict)  # name -> the option with it
    # The same call on DTensors with sharded columns; returns the differentiable results.
    columns: Callable[..., Any] | None = None
    takes_columns: Callable[..., bool] | None = None  # (*tensors): whether they go to `columns`

    def __post_init__(self) -> None:
        _register(self)
        add_operator(self)
        forward, backward = map(builtin_of, (f"{self.name}_forward", f"{self.name}_backward"))
        recorded = eager_function(self, forward or self.forward, backward or flat_backward(self))
        count = len(self.tensors)
        eager = _core.torch_eager_call(raw_apply(recorded), plain=PLAIN, tensors=count)
        for name, value in (
            ("_pick", differentiable_results(self)),
            ("_eager", eager),
            ("_unrecorded", raw_operator(self, inference_direction(self))),
            ("_public", getattr(torch.ops.membound, self.name).default),
            ("_traced", transformable_function(self)),
        ):
            object.__setattr__(self, name, value)

    def __call__(self, *arguments: Any) -> Any:
        """Return the differentiable results; record the gradient as the kind of call requires."""
        if dynamo_traces():
            return self._in_graph(arguments)
        try:
            found = self._eager(*arguments)  # type: ignore[attr-defined]
        except TypeError:  # tensors that escaped from torch.func have no memory of their own
            unwrapped = unwrap_dead_wrappers(arguments)
            if all(a is b for a, b in zip(unwrapped, arguments, strict=True)):
                raise
            return self._eager(*unwrapped)  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise _own_error(self, arguments, error) from None
        return self._as_operator(arguments) if found is NotImplemented else found

    def _in_graph(self, arguments: tuple[Any, ...]) -> Any:
        if register_with_dtensor() and self._has_sharded_columns(arguments):
            return self.columns(*arguments)  # type: ignore[misc]
        if not records(arguments[: len(self.tensors)]):
            return self._unrecorded(*arguments)  # type: ignore[attr-defined]
        return self._pick(as_tuple(self._public(*arguments)))  # type: ignore[attr-defined]

    def _as_operator(self, arguments: tuple[Any, ...]) -> Any:
        if jit_traces():
            return self._pick(as_tuple(self._public(*arguments)))  # type: ignore[attr-defined]
        register_with_dtensor()
        if self._has_sharded_columns(arguments):
            return self.columns(*arguments)  # type: ignore[misc]
        return self._pick(as_tuple(self._traced.apply(*arguments)))  # type: ignore[attr-defined]

    def _has_sharded_columns(self, arguments: tuple[Any, ...]) -> bool:
        if self.columns is None:
            return False
        if self.takes_columns is not None:
            return self.takes_columns(*arguments[: len(self.tensors)])
        return has_sharded_columns(arguments[0], arguments[list(self.tensors).index("weight?")])


def _own_error(op: Operator, arguments: tuple[Any, ...], error: Exception) -> Exception:
    """Replace an error of torch's dispatcher by the more specific one of our own checks."""
    try:
        with torch.no_grad():
            op.forward(*arguments)
    except Exception as own:  # noqa: BLE001 - it is raised
        return own
    return error


def check_tensor(op: str, name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{op}: argument '{name}' must be a torch.Tensor, got {type_name(value)}")


def contiguous_like(tensor: Any) -> Any:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def rows_like(x: Any) -> Any:
    """One statistic per row, in the accumulator's dtype."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(x.shape[:-1], dtype=wide)


def _made(kind: str, tensors: dict[str, Any]) -> Any:
    """An empty result of the kind that a table of ops names."""
    what, _, name = kind.rpartition(" of ")
    like = tensors[name]
    if not what:
        return contiguous_like(like)
    rows = rows_like(like)
    return rows if what == "rows" else rows.new_empty((*rows.shape, 2))


def operator(
    name: str,
    backward: Callable[..., tuple[Any, ...]],
    keywords: Callable[[Any], dict[str, Any]] = lambda _: {},
    **changes: Any,
) -> Operator:
    """The operator of an op as its table in src/ops describes it.

    keywords: what the extension's function takes besides, from the first tensor. changes: fields
    that the table does not tell.
    """
    schema = dict(SCHEMAS[name])
    made, names, options = schema.pop("made"), [*schema["tensors"]], [*schema["options"]]
    function, count = getattr(_core, name), len(names)

    def forward(*given):
        named = dict(zip(options, given[count:], strict=True))
        return as_tuple(function(*given[:count], **named, **keywords(given[0])))

    def shapes(*given):
        tensors = dict(zip((one.rstrip("?") for one in names), given, strict=False))
        return tuple(_made(kind, tensors) for kind in made.values())

    own = {"forward": forward, "shapes": shapes, "backward": backward}
    return Operator(name=name, **(schema | own | changes))


def elementwise(name: str) -> Operator:
    """The operator of an op of one tensor and numbers, whose gradient reads dy, it and those."""
    backward = getattr(_core, f"{name}_backward")
    (x,) = SCHEMAS[name]["tensors"]
    return operator(
        name,
        lambda grads, saved, options, _: (backward(*grads, *saved, *options),),
        strategies=lambda tensors, _: [{x: at, "out": at} for at in range(tensors[x].ndim)],
    )


# --- torch's registry ---


def parameters_of(schema: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The tensors and the options of an operator in torch's schema language."""
    tensors = [
        f"Tensor{'?' if name.endswith('?') else ''} {name.rstrip('?')}"
        for name in schema["tensors"]
    ]
    return tensors, [f"{kind} {name}" for name, kind in schema["options"].items()]


def signature_of(name: str) -> str:
    """The schema of an op in a table, without its name."""
    tensors, options = parameters_of(SCHEMAS[name])
    return f"({', '.join(tensors + options)}) -> ({_tensors(len(SCHEMAS[name]['results']))})"


def _register(op: Operator) -> None:
    tensors, options = parameters_of({"tensors": op.tensors, "options": op.options})
    arguments = ", ".join(tensors + options)
    signature = f"({arguments}) -> ({_tensors(len(op.results))})"
    for name in (op.name, f"{op.name}_forward"):
        define(name, signature, op.forward, op.shapes, kernel=f"{op.name}_forward")
    flows = sum(op.results.values())
    if inference_direction(op) == "inference":
        define(
            f"{op.name}_inference",
            f"({arguments}) -> ({_tensors(flows)})",
            lambda *given: op.forward(*given)[:flows],
            lambda *given: op.shapes(*given)[:flows],
        )
    _register_backward(op, tensors, options)
    _register_autograd(op)
    _register_batching(op)


def define(
    name: str,
    signature: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    kernel: str | None = None,
) -> None:
    """Register an operator of torch's without a gradient; both functions return tuples.

    kernel: the name of its C++ kernel, by default the operator's. The function runs if there is
    none or if the loaded torch cannot call it.
    """

    def run(*arguments):
        # Autograd is handled above; with grad enabled the function would record again. It is mostly
        # off already, and checking is cheaper than switching (2 us).
        if not torch.is_grad_enabled():
            return _bare(function(*arguments))
        with torch.no_grad():
            return _bare(function(*arguments))

    def shapes(*arguments):
        register_lowering(name)
        return _bare(fake(*arguments))

    LIBRARY.define(name + signature, tags=(torch.Tag.pt2_compliant_tag,))
    in_extension = implement(name, signature, kernel or name)
    for key in ("CPU", "CUDA"):
        if key not in in_extension:
            LIBRARY.impl(name, run, key)
    library.register_fake(f"membound::{name}", shapes, lib=LIBRARY)
    register_builtin(name, (kernel or name) if in_extension else None)


def define_without_gradient(
    name: str, signature: str, function: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    """Register op and op_inference, and return the second, which saves op's check of 8 us."""
    for each in (name, f"{name}_inference"):
        define(each, signature, function, fake, kernel=name)
    operator = getattr(torch.ops.membound, name).default
    arguments = operator._schema.arguments
    names = [argument.name for argument in arguments]
    written = [at for at, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]

    def refusing(keys, *given):
        refuse_gradients(name, dict(zip(names, given, strict=True)))
        with torch._C._AutoDispatchBelowAutograd():
            found = operator.redispatch(keys & torch._C._after_autograd_keyset, *given)
        for at in written:
            if given[at] is not None and not given[at].is_inference():
                torch.autograd.graph.increment_version(given[at])
        return found

    LIBRARY.impl(name, refusing, "Autograd", with_keyset=True)
    return getattr(torch.ops.membound, f"{name}_inference").default


def _tensors(count: int) -> str:
    return ", ".join(["Tensor"] * count)


def _bare(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results or None


def _register_backward(op: Operator, tensors: list[str], options: list[str]) -> None:
    kinds = dict(zip(names_of(op), tensors, strict=True))
    incoming = [f"d{name}" for name, flows in op.results.items() if flows]
    grads = [f"Tensor {name}" for name in incoming]
    saved = [kinds.get(name, f"Tensor {name}") for name in op.saves]
    arguments = ", ".join([*grads, *saved, *options, "bool[] wanted"])
    signature = f"({arguments}) -> ({_tensors(len(op.gradients))})"
    last, run = len(grads) + len(saved), flat_backward(op)

    def kernel(*arguments):
        return tuple(arguments[0].new_empty(0) if g is None else g for g in run(*arguments))

    def fake(*arguments):
        by_name = dict(zip((*incoming, *op.saves), arguments[:last], strict=True))
        by_option = dict(zip(op.options, arguments[last:-1], strict=True))

        def made(name, like):
            found = contiguous_like(by_name[like])
            option = op.gradient_dtypes.get(name)
            return found if option is None else found.to(getattr(torch, by_option[option]))

        return tuple(
            made(name, like) if wanted else arguments[0].new_empty(0)
            for (name, like), wanted in zip(op.gradients.items(), arguments[-1], strict=True)
        )

    define(f"{op.name}_backward", signature, kernel, fake)


def _register_autograd(op: Operator) -> None:
    traced = transformable_function(op)
    library.register_autograd(
        f"membound::{op.name}",
        traced.backward,
        setup_context=traced.setup_context,
        lib=_WithoutTangents(op),  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class _WithoutTangents:
    """A library for register_autograd that refuses tangents, which its kernel would drop."""

    op: Operator

    def impl(self, name: str, kernel: Callable[..., Any], key: str, **options: Any) -> None:
        names = names_of(self.op)

        def refusing(keys, *arguments):
            refuse_tangents(self.op.name, dict(zip(names, arguments, strict=False)))
            return kernel(keys, *arguments)

        LIBRARY.impl(name, refusing, key, **options)


def _register_batching(op: Operator) -> None:
    """torch.vmap: a batch axis of rows adds rows; one of a weight takes a call per element."""
    names = names_of(op)

    def rule(run, info, in_dims, *arguments):
        tensors, options = arguments[: len(names)], arguments[len(names) :]
        as_rows = all(d is None or name in op.rows for name, d in zip(names, in_dims, strict=False))
        if not as_rows:
            return _one_by_one(run, info.batch_size, in_dims, arguments)
        moved = [
            _batch_first(t, d, info.batch_size) if name in op.rows else t
            for name, t, d in zip(names, tensors, in_dims, strict=False)
        ]
        results = run(*moved, *options)
        return results, _bare(tuple(0 for _ in as_tuple(results)))

    def backward_rule(info, in_dims, *arguments):
        run = raw_operator(op, "backward")
        return _one_by_one(run, info.batch_size, in_dims, arguments)

    for direction in {"forward", inference_direction(op)}:
        of_rows = functools.partial(rule, raw_operator(op, direction))
        library.register_vmap(f"membound::{op.name}_{direction}", of_rows, lib=LIBRARY)
    of_rows = functools.partial(rule, raw_operator(op, "forward"))
    library.register_vmap(f"membound::{op.name}", of_rows, lib=LIBRARY)
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
    stacked = tuple(torch.stack(results) for results in zip(*map(as_tuple, calls), strict=True))
    return _bare(stacked), _bare(tuple(0 for _ in stacked))
