# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of functions on membound.ndarray, with membound's fused ops and their fused gradients.

    import membound.autograd as ag

    x = ag.Tensor([[1.0, 2.0]], requires_grad=True)
    loss = ag.sum(ag.rms_norm(x) ** 2)
    loss.backward()  # x.grad is an NDArray

Operations on a Tensor that requires grad are recorded as they run; ``backward`` adds gradients to
the leaves, ``grad`` returns those of any tensors. The walk has no recursion, and frees what was
saved and every gradient between as soon as it was used. It runs where the arrays are.

The names:

    Tensors          Tensor, grad, no_grad
    Operators        + - * / ** @ abs, comparisons (to bool arrays), indexing
    Element by element exp, log, tanh, sqrt, relu, sigmoid, where, astype
    Matrices, sums   matmul, sum, mean, max, min, var
    Shapes           reshape, permute_dims, broadcast_to, concat, stack
    Fused ops        rms_norm, layer_norm, rope, gated_activation, silu_and_mul, embedding, softmax,
                     cross_entropy
    Training         Module, Linear, Sequential, SGD, AdamW
"""

from membound import _spellings
from membound.autograd._functions import (
    astype,
    concat,
    exp,
    log,
    max,
    mean,
    min,
    relu,
    sigmoid,
    sqrt,
    stack,
    sum,
    tanh,
    var,
    where,
)
from membound.autograd._fused import (
    cross_entropy,
    embedding,
    gated_activation,
    layer_norm,
    rms_norm,
    rope,
    silu_and_mul,
    softmax,
)
from membound.autograd._graph import no_grad
from membound.autograd._layers import Linear, Module, Sequential
from membound.autograd._optimizers import SGD, AdamW
from membound.autograd._tensor import Tensor, broadcast_to, grad, matmul, permute_dims, reshape

# fmt: off
__all__ = [
    "SGD", "AdamW", "Linear", "Module", "Sequential", "Tensor", "astype", "broadcast_to", "concat",
    "cross_entropy", "embedding", "exp", "gated_activation", "grad", "layer_norm", "log", "matmul",
    "max", "mean", "min", "no_grad", "permute_dims", "relu", "reshape", "rms_norm", "rope",
    "sigmoid", "silu_and_mul", "softmax", "sqrt", "stack", "sum", "tanh", "var", "where",
]
# fmt: on


def __getattr__(name: str) -> object:
    raise _spellings.missing_attribute(name, __all__, "membound.autograd")
