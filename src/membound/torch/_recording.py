# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The recording functions of an operator: what autograd saves, and the backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from membound import _core

if TYPE_CHECKING:
    from membound.torch._operators import Operator

# Conditions under which a call must be an operator: Dynamo, a dispatch mode, torch.func.
dynamo_traces = torch.compiler.is_dynamo_compiling
jit_traces = torch._C._is_tracing
dispatch_modes = torch._C._len_torch_dispatch_stack
_FUNCTION_PARTS = ("forward", "backward", "jvp", "setup_context", "generate_vmap_rule")


def differentiable_results(op: Operator) -> Callable[[tuple[Any, ...]], Any]:
    """Pick the differentiable results, which come first; a single one without a tuple."""
    count = sum(op.results.values())
    return lambda results: results[0] if count == 1 else results[:count]


def _tangent_refused(op: str, name: str) -> RuntimeError:
    return RuntimeError(
        f"{op}: argument '{name}' has a tangent, and there is no forward mode here: use "
        f"reverse mode (backward(), torch.func.vjp), or pass {name}.detach()"
    )


def _refusing_jvp(op: Operator) -> Callable[..., Any]:
    def jvp(_, *tangents):
        given = zip(names_of(op), tangents, strict=False)
        name = next((name for name, tangent in given if tangent is not None), "gradient")
        raise _tangent_refused(op.name, name)

    return staticmethod(jvp)


def refuse_tangents(op: str, tensors: Mapping[str, Any]) -> None:
    """Raise if a kernel below autograd, which sees no tangents, would drop one."""
    if forward_ad._current_level < 0:
        return
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise _tangent_refused(op, name)


def raw_apply(function: Any) -> Callable[..., Any]:
    """The builtin below Function.apply, whose checks eager calls have passed already.

    Only the check for tensors that escaped from torch.func is lost; apply costs 1.4 us a call.
    """
    return super(torch.autograd.Function, function).apply


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Wrap a single result, which torch's operators return without a tuple."""
    return results if isinstance(results, tuple) else (results,)


def names_of(op: Operator) -> list[str]:
    return [name.rstrip("?") for name in op.tensors]


