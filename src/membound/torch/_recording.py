# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The recording functions of an operator: what autograd keeps of a call and how it goes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from membound import _core

if TYPE_CHECKING:
    from membound.torch._operators import Operator

# Where calls have to be operators: Dynamo, a mode that watches the dispatcher, torch.func.
dynamo_traces = torch.compiler.is_dynamo_compiling
jit_traces = torch._C._is_tracing
dispatch_modes = torch._C._len_torch_dispatch_stack
_FUNCTION_PARTS = ("forward", "backward", "jvp", "setup_context", "generate_vmap_rule")


def differentiable_results(op: Operator) -> Callable[[tuple[Any, ...]], Any]:
    """The results that gradients flow through: the first ones, alone if it is one."""
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
    """Raise where a kernel below autograd, which sees no tangents, would drop one."""
    if forward_ad._current_level < 0:
        return
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise _tangent_refused(op, name)


def shortest_call(function: Any) -> Callable[..., Any]:
    """The builtin below Function.apply, which only asks what eager calls have been asked already.

    All but whether tensors escaped from torch.func. It costs 1.4 us a call.
    """
    return super(torch.autograd.Function, function).apply


def as_tuple(results: Any) -> tuple[Any, ...]:
    """torch's operators return one result bare."""
    return results if isinstance(results, tuple) else (results,)


def names_of(op: Operator) -> list[str]:
    return [name.rstrip("?") for name in op.tensors]


def eager_function(op: Operator, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """What records eager calls, in C++; options come as one tuple, as each argument costs 50 ns."""

    class Recorded(torch.autograd.Function):
        backward = _traced_backward(op)  # by compiled autograd; the engine calls C++
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
        saved=_saved_places(op),
        gradients_of=[-1 if g is None else order.index(g) for g in op.tensors.values()],
    )
    return function


def _traced_backward(op: Operator) -> Any:
    """Dynamo takes no Function in another; compiled graphs refuse second derivatives themselves."""
    wanted, by_input = _wanted_by(op), _by_input(op, 1)
    gradients = asked_for(raw_operator(op, "backward"))

    def backward(ctx, *grads):
        needs = ctx.needs_input_grad
        return by_input(gradients(*grads, *ctx.saved_tensors, *ctx.options, wanted(needs)))

    return staticmethod(backward)


def transformable_function(op: Operator) -> Any:
    """On whatever the operators take. torch.func asks for setup_context, and for all results."""
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
    """With zeros for the results that nobody used; torch's own are never DTensors."""
    like = next(g for g in grads if g is not None)
    return [torch.zeros_like(like) if g is None else g for g in grads]


def spread(op: Operator) -> Callable[..., Any]:
    """The op's backward with its arguments in a row, as the operator has them."""
    first = sum(op.results.values())
    last = first + len(op.saves)

    def backward(*arguments):
        grads, saved, options = arguments[:first], arguments[first:last], arguments[last:-1]
        return op.backward(grads, saved, options, arguments[-1])

    return backward


def asked_for(run: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Of a backward operator, which cannot return None: it has empty tensors for what is not."""

    def backward(*arguments):
        found, wanted = as_tuple(run(*arguments)), arguments[-1]
        if all(wanted):
            return found
        return tuple(g if want else None for g, want in zip(found, wanted, strict=True))

    return backward


def _gradient_function(op: Operator) -> Callable[..., tuple[Any, ...]]:
    """The gradients, which torch.func wants to record as well; what would follow is refused."""
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

    return asked_for(Gradients.apply)


def _named(function: Any, op: Operator) -> Any:
    """The same class by the op's name: profiles and printed graphs show that of its making."""
    own = {name: value for name, value in vars(function).items() if name in _FUNCTION_PARTS}
    return type(function)(op.name, function.__bases__, {**own, "__module__": __name__})


def _saved_places(op: Operator) -> list[int]:
    """Where a call's arguments and results, one after the other, have what the gradient reads."""
    places = [*names_of(op), *op.options, *op.results]
    return [places.index(name) for name in op.saves]


def _saver(op: Operator) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    places = _saved_places(op)
    return lambda values: tuple([values[at] for at in places])


def _wanted_by(op: Operator) -> Callable[..., list[bool]]:
    """From which inputs need a gradient to which are computed; two inputs can share one."""
    inputs = list(op.tensors.values())
    sharing = [[at for at, g in enumerate(inputs) if g == gradient] for gradient in op.gradients]
    return lambda needs: [any(needs[at] for at in places) for places in sharing]


def _by_input(op: Operator, options: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """From the gradients to one value for each argument."""
    order, nothing = list(op.gradients), len(op.gradients)
    places = [nothing if g is None else order.index(g) for g in op.tensors.values()]
    places += [nothing] * options
    return lambda found: tuple([found[at] if at < nothing else None for at in places])


def inference_direction(op: Operator) -> str:
    """Which raw operator runs where nothing is recorded: without what only the gradient reads."""
    return "forward" if all(op.results.values()) else "inference"


def records(tensors: tuple[Any, ...]) -> bool:
    """Whether a call on them has a gradient to record; Dynamo knows while it traces."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def refuse_gradients(op: str, tensors: Mapping[str, Any]) -> None:
    """Raise, as the extension does, where an op without a gradient is asked to record one."""
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
