# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Ops of other installed libraries, behind one interface."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

EPS = 1e-6
STATIC_SCALE = 1 / 64  # the largest code is seven times the norm's root mean square


@dataclass(frozen=True)
class Peer:
    """make(a) prepares a call for sets of buffers like a; the call returns the results."""

    distribution: str
    make: Callable[[Any], Callable[[Any], Any]]
    in_place: bool = False  # overwrites its inputs, which the call reads from copies in the outputs


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def _module(name: str) -> Any:
    return importlib.import_module(name)


# --- rms_norm ---


def hugging_face(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """LlamaRMSNorm's forward."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _torch(_: Any) -> Callable[[Any], Any]:
    return lambda a: torch.nn.functional.rms_norm(a.x, a.weight.shape, a.weight, EPS)


def _compile(_: Any) -> Callable[[Any], Any]:
    compiled = _compiled(hugging_face)
    return lambda a: compiled(a.x, a.weight, EPS)


def _liger(_: Any) -> Callable[[Any], Any]:
    norm = _module("liger_kernel.transformers.functional").liger_rms_norm
    return lambda a: norm(a.x, a.weight, EPS)


def _quack(_: Any) -> Callable[[Any], Any]:
    norm = _module("quack").rmsnorm
    return lambda a: norm(a.x, a.weight, eps=EPS)


def _flashinfer(_: Any) -> Callable[[Any], Any]:
    norm = _module("flashinfer").rmsnorm
    return lambda a: norm(a.x, a.weight, EPS, out=a.out)


RMS_NORM = {
    "torch": Peer("torch", _torch),
    "compile": Peer("torch", _compile),
    "liger": Peer("liger_kernel", _liger),
    "quack": Peer("quack-kernels", _quack),
    "flashinfer": Peer("flashinfer-python", _flashinfer),
}

# --- add_rms_norm ---


def _add_torch(_: Any) -> Callable[[Any], Any]:
    def call(a: Any) -> Any:
        total = a.x + a.residual
        return torch.nn.functional.rms_norm(total, a.weight.shape, a.weight, EPS), total

    return call


def _add_compile(_: Any) -> Callable[[Any], Any]:
    def formula(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        total = x.float() + residual.float()
        rstd = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + EPS)
        return (total * rstd * weight.float()).to(x.dtype), total.to(x.dtype)

    compiled = _compiled(formula)
    return lambda a: compiled(a.x, a.residual, a.weight)


def _add_liger(_: Any) -> Callable[[Any], Any]:
    norm = _module("liger_kernel.transformers.functional").liger_fused_add_rms_norm
    return lambda a: norm(a.x, a.residual, a.weight, EPS)


def _add_quack(_: Any) -> Callable[[Any], Any]:
    norm = _module("quack").rmsnorm
    return lambda a: norm(a.x, a.weight, residual=a.residual, eps=EPS, prenorm=True)


def _add_flashinfer(_: Any) -> Callable[[Any], Any]:
    norm = _module("flashinfer").fused_add_rmsnorm

    def call(a: Any) -> Any:
        norm(a.out, a.residual_out, a.weight, EPS)
        return a.out, a.residual_out

    return call


ADD_RMS_NORM = {
    "torch": Peer("torch", _add_torch),
    "compile": Peer("torch", _add_compile),
    "liger": Peer("liger_kernel", _add_liger),
    "quack": Peer("quack-kernels", _add_quack),
    "flashinfer": Peer("flashinfer-python", _add_flashinfer, in_place=True),
}

# --- rms_norm_backward: the functions below autograd, so that a graph can capture them ---


def _backward_torch(_: Any) -> Callable[[Any], Any]:
    norm = torch.ops.aten._fused_rms_norm_backward
    return lambda a: norm(a.dy, a.x, a.weight.shape, a.rstd[:, None], a.weight, [True, True])


def _backward_compile(_: Any) -> Callable[[Any], Any]:
    def formula(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Any:
        h, wide = x.float() * rstd[:, None], dy.float()
        g = wide * weight.float()
        dx = rstd[:, None] * (g - h * (g * h).mean(-1, keepdim=True))
        return dx.to(x.dtype), (wide * h).sum(0).to(weight.dtype)

    compiled = _compiled(formula)
    return lambda a: compiled(a.dy, a.x, a.weight, a.rstd)


def _backward_liger(like: Any) -> Callable[[Any], Any]:
    """Writes dx over dy, as Liger-Kernel's autograd function does by default."""
    norm = _module("liger_kernel.ops.rms_norm").rms_norm_backward
    settings = _module("liger_kernel.ops.utils").calculate_settings(like.x.shape[-1])
    llama = 0  # the casting mode: float32 except for the product with the weight

    def call(a: Any) -> Any:
        return norm(a.dx, a.x, a.weight, a.rstd, 0.0, llama, *settings, True, None)

    return call


def _backward_quack(_: Any) -> Callable[[Any], Any]:
    norm = _module("quack.rmsnorm").rmsnorm_bwd
    return lambda a: norm(a.x, a.weight, a.dy, a.rstd)[:2]


def _backward_cudnn(like: Any) -> Callable[[Any], Any]:
    """Runs a graph of the frontend, which takes matrices as channels-last images of one pixel."""
    cudnn = _module("cudnn")
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(
        handle=handle,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )

    def image(of: torch.Tensor) -> torch.Tensor:
        cols = of.shape[-1]
        return of.as_strided((of.numel() // cols, cols, 1, 1), (of.stride(0), 1, cols, cols))

    def read(a: Any) -> list[torch.Tensor]:
        return [image(a.dy), image(a.x), image(a.weight), image(a.rstd[:, None])]

    inputs = [graph.tensor_like(one) for one in read(like)]
    names = dict(zip(("grad", "input", "scale", "inv_variance"), inputs, strict=True))
    outputs = graph.rmsnorm_backward(name="backward", has_dbias=False, **names)[:2]
    for output, tensor in zip(outputs, (like.x, like.weight), strict=True):
        kind = cudnn.data_type.FLOAT
        if tensor.dtype != torch.float32:
            of_16_bits = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF
            kind = of_16_bits[tensor.dtype == torch.float16]
        output.set_output(True).set_data_type(kind)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    workspace = torch.empty(graph.get_workspace_size(), device=like.x.device, dtype=torch.uint8)

    def call(a: Any) -> Any:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        every = (*read(a), image(a.dx), image(a.dweight))
        arrays = dict(zip((*inputs, *outputs), every, strict=True))
        graph.execute(arrays, workspace, handle=handle)
        return a.dx, a.dweight

    return call


RMS_NORM_BACKWARD = {
    "torch": Peer("torch", _backward_torch),
    "compile": Peer("torch", _backward_compile),
    "liger": Peer("liger_kernel", _backward_liger, in_place=True),
    "quack": Peer("quack-kernels", _backward_quack),
    "cudnn": Peer("nvidia-cudnn-frontend", _backward_cudnn),
}


# --- rms_norm_quant, to float8_e4m3fn: with scales of rows, and with a static scale ---


def _quantised_rows(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.nn.functional.rms_norm(x, weight.shape, weight, EPS).float()
    scale = y.abs().amax(-1, keepdim=True) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale


def _quantised(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.rms_norm(x, weight.shape, weight, EPS).float()
    return (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def _quant_torch(_: Any) -> Callable[[Any], Any]:
    return lambda a: _quantised_rows(a.x, a.weight)


def _quant_compile(_: Any) -> Callable[[Any], Any]:
    compiled = _compiled(_quantised_rows)
    return lambda a: compiled(a.x, a.weight)


def _static_torch(_: Any) -> Callable[[Any], Any]:
    return lambda a: _quantised(a.x, a.weight, a.static_scale)


def _static_compile(_: Any) -> Callable[[Any], Any]:
    compiled = _compiled(_quantised)
    return lambda a: compiled(a.x, a.weight, a.static_scale)


def _static_flashinfer(_: Any) -> Callable[[Any], Any]:
    norm = _module("flashinfer.norm").rmsnorm_quant

    def call(a: Any) -> Any:
        norm(a.out, a.x, a.weight, a.static_scale, EPS)
        return a.out

    return call


RMS_NORM_QUANT = {
    "torch": Peer("torch", _quant_torch),
    "compile": Peer("torch", _quant_compile),
}
RMS_NORM_QUANT_STATIC = {
    "torch": Peer("torch", _static_torch),
    "compile": Peer("torch", _static_compile),
    "flashinfer": Peer("flashinfer-python", _static_flashinfer),
}

# --- layer_norm ---


def _layer_torch(_: Any) -> Callable[[Any], Any]:
    return lambda a: torch.nn.functional.layer_norm(a.x, a.weight.shape, a.weight, a.bias, EPS)


def _layer_compile(_: Any) -> Callable[[Any], Any]:
    compiled = _compiled(torch.nn.functional.layer_norm)
    return lambda a: compiled(a.x, a.weight.shape, a.weight, a.bias, EPS)


def _layer_liger(_: Any) -> Callable[[Any], Any]:
    norm = _module("liger_kernel.ops.layer_norm").layer_norm_forward
    return lambda a: norm(a.x, a.weight, a.bias, EPS)[0]


def _layer_quack(like: Any) -> Callable[[Any], Any]:
    """Old releases without a LayerNorm are reported as failing; its parameters are float32."""
    norm = _module("quack.rmsnorm").layernorm_fwd
    weight, bias = like.weight.float(), like.bias.float()
    return lambda a: norm(a.x, weight, bias, EPS)


LAYER_NORM = {
    "torch": Peer("torch", _layer_torch),
    "compile": Peer("torch", _layer_compile),
    "liger": Peer("liger_kernel", _layer_liger),
    "quack": Peer("quack-kernels", _layer_quack),
}

# --- layer_norm_backward: below autograd, too ---


def _layer_backward_torch(_: Any) -> Callable[[Any], Any]:
    norm = torch.ops.aten.native_layer_norm_backward

    def call(a: Any) -> Any:
        statistics = a.mean[:, None], a.rstd[:, None]
        return norm(a.dy, a.x, a.weight.shape, *statistics, a.weight, a.bias, [True, True, True])

    return call


def _layer_backward_compile(_: Any) -> Callable[[Any], Any]:
    def formula(
        dy: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        mean: torch.Tensor,
        rstd: torch.Tensor,
    ) -> Any:
        h, wide = (x.float() - mean[:, None]) * rstd[:, None], dy.float()
        g = wide * weight.float()
        rest = g.mean(-1, keepdim=True) + h * (g * h).mean(-1, keepdim=True)
        dx = (rstd[:, None] * (g - rest)).to(x.dtype)
        return dx, (wide * h).sum(0).to(weight.dtype), wide.sum(0).to(weight.dtype)

    compiled = _compiled(formula)
    return lambda a: compiled(a.dy, a.x, a.weight, a.mean, a.rstd)


def _layer_backward_liger(_: Any) -> Callable[[Any], Any]:
    norm = _module("liger_kernel.ops.layer_norm").layer_norm_backward
    return lambda a: norm(a.dy, a.x, a.weight, a.bias, a.mean, a.rstd)


LAYER_NORM_BACKWARD = {
    "torch": Peer("torch", _layer_backward_torch),
    "compile": Peer("torch", _layer_backward_compile),
    "liger": Peer("liger_kernel", _layer_backward_liger),
}


# --- rms_norm_gated and its gradients, which torch lacks: torch's parts, eager and compiled ---


def _gated_formula(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()
    return (wide * torch.nn.functional.silu(z.float())).to(x.dtype)


def _gated_torch(_: Any) -> Callable[[Any], Any]:
    functions = torch.nn.functional

    def call(a: Any) -> Any:
        return functions.rms_norm(a.x, a.weight.shape, a.weight, EPS) * functions.silu(a.z)

    return call


def _gated_compile(_: Any) -> Callable[[Any], Any]:
    compiled = _compiled(_gated_formula)
    return lambda a: compiled(a.x, a.z, a.weight)


def _gated_backward_compile(_: Any) -> Callable[[Any], Any]:
    def formula(
        dy: torch.Tensor, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
    ) -> Any:
        gate, h, wide = z.float(), x.float() * rstd[:, None], dy.float()
        s = torch.sigmoid(gate)
        of_norm, of_gate = wide * gate * s, wide * h * weight.float()
        g = of_norm * weight.float()
        dx = rstd[:, None] * (g - h * (g * h).mean(-1, keepdim=True))
        dz = of_gate * s * (1 + gate * (1 - s))
        return dx.to(x.dtype), dz.to(x.dtype), (of_norm * h).sum(0).to(weight.dtype)

    compiled = _compiled(formula)
    return lambda a: compiled(a.dy, a.x, a.z, a.weight, a.rstd)


RMS_NORM_GATED = {"torch": Peer("torch", _gated_torch), "compile": Peer("torch", _gated_compile)}
RMS_NORM_GATED_BACKWARD = {"compile": Peer("torch", _gated_backward_compile)}


# --- gated_activation ---


def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up as models write it."""
    return torch.nn.functional.silu(gate) * up


def _activation_compile(_: Any) -> Callable[[Any], Any]:
    compiled = _compiled(silu_and_mul)
    return lambda a: compiled(a.gate, a.up)


def _activation_liger(_: Any) -> Callable[[Any], Any]:
    forward = _module("liger_kernel.ops.swiglu").swiglu_forward
    return lambda a: forward(a.gate, a.up)[-1]


def _activation_flashinfer(_: Any) -> Callable[[Any], Any]:
    """flashinfer reads both halves from one array, which a set's first call packs."""
    function = _module("flashinfer").silu_and_mul

    def call(a: Any) -> Any:
        if not hasattr(a, "packed"):
            a.packed = torch.cat([a.gate, a.up], -1)
        return function(a.packed)

    return call


def _activation_backward_compile(_: Any) -> Callable[[Any], Any]:
    def gradients(dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Any:
        s = torch.sigmoid(gate.float())
        d, g = dy.float(), gate.float()
        dgate = d * up.float() * s * (1 + g * (1 - s))
        return dgate.to(gate.dtype), (d * g * s).to(gate.dtype)

    compiled = _compiled(gradients)
    return lambda a: compiled(a.dy, a.gate, a.up)


GATED_ACTIVATION = {
    "torch": Peer("torch", lambda _: lambda a: silu_and_mul(a.gate, a.up)),
    "compile": Peer("torch", _activation_compile),
    "liger": Peer("liger-kernel", _activation_liger),
    "flashinfer": Peer("flashinfer-python", _activation_flashinfer),
}
GATED_ACTIVATION_BACKWARD = {"compile": Peer("torch", _activation_backward_compile)}


def installed(names: list[str], known: dict[str, Peer]) -> dict[str, str]:
    """The version of each named peer that is installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(known[name].distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
