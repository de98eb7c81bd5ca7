# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The recording functions of an operator: what autograd keeps of a call and how it goes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from membound.torch._operators import Operator

# Where calls have to be operators: Dynamo, a mode that watches the dispatcher, torch.func.
dynamo_traces = torch.compiler.is_dynamo_compiling
dispatch_modes = torch._C._len_torch_dispatch_stack
transforms = torch._C._are_functorch_transforms_active
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # by is_grads_batched=True
_FUNCTION_PARTS = ("forward", "backward", "jvp", "setup_context", "generate_vmap_rule")


def differentiable_results(
    op: Operator, *, traced: bool = False
) -> Callable[[tuple[Any, ...]], Any]:
    """The results that gradients flow through: the first ones, alone if it is one."""
    count = sum(op.results.values())
    if traced:
        return lambda results: results[0] if count == 1 else results[:count]
    return itemgetter(0 if count == 1 else slice(count))


def _refuse_tangents(op: Operator) -> Callable[..., Any]:
    def jvp(_, *tangents):
        given = zip(names_of(op), tangents, strict=False)
        name = next((name for name, tangent in given if tangent is not None), "gradient")
        raise RuntimeError(
            f"{op.name}: argument '{name}' has a tangent, and there is no forward mode here: use "
            f"reverse mode (backward(), torch.func.vjp), or pass {name}.detach()"
        )

    return staticmethod(jvp)


def _places(places: list[int], *, traced: bool) -> Callable[[Any], tuple[Any, ...]]:
    """What stands at these places. itemgetter takes a fifth of the time; Dynamo cannot trace it."""
    if traced or len(places) == 1:
        return lambda values: tuple([values[at] for at in places])
    return itemgetter(*places)


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


def recording_function(
    op: Operator, forward: Callable[..., Any], backward: Callable[..., Any], *, traced: bool
) -> Any:
    """What records eager calls, and what Dynamo traces.

    setup_context would cost 10 us more a call, and Dynamo fails on it where no gradient is wanted.
    """
    count = len(op.tensors)
    save, wanted, by_input = (make(op, traced) for make in (_saver, _wanted_by, _by_input))
    pick, gradients = differentiable_results(op, traced=traced), _gradient_function(op)
    run_forward = forward if len(op.results) > 1 else lambda *given: as_tuple(forward(*given))

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            results = run_forward(*arguments)
            ctx.save_for_backward(*save((*arguments, *results)))
            ctx.options = arguments[count:]
            return pick(results)

        @staticmethod
        def backward(ctx, *grads):
            needs = ctx.needs_input_grad
            # With create_graph=True what comes out must know that it ends here, and gradients may
            # be batched or traced. (Compiled graphs refuse second derivatives by themselves, and
            # Dynamo takes no Function within another.)
            as_operator = not dynamo_traces() and (
                torch.is_grad_enabled() or dispatch_modes() or any(map(_is_batched, grads))
            )
            run = gradients if as_operator else backward
            return by_input(run(*grads, *ctx.saved_tensors, *ctx.options, wanted(needs)))

        if not traced:  # Dynamo takes no Function that has one
            jvp = _refuse_tangents(op)

    return _named(Recorded, op)


def transformable_function(op: Operator) -> Any:
    """On whatever the operators take. torch.func asks for setup_context, and for all results."""
    count, flows = len(op.tensors), list(op.results.values())
    save, wanted, by_input = (make(op, True) for make in (_saver, _wanted_by, _by_input))
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

        jvp = _refuse_tangents(op)

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


def _saver(op: Operator, traced: bool) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What of a call's arguments and results, one after the other, the gradient reads."""
    places = [*names_of(op), *op.options, *op.results]
    return _places([places.index(name) for name in op.saves], traced=traced)


def _wanted_by(op: Operator, traced: bool) -> Callable[..., list[bool]]:
    """From which inputs need a gradient to which are computed; two inputs can share one."""
    inputs = list(op.tensors.values())
    sharing = [[at for at, g in enumerate(inputs) if g == gradient] for gradient in op.gradients]
    firsts = _places([places[0] for places in sharing], traced=traced)
    shared = any(len(places) > 1 for places in sharing)

    def wanted(needs):
        if shared:
            return [any(needs[at] for at in places) for places in sharing]
        return list(firsts(needs))

    return wanted


def _by_input(op: Operator, traced: bool) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """From the gradients to one value for each argument."""
    order, nothing = list(op.gradients), len(op.gradients)
    places = [nothing if g is None else order.index(g) for g in op.tensors.values()]
    arrange = _places(places + [nothing] * len(op.options), traced=traced)
    return lambda found: arrange((*found, None))


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
