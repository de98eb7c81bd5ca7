# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for the norms and their gradients; the quantised ones write int8."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import membound
from membound.bench.contestants import Call, Op, arrays


@dataclass(frozen=True)
class Norm:
    """A forward norm."""

    name: str
    centred: bool = False
    added: bool = False
    gated: bool = False
    quantised: bool = False

    @property
    def op(self) -> Op:
        read = ["x", *(["residual"] if self.added else []), *(["z"] if self.gated else [])]
        written = [] if self.quantised else ["out"]
        written += ["residual_out"] if self.added else []
        ours = partial(self.ours, read, written)
        calls = (ours, self.torch_call, self.formula)
        return Op(self.name, read, written, *calls, quantised=self.quantised)

    def ours(self, read: list[str], written: list[str], a: Any) -> Call:
        parameters = ("weight", "bias") if self.centred else ("weight",)
        inputs = arrays(a, (*read, *parameters)).values()
        call = partial(getattr(membound, self.name), *inputs, eps=a.eps, **arrays(a, written))
        if not self.quantised:
            return call
        out, *_, scale = call(dtype="int8")
        return partial(call, dtype="int8", out=out, scale_out=scale)

    def torch_call(self, torch: Any, a: Any) -> Call:
        """torch's functions; it has none that add, multiply by a gate or quantise too."""
        functions, parameters = torch.nn.functional, (a.weight.shape, a.weight)
        norm = functions.layer_norm if self.centred else functions.rms_norm
        parameters += (a.bias, a.eps) if self.centred else (a.eps,)
        call = partial(norm, a.x, *parameters)
        if self.added:

            def call() -> Any:
                total = a.x + a.residual
                return norm(total, *parameters), total

        if self.gated:
            return lambda: norm(a.x, *parameters) * functions.silu(a.z)
        if not self.quantised:
            return call
        if not self.added:
            return lambda: quantised_by_torch(torch, call())

        def quantised_call() -> Any:
            y, total = call()
            return *quantised_by_torch(torch, y), total

        return quantised_call

    def formula(self, np: Any, a: Any, wide: Any) -> Any:
        x = a.x.astype(wide)
        if self.added:
            x = x + a.residual.astype(wide)
        h = x - x.mean(-1, keepdims=True) if self.centred else x
        rstd = 1 / np.sqrt((h * h).mean(-1, keepdims=True) + a.eps)
        y = h * rstd * a.weight.astype(wide)
        if self.centred:
            y = y + a.bias.astype(wide)
        if self.gated:
            z = a.z.astype(wide)
            y = y * (z / (1 + np.exp(-z)))
        results = [y.astype(a.x.dtype)]
        if self.quantised:
            results = [*quantised(np, results[0].astype(wide))]
        return (*results, x.astype(a.x.dtype)) if self.added else tuple(results)


def quantised_by_torch(torch: Any, y: Any) -> Any:
    scale = y.abs().amax(-1, keepdim=True).float() / 127
    return (y / scale).round().to(torch.int8), scale


def quantised(np: Any, y: Any) -> Any:
    scale = np.abs(y).max(-1, keepdims=True) / 127
    return np.round(y / scale).astype("int8"), scale


