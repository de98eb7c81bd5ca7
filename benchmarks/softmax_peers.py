# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Other libraries' softmax over the last axis, and its gradient."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from peers import Peer


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def _torch(_: Any) -> Callable[[Any], Any]:
    return lambda a: torch._softmax(a.x, -1, False, out=a.out)


def _compile(_: Any) -> Callable[[Any], Any]:
    function = _compiled(lambda x: torch.softmax(x, -1))
    return lambda a: function(a.x)


def _quack(_: Any) -> Callable[[Any], Any]:
    function = importlib.import_module("quack.softmax").softmax_fwd
    return lambda a: function(a.x)


def _liger(_: Any) -> Callable[[Any], Any]:
    function = importlib.import_module("liger_kernel.ops.softmax")._softmax_forward
    return lambda a: function(a.x)[0]


def _backward_torch(_: Any) -> Callable[[Any], Any]:
    backward = torch._softmax_backward_data
    return lambda a: backward(a.dy, a.y, -1, a.y.dtype, grad_input=a.dx)


def _backward_compile(_: Any) -> Callable[[Any], Any]:
    def gradient(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        d, p = dy.float(), y.float()
        return (p * (d - (d * p).sum(-1, keepdim=True))).to(y.dtype)

    function = _compiled(gradient)
    return lambda a: function(a.dy, a.y)


def _backward_quack(_: Any) -> Callable[[Any], Any]:
    function = importlib.import_module("quack.softmax").softmax_bwd
    return lambda a: function(a.dy, a.y)


SOFTMAX = {
    "torch": Peer("torch", _torch),
    "compile": Peer("torch", _compile),
    "quack": Peer("quack-kernels", _quack),
    "liger": Peer("liger-kernel", _liger),
}
SOFTMAX_BACKWARD = {
    "torch": Peer("torch", _backward_torch),
    "compile": Peer("torch", _backward_compile),
    "quack": Peer("quack-kernels", _backward_quack),
}
