# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A strided array on the CPU and on GPUs, with the functions of the array-API standard 2025.12.

    import membound.ndarray as nd

    x = nd.arange(6, dtype=nd.float32, device="cuda").reshape((2, 3))
    x[:, 1] = nd.sum(x, axis=1)
    y = membound.softmax(x)  # every op takes an NDArray and returns one

Eager: each call does its work, on a GPU in the order of one stream per device. Slices, reshape,
permute_dims, broadcast_to and the like are views; what copies is called so. Arrays of other
libraries come in by ``asarray`` and ``from_dlpack`` without a copy, and leave by DLPack, the buffer
protocol and ``__cuda_array_interface__``.

Names, arguments, promotion and special cases are those of the standard. It also has the dtypes
bfloat16 and float16; there are no complex dtypes, and no linalg and fft extensions. What the
standard leaves open is as in NumPy, but never silent: uint64 and int64 do not promote to floats,
and assignment drops no fraction.
"""

import math

# fmt: off
# isort: off
from membound import _spellings
from membound._core import ARRAY_DTYPES, Device, DType, NDArray
from membound.ndarray._creation import (
    arange, asarray, empty, empty_like, eye, from_dlpack, full, full_like, linspace, meshgrid,
    ones, ones_like, tril, triu, zeros, zeros_like,
)
from membound.ndarray._elementwise import (
    abs, acos, acosh, add, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_invert,
    bitwise_left_shift, bitwise_or, bitwise_right_shift, bitwise_xor, ceil, clip, conj,
    copysign, cos, cosh, divide, equal, exp, expm1, floor, floor_divide, greater, greater_equal,
    hypot, imag, isfinite, isinf, isnan, less, less_equal, log, log1p, log2, log10, logaddexp,
    logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply, negative,
    nextafter, not_equal, positive, pow, real, reciprocal, remainder, round, sign, signbit, sin,
    sinh, sqrt, square, subtract, tan, tanh, trunc,
)
from membound.ndarray._indexing import take, take_along_axis
from membound.ndarray._info import __array_namespace_info__
from membound.ndarray._linalg import matmul, matrix_transpose, tensordot, vecdot
from membound.ndarray._manipulation import (
    broadcast_arrays, broadcast_shapes, broadcast_to, concat, expand_dims, flip, moveaxis,
    permute_dims, repeat, reshape, roll, squeeze, stack, tile, unstack,
)
from membound.ndarray._random import Generator
from membound.ndarray._searching import argmax, argmin, count_nonzero, nonzero, searchsorted, where
from membound.ndarray._sets import isin, unique_all, unique_counts, unique_inverse, unique_values
from membound.ndarray._sorting import argsort, sort
from membound.ndarray._statistics import (
    cumulative_prod, cumulative_sum, max, mean, min, prod, std, sum, var,
)
from membound.ndarray._stencil import stencil_1d, stencil_1d_backward
from membound.ndarray._training import adamw
from membound.ndarray._types import astype, can_cast, finfo, iinfo, isdtype, result_type
from membound.ndarray._utility import all, any, diff
from membound.ndarray._methods import attach
# isort: on

__all__ = [
    "DType", "Device", "Generator", "NDArray", "__array_api_version__",
    "__array_namespace_info__", "abs", "acos", "acosh", "adamw", "add", "all", "any", "arange",
    "argmax",
    "argmin", "argsort", "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh",
    "bfloat16", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays", "broadcast_shapes",
    "broadcast_to", "can_cast", "ceil", "clip", "concat", "conj", "copysign", "cos", "cosh",
    "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "empty",
    "empty_like", "equal", "exp", "expand_dims", "expm1", "eye", "finfo", "flip", "float16",
    "float32", "float64", "floor", "floor_divide", "from_dlpack", "full", "full_like",
    "greater", "greater_equal", "hypot", "iinfo", "imag", "inf", "int8", "int16", "int32",
    "int64", "isdtype", "isfinite", "isin", "isinf", "isnan", "less", "less_equal", "linspace",
    "log", "log1p", "log2", "log10", "logaddexp", "logical_and", "logical_not", "logical_or",
    "logical_xor", "matmul", "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min",
    "minimum", "moveaxis", "multiply", "nan", "negative", "newaxis", "nextafter", "nonzero",
    "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive", "pow", "prod", "real",
    "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll", "round",
    "searchsorted", "sign", "signbit", "sin", "sinh", "sort", "sqrt", "square", "squeeze",
    "stack", "std", "stencil_1d", "stencil_1d_backward", "subtract", "sum", "take",
    "take_along_axis", "tan", "tanh", "tensordot",
    "tile", "tril", "triu", "trunc", "uint8", "uint16", "uint32", "uint64", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "vecdot", "where",
    "zeros", "zeros_like",
]
# fmt: on

__array_api_version__ = "2025.12"

e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None

bool = ARRAY_DTYPES["bool"]
int8 = ARRAY_DTYPES["int8"]
int16 = ARRAY_DTYPES["int16"]
int32 = ARRAY_DTYPES["int32"]
int64 = ARRAY_DTYPES["int64"]
uint8 = ARRAY_DTYPES["uint8"]
uint16 = ARRAY_DTYPES["uint16"]
uint32 = ARRAY_DTYPES["uint32"]
uint64 = ARRAY_DTYPES["uint64"]
bfloat16 = ARRAY_DTYPES["bfloat16"]
float16 = ARRAY_DTYPES["float16"]
float32 = ARRAY_DTYPES["float32"]
float64 = ARRAY_DTYPES["float64"]

attach()


def __getattr__(name: str) -> object:
    raise _spellings.missing_attribute(name, __all__, "membound.ndarray")