def eager_function(op: Operator, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Record eager calls in C++; options are one tuple, as each argument costs 50 ns."""

    class Recorded(torch.autograd.Function):
        backward = _traced_backward(op)  # used by compiled autograd; the engine calls C++
        jvp = _refusing_jvp(op)

    function, order = _named(Recorded, op), list(op.gradients)
    context = function._backward_cls
    # A slot costs 0.15 us less than the context's dictionary.
    slots = {"__slots__": ("options",), "__module__": context.__module__}
    function._backward_cls = type(context.__name__, (context,), slots)
    _core.implement_torch_function(
        function,
        forward,
        backward,
        _gradient_function(op),
        tensors=len(op.tensors),
        differentiable=sum(op.results.values()),
        saved=_saved_indices(op),
        gradients_of=[-1 if g is None else order.index(g) for g in op.tensors.values()],
    )
    return function


def _traced_backward(op: Operator) -> Any:
    """A backward without a nested Function, which Dynamo rejects; it refuses second derivatives."""
    wanted, by_input = _wanted_by(op), _by_input(op, 1)
    gradients = drop_unwanted(raw_operator(op, "backward"))

    def backward(ctx, *grads):
        needs = ctx.needs_input_grad
        return by_input(gradients(*grads, *ctx.saved_tensors, *ctx.options, wanted(needs)))

    return staticmethod(backward)


def transformable_function(op: Operator) -> Any:
    """Record calls on any tensor; torch.func requires setup_context and all results."""
    count, flows = len(op.tensors), list(op.results.values())
    save, wanted, by_input = _saver(op), _wanted_by(op), _by_input(op, len(op.options))
    forward_operator, gradients = raw_operator(op, "forward"), _gradient_function(op)
    alike = bool(op.rows)  # all results have one shape

    class Transformable(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments):
            return forward_operator(*arguments)

        @staticmethod
        def setup_context(ctx, inputs, output):
            results = as_tuple(output)
            ctx.save_for_backward(*save((*inputs, *results)))
            ctx.options = inputs[count:]
            if not all(flows):
                ctx.mark_non_differentiable(*results[sum(flows) :])
            ctx.set_materialize_grads(not alike)

        @staticmethod
        def backward(ctx, *grads):
            needs = ctx.needs_input_grad
            through = _filled(grads[: sum(flows)])
            found = gradients(*through, *ctx.saved_tensors, *ctx.options, wanted(needs))
            return by_input(found)

        jvp = _refusing_jvp(op)

    return _named(Transformable, op)


def _filled(grads: tuple[Any, ...]) -> list[Any]:
    """Fill in zeros for unused results; zeros that torch fills in are never DTensors."""
    like = next(g for g in grads if g is not None)
    return [torch.zeros_like(like) if g is None else g for g in grads]


def flat_backward(op: Operator) -> Callable[..., Any]:
    """The op's backward with a flat argument list, as the operator has it."""
    first = sum(op.results.values())
    last = first + len(op.saves)

    def backward(*arguments):
        grads, saved, options = arguments[:first], arguments[first:last], arguments[last:-1]
        return op.backward(grads, saved, options, arguments[-1])

    return backward


def drop_unwanted(run: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Replace the empty tensors of a backward operator, which cannot return None, by None."""

    def backward(*arguments):
        found, wanted = as_tuple(run(*arguments)), arguments[-1]
        if all(wanted):
            return found
        return tuple(g if want else None for g, want in zip(found, wanted, strict=True))

    return backward


def _gradient_function(op: Operator) -> Callable[..., tuple[Any, ...]]:
    """The gradients as a Function, which torch.func records too; second derivatives raise."""
    name, backward_operator = op.name, raw_operator(op, "backward")

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

    return drop_unwanted(Gradients.apply)


def _named(function: Any, op: Operator) -> Any:
    """The same class under the op's name, which profiles and printed graphs show."""
    own = {name: value for name, value in vars(function).items() if name in _FUNCTION_PARTS}
    return type(function)(op.name, function.__bases__, {**own, "__module__": __name__})


def _saved_indices(op: Operator) -> list[int]:
    """Indices of the saved tensors among a call's arguments followed by its results."""
    indices = [*names_of(op), *op.options, *op.results]
    return [indices.index(name) for name in op.saves]


def _saver(op: Operator) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    indices = _saved_indices(op)
    return lambda values: tuple([values[at] for at in indices])


def _wanted_by(op: Operator) -> Callable[..., list[bool]]:
    """Map the inputs that need a gradient to the gradients to compute; inputs can share one."""
    inputs = list(op.tensors.values())
    sharing = [[at for at, g in enumerate(inputs) if g == gradient] for gradient in op.gradients]
    return lambda needs: [any(needs[at] for at in indices) for indices in sharing]


def _by_input(op: Operator, options: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Map the gradients to one value per argument."""
    order, nothing = list(op.gradients), len(op.gradients)
    indices = [nothing if g is None else order.index(g) for g in op.tensors.values()]
    indices += [nothing] * options
    return lambda found: tuple([found[at] if at < nothing else None for at in indices])


def inference_direction(op: Operator) -> str:
    """The operator to run if nothing is recorded: without results that only the gradient reads."""
    return "forward" if all(op.results.values()) else "inference"


def records(tensors: tuple[Any, ...]) -> bool:
    """Whether a call on these tensors has a gradient to record; works under Dynamo."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def refuse_gradients(op: str, tensors: Mapping[str, Any]) -> None:
    """Raise, as the extension does, if a tensor of an op without a gradient requires grad."""
    refuse_tangents(op, tensors)
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            raise RuntimeError(
                f"{op}: argument '{name}' requires grad, which this call cannot record: call it "
                f"under torch.no_grad(), or pass {name}.detach()"
            )


def raw_operator(op: Operator, direction: str) -> Callable[..., Any]:
    return getattr(torch.ops.membound, f"{op.name}_{direction}").default