@dataclass(frozen=True)
class NormBackward:
    """The gradients of a norm."""

    name: str
    centred: bool = False
    added: bool = False
    gated: bool = False

    @property
    def op(self) -> Op:
        read = ["dy", *(["dresidual_out"] if self.added else []), "x"]
        read += ["z"] if self.gated else []
        written = ["dx", *(["dz"] if self.gated else [])]
        calls = (partial(self.ours, read, written), self.torch_call, self.formula)
        return Op(self.name, read, written, *calls, prepare=self.prepare)

    def prepare(self, a: Any) -> None:
        """Add the statistics of the forward."""
        if self.centred:
            _, a.mean, a.rstd = membound.layer_norm(a.x, eps=a.eps, return_stats=True)
        else:
            a.rstd = membound.rms_norm(a.x, eps=a.eps, return_rstd=True)[1]

    def ours(self, read: list[str], written: list[str], a: Any) -> Call:
        statistics = ("mean", "rstd") if self.centred else ("rstd",)
        inputs = arrays(a, (*read, "weight", *statistics)).values()
        return partial(getattr(membound, self.name), *inputs, **arrays(a, written))

    def torch_call(self, torch: Any, a: Any) -> Call | None:
        """The norm's backward, then the sum in the added forms."""
        norm = self._layer_norm(torch, a) if self.centred else self._rms_norm(torch, a)
        if norm is None or not self.added:
            return norm

        def call() -> Any:
            dx, *rest = norm()
            return dx.add_(a.dresidual_out), *rest

        return call

    @staticmethod
    def _layer_norm(torch: Any, a: Any) -> Call:
        """Call the op below autograd, since autograd cannot be captured in a CUDA graph.

        It reads torch's own statistics: on the CPU torch stores those of 16-bit arrays in 16 bits
        and accepts no other dtype.
        """
        aten, shape = torch.ops.aten, a.weight.shape
        _, mean, rstd = aten.native_layer_norm(a.x, shape, a.weight, a.bias, a.eps)
        inputs = (a.dy, a.x, shape, mean, rstd, a.weight, a.bias)
        return partial(aten.native_layer_norm_backward, *inputs, [True, True, True])

    def _rms_norm(self, torch: Any, a: Any) -> Call | None:
        """On a GPU the op below autograd, if torch has one."""
        shape = a.weight.shape
        if a.x.is_cuda:
            fused = getattr(torch.ops.aten, "_fused_rms_norm_backward", None)
            if fused is None or self.gated:
                return None
            return partial(fused, a.dy, a.x, shape, a.rstd[..., None], a.weight, [True, True])
        inputs = (a.x, a.z, a.weight) if self.gated else (a.x, a.weight)
        leaves = [one.detach().requires_grad_() for one in inputs]
        out = torch.nn.functional.rms_norm(leaves[0], shape, leaves[-1], a.eps)
        if self.gated:
            out = out * torch.nn.functional.silu(leaves[1])
        return partial(torch.autograd.grad, out, leaves, a.dy, retain_graph=True)

    def formula(self, np: Any, a: Any, wide: Any) -> Any:
        dy, rstd, weight = a.dy.astype(wide), a.rstd[..., None], a.weight.astype(wide)
        x = a.x.astype(wide)
        h = (x - a.mean[..., None] if self.centred else x) * rstd
        of_norm = dy
        if self.gated:
            z = a.z.astype(wide)
            s = 1 / (1 + np.exp(-z))
            of_norm = dy * (z * s)
        g = of_norm * weight
        along = h * (g * h).mean(-1, keepdims=True)
        dx = rstd * (g - g.mean(-1, keepdims=True) - along if self.centred else g - along)
        results = [dx.astype(a.x.dtype)]
        if self.added:
            results = [results[0] + a.dresidual_out]
        if self.gated:
            results.append((dy * h * weight * (s * (1 + z * (1 - s)))).astype(a.x.dtype))
        results.append((of_norm * h).sum(0).astype(a.weight.dtype))
        if self.centred:
            results.append(dy.sum(0).astype(a.weight.dtype))
        return tuple(results)


_NORMS = (
    Norm("rms_norm"),
    Norm("add_rms_norm", added=True),
    NormBackward("rms_norm_backward"),
    NormBackward("add_rms_norm_backward", added=True),
    Norm("layer_norm", centred=True),
    Norm("add_layer_norm", centred=True, added=True),
    NormBackward("layer_norm_backward", centred=True),
    NormBackward("add_layer_norm_backward", centred=True, added=True),
    Norm("rms_norm_gated", gated=True),
    NormBackward("rms_norm_gated_backward", gated=True),
    Norm("rms_norm_quant", quantised=True),
    Norm("add_rms_norm_quant", added=True, quantised=True),
)
OPS = tuple(norm.op for norm in _NORMS)
