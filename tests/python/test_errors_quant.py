# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that rms_norm_quant and add_rms_norm_quant refuse: exception, text, nothing written."""

from __future__ import annotations

import bad_calls
import ml_dtypes
import numpy as np
import pytest
from bad_calls import SHAPE, Call, Case, f32, read_only
from dlpack_objects import CUDA, DlpackObject
from numpy.lib.stride_tricks import as_strided

import membound

OPS = ("rms_norm_quant", "add_rms_norm_quant")


def i8(*shape: int) -> np.ndarray:
    return np.ones(shape or SHAPE, np.int8)


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def one() -> np.ndarray:
    return np.array(1.0, np.float32)


def codes_in_x() -> Call:
    x = f32()
    return {"x": x, "out": x.view(np.int8)[:, :4]}


def scales_in_x() -> Call:
    x = f32()
    return {"x": x, "scale_out": x[:, 1]}


def scales_in_out() -> Call:
    bytes_ = np.ones((3, 8), np.int8)
    return {"out": bytes_[:, 2:6], "scale_out": bytes_.view(np.float32)[:, 1]}


CASES: list[Case] = [
    ("list", lambda: {"x": [[1.0] * 4] * 3}, TypeError, "x"),
    ("integers", lambda: {"x": np.ones(SHAPE, np.int32)}, TypeError, "x"),
    ("8 bits", lambda: {"x": i8()}, TypeError, "x"),
    ("no columns", lambda: {"x": f32(3, 0), "weight": None}, ValueError, "x"),
    ("0-d", lambda: {"x": one(), "weight": None}, ValueError, "x"),
    ("long weight", lambda: {"weight": f32(5)}, ValueError, "weight"),
    ("unknown dtype", lambda: {"dtype": "int4"}, TypeError, "dtype"),
    ("dtype of the input", lambda: {"dtype": np.float32}, TypeError, "dtype"),
    ("no dtype", lambda: {"dtype": 8}, TypeError, "dtype"),
    ("another float8", lambda: {"dtype": ml_dtypes.float8_e4m3fnuz}, TypeError, "dtype"),
    ("out of another dtype", lambda: {"out": f32()}, TypeError, "out"),
    ("out without sign", lambda: {"out": i8().view(np.uint8)}, TypeError, "out"),
    ("out is not the dtype", lambda: {"out": i8(), "dtype": "float8_e5m2"}, TypeError, "out"),
    ("out of another shape", lambda: {"out": i8(4, 3)}, ValueError, "out"),
    ("broadcast out", lambda: {"out": as_strided(i8(4), SHAPE, (0, 1))}, ValueError, "out"),
    ("read-only out", lambda: {"out": frozen(i8())}, ValueError, "out"),
    ("out in the bytes of x", codes_in_x, ValueError, "out"),
    ("scale is a number", lambda: {"scale": 0.5}, TypeError, "scale"),
    ("scale of another dtype", lambda: {"scale": np.ones(1)}, TypeError, "scale"),
    ("two scales", lambda: {"scale": f32(2)}, ValueError, "scale"),
    ("scale of rank 2", lambda: {"scale": f32(1, 1)}, ValueError, "scale"),
    ("static and groups", lambda: {"scale": one(), "group_size": 64}, ValueError, "group_size"),
    ("static and a bound", lambda: {"scale": one(), "scale_upper_bound": 1.0}, ValueError,
     "scale_upper_bound"),
    ("static and scale_out", lambda: {"scale": one(), "scale_out": f32(3)}, TypeError,
     "scale_out"),
    ("groups of 32", lambda: {"group_size": 32}, ValueError, "group_size"),
    ("groups of none", lambda: {"group_size": 0}, ValueError, "group_size"),
    ("groups of a fraction", lambda: {"group_size": 64.0}, TypeError, "group_size"),
    ("groups of truth", lambda: {"group_size": True}, TypeError, "group_size"),
    ("bound of 0", lambda: {"scale_upper_bound": 0}, ValueError, "scale_upper_bound"),
    ("bound NaN", lambda: {"scale_upper_bound": float("nan")}, ValueError, "scale_upper_bound"),
    ("bound in words", lambda: {"scale_upper_bound": "1"}, TypeError, "scale_upper_bound"),
    ("scale_out of another dtype", lambda: {"scale_out": np.ones(3)}, TypeError, "scale_out"),
    ("scale_out of another shape", lambda: {"scale_out": f32(3, 1)}, ValueError, "scale_out"),
    ("scale_out for groups", lambda: {"scale_out": f32(3), "group_size": 64}, ValueError,
     "scale_out"),
    ("scale_out of one element", lambda: {"scale_out": as_strided(f32(1), (3,), (0,))}, ValueError,
     "scale_out"),
    ("read-only scale_out", lambda: {"scale_out": read_only()[:, 0]}, ValueError, "scale_out"),
    ("scale_out in x", scales_in_x, ValueError, "scale_out"),
    ("scale_out in out", scales_in_out, ValueError, "scale_out"),
    ("eps negative", lambda: {"eps": -1.0}, ValueError, "eps"),
    ("eps text", lambda: {"eps": "1e-6"}, TypeError, "eps"),
    ("offset alone", lambda: {"weight": None, "weight_offset": 1.0}, ValueError, "weight_offset"),
    ("unknown rounding", lambda: {"rounding": "up"}, ValueError, "rounding"),
    ("stream on the CPU", lambda: {"stream": 0}, ValueError, "stream"),
    ("no device here", lambda: {"device": "cuda"}, TypeError, "device"),
    ("no statistics", lambda: {"return_rstd": True}, TypeError, "return_rstd"),
]  # fmt: skip


def sum_in_part() -> Call:
    buffer = f32(5, 4)
    return {"x": buffer[:3], "residual_out": buffer[1:4]}


def codes_in_the_sum() -> Call:
    total = f32()
    return {"residual_out": total, "out": total.view(np.int8)[:, :4]}


ADDED: list[Case] = [
    ("no residual", lambda: {"residual": None}, TypeError, "residual"),
    ("residual of another dtype", lambda: {"residual": np.ones(SHAPE)}, TypeError, "residual"),
    ("residual of another shape", lambda: {"residual": f32(2, 4)}, ValueError, "residual"),
    ("sum of another dtype", lambda: {"residual_out": i8()}, TypeError, "residual_out"),
    ("sum over x in part", sum_in_part, ValueError, "residual_out"),
    ("read-only sum", lambda: {"residual_out": read_only()}, ValueError, "residual_out"),
    ("codes in the sum", codes_in_the_sum, ValueError, "residual_out"),
]


def good(op: str) -> Call:
    residual = {"residual": f32()} if "add" in op else {}
    return {"x": f32(), **residual, "weight": f32(4)}


TABLE = [
    pytest.param(op, *case[1:], id=f"{op}-{case[0]}")
    for op in OPS
    for case in (*CASES, *(ADDED if "add" in op else []))
]


@pytest.mark.parametrize(("op", "call", "expected", "argument"), TABLE)
def test_numpy(op, call, expected, argument):
    arguments = call()
    if "x" in arguments and "add" in op:  # the residual is checked later
        arguments.setdefault("residual", arguments["x"])
    bad_calls.check(getattr(membound, op), arguments, good(op), expected, argument)


@pytest.mark.parametrize("op", OPS)
def test_torch_tensors_that_require_grad(op):
    torch = pytest.importorskip("torch")
    plain = {name: torch.from_numpy(value) for name, value in good(op).items()}
    for name, value in plain.items():
        call = {**plain, name: value.clone().requires_grad_()}
        with pytest.raises(RuntimeError, match=rf"^{op}: argument '{name}' requires grad"):
            getattr(membound, op)(**call)
        with torch.no_grad():
            getattr(membound, op)(**call)


@pytest.mark.parametrize("op", OPS)
def test_arrays_of_two_frameworks(op):
    torch = pytest.importorskip("torch")
    call = {name: torch.from_numpy(value) for name, value in good(op).items()}
    for name, value in {"weight": f32(4), "scale": one(), "out": i8(), "scale_out": f32(3)}.items():
        with pytest.raises(TypeError, match=rf"^{op}: argument '{name}' must be a torch array"):
            getattr(membound, op)(**{**call, name: value})


@pytest.mark.parametrize(("op", "most"), [("rms_norm_quant", 2), ("add_rms_norm_quant", 3)])
def test_options_are_named_at_the_call(op, most):
    with pytest.raises(TypeError, match=rf"^{op}: takes at most {most} positional"):
        getattr(membound, op)(*[f32()] * (most + 1))
    with pytest.raises(TypeError, match=rf"^{op}: missing argument 'x'"):
        getattr(membound, op)()


@pytest.mark.skipif(membound.cuda_status().device_count > 0, reason="there is a GPU")
@pytest.mark.parametrize("op", OPS)
def test_gpu_arrays_without_a_gpu(op):
    """The error names the op, and nothing is written."""
    arrays = {**good(op), "out": i8(), "scale_out": f32(3)}
    if "add" in op:
        arrays["residual_out"] = f32()
    lent = {name: DlpackObject(value, device=CUDA) for name, value in arrays.items()}
    with pytest.raises(membound.CudaError, match=rf"^{op}: "):
        getattr(membound, op)(**lent)
    assert all((value.array == 1).all() for value in lent.values())


def test_a_gpu_array_of_an_unknown_framework_needs_its_outputs():
    lent = DlpackObject(f32(), device=CUDA)
    with pytest.raises(ValueError, match="'out' must be given for a GPU array"):
        membound.rms_norm_quant(lent)
    out = DlpackObject(i8(), device=CUDA)
    with pytest.raises(ValueError, match="'scale_out' must be given for a GPU array"):
        membound.rms_norm_quant(lent, out=out)
