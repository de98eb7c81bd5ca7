# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input to the norms other than rms_norm; cases that all ops share are in test_errors."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from bad_calls import SHAPE, Call, Case, Subclass, check, f32, read_only, unaligned
from dlpack_objects import CUDA, DlpackObject
from numpy.lib.stride_tricks import as_strided

import membound


def partly(name: str, other: str) -> Call:
    """Two arrays of one buffer, one row apart."""
    buffer = f32(5, 4)
    return {name: buffer[:3], other: buffer[1:4]}


def rows(dtype: type = np.float32, count: int = 3) -> np.ndarray:
    return np.ones(count, dtype)


def same(*names: str) -> Call:
    array = f32()
    return dict.fromkeys(names, array)


ADD: list[Case] = [
    ("no residual", lambda: {"residual": None}, TypeError, "residual"),
    ("list residual", lambda: {"residual": [[1.0] * 4] * 3}, TypeError, "residual"),
    ("residual of another dtype", lambda: {"residual": np.ones(SHAPE, int)}, TypeError, "residual"),
    ("residual of another shape", lambda: {"residual": f32(4, 3)}, ValueError, "residual"),
    ("residual of another rank", lambda: {"residual": f32(12)}, ValueError, "residual"),
    ("broadcast by us", lambda: {"residual": f32(1, 4)}, ValueError, "residual"),
    ("unaligned residual", lambda: {"residual": unaligned()}, ValueError, "residual"),
    ("masked residual", lambda: {"residual": np.ma.masked_array(f32())}, TypeError, "residual"),
    ("int residual", lambda: {"residual": np.ones(SHAPE, int)}, TypeError, "residual"),
    ("no columns", lambda: {"x": f32(3, 0)}, ValueError, "x"),
    ("long weight", lambda: {"weight": f32(5)}, ValueError, "weight"),
    ("residual_out of another dtype", lambda: {"residual_out": np.ones(SHAPE, np.int32)}, TypeError,
     "residual_out"),
    ("residual_out of another shape", lambda: {"residual_out": f32(3, 5)}, ValueError,
     "residual_out"),
    ("read-only residual_out", lambda: {"residual_out": read_only()}, ValueError, "residual_out"),
    ("broadcast residual_out", lambda: {"residual_out": as_strided(f32(4), SHAPE, (0, 4))},
     ValueError, "residual_out"),
    ("one array for both results", lambda: same("out", "residual_out"), ValueError, "residual_out"),
    ("residual_out over x in part", lambda: partly("x", "residual_out"), ValueError,
     "residual_out"),
    ("residual_out over residual in part", lambda: partly("residual", "residual_out"), ValueError,
     "residual_out"),
    ("out over residual in part", lambda: partly("residual", "out"), ValueError, "out"),
    ("eps negative", lambda: {"eps": -1.0}, ValueError, "eps"),
    ("unknown rounding", lambda: {"rounding": "thrice"}, ValueError, "rounding"),
    ("return_rstd int", lambda: {"return_rstd": 1}, TypeError, "return_rstd"),
    ("stream on the CPU", lambda: {"stream": 0}, ValueError, "stream"),
    ("unknown device", lambda: {"device": "tpu"}, ValueError, "device"),
    ("misspelt", lambda: {"epsilon": 1e-6}, TypeError, "epsilon"),
]  # fmt: skip

FUSED: list[Case] = [
    ("list", lambda: {"input": [[1.0] * 4] * 3}, TypeError, "input"),
    ("read-only input", lambda: {"input": read_only()}, ValueError, "input"),
    ("read-only residual", lambda: {"residual": read_only()}, ValueError, "residual"),
    ("no residual", lambda: {"residual": None}, TypeError, "residual"),
    ("int weight", lambda: {"weight": [1] * 4}, TypeError, "weight"),
    ("epsilon text", lambda: {"epsilon": "tiny"}, TypeError, "epsilon"),
    ("the name of another op", lambda: {"eps": 1e-6}, TypeError, "eps"),
]

BACKWARD: list[Case] = [
    ("dy None", lambda: {"dy": None}, TypeError, "dy"),
    ("list dy", lambda: {"dy": [[1.0] * 4] * 3}, TypeError, "dy"),
    ("dy of another dtype", lambda: {"dy": np.ones(SHAPE, np.int32)}, TypeError, "dy"),
    ("dy of another shape", lambda: {"dy": f32(4, 3)}, ValueError, "dy"),
    ("dy of a row", lambda: {"dy": f32(4)}, ValueError, "dy"),
    ("subclass", lambda: {"dy": f32().view(Subclass)}, TypeError, "dy"),
    ("unaligned dy", lambda: {"dy": unaligned()}, ValueError, "dy"),
    ("weight too short", lambda: {"weight": f32(3)}, ValueError, "weight"),
    ("weight of rank 2", lambda: {"weight": f32(1, 4)}, ValueError, "weight"),
    ("integer weight", lambda: {"weight": np.ones(4, np.int64)}, TypeError, "weight"),
    ("rstd None", lambda: {"rstd": None}, TypeError, "rstd"),
    ("rstd of another dtype", lambda: {"rstd": rows(np.float16)}, TypeError, "rstd"),
    ("rstd too short", lambda: {"rstd": rows(count=2)}, ValueError, "rstd"),
    ("rstd with an axis more", lambda: {"rstd": f32(3, 2)}, ValueError, "rstd"),
    ("dx of another dtype", lambda: {"dx": np.ones(SHAPE, np.int32)}, TypeError, "dx"),
    ("dx of another shape", lambda: {"dx": f32(4, 3)}, ValueError, "dx"),
    ("read-only dx", lambda: {"dx": read_only()}, ValueError, "dx"),
    ("broadcast dx", lambda: {"dx": as_strided(f32(4), SHAPE, (0, 4))}, ValueError, "dx"),
    ("dx over dy in part", lambda: partly("dy", "dx"), ValueError, "dx"),
    ("dx not wanted", lambda: {"dx": f32(), "need_dx": False}, ValueError, "dx"),
    ("int dweight", lambda: {"dweight": np.ones(4, np.int32)}, TypeError, "dweight"),
    ("dweight too long", lambda: {"dweight": f32(5)}, ValueError, "dweight"),
    ("dweight of rank 2", lambda: {"dweight": f32(1, 4)}, ValueError, "dweight"),
    ("dweight of one element", lambda: {"dweight": as_strided(f32(1), (4,), (0,))}, ValueError,
     "dweight"),
    ("dweight is the weight", lambda: dict.fromkeys(("weight", "dweight"), f32(4)), ValueError,
     "dweight"),
    ("dweight without weight", lambda: {"weight": None, "dweight": f32(4)}, ValueError, "dweight"),
    ("dweight not wanted", lambda: {"dweight": f32(4), "need_dweight": False}, ValueError,
     "dweight"),
    ("dweight is a row of dx", lambda: row_of_dx(), ValueError, "dweight"),
    ("nothing to add to", lambda: {"accumulate": True}, ValueError, "dweight"),
    ("nothing to add to, unwanted", lambda: {"accumulate": True, "need_dweight": False},
     ValueError, "dweight"),
    ("accumulate int", lambda: {"accumulate": 1, "dweight": f32(4)}, TypeError, "accumulate"),
    ("need_dx None", lambda: {"need_dx": None}, TypeError, "need_dx"),
    ("need_dweight int", lambda: {"need_dweight": 1}, TypeError, "need_dweight"),
    ("offset infinite", lambda: {"weight_offset": float("inf")}, ValueError, "weight_offset"),
    ("unknown rounding", lambda: {"rounding": None}, ValueError, "rounding"),
    ("stream on the CPU", lambda: {"stream": 0}, ValueError, "stream"),
    ("device", lambda: {"device": "cuda"}, TypeError, "device"),
    ("eps", lambda: {"eps": 1e-6}, TypeError, "eps"),
]  # fmt: skip

ADD_BACKWARD: list[Case] = [
    ("GPU without dx", lambda: {"dy": DlpackObject(f32(), device=CUDA)}, ValueError, "dx"),
    ("second gradient of another dtype", lambda: {"dresidual_out": np.ones(SHAPE, int)}, TypeError,
     "dresidual_out"),
    ("second gradient of another shape", lambda: {"dresidual_out": f32(2, 4)}, ValueError,
     "dresidual_out"),
    ("dx over it in part", lambda: partly("dresidual_out", "dx"), ValueError, "dx"),
    ("x by another name", lambda: {"x": f32()}, TypeError, "x"),
    ("no columns", lambda: {"residual_out": f32(3, 0)}, ValueError, "residual_out"),
]  # fmt: skip


LAYER: list[Case] = [
    ("list", lambda: {"x": [[1.0] * 4] * 3}, TypeError, "x"),
    ("integers", lambda: {"x": np.ones(SHAPE, np.int32)}, TypeError, "x"),
    ("no columns", lambda: {"x": f32(3, 0)}, ValueError, "x"),
    ("0-d", lambda: {"x": np.array(1.0, np.float32)}, ValueError, "x"),
    ("long weight", lambda: {"weight": f32(5)}, ValueError, "weight"),
    ("list bias", lambda: {"bias": [0.0] * 4}, TypeError, "bias"),
    ("integer bias", lambda: {"bias": np.ones(4, np.int64)}, TypeError, "bias"),
    ("long bias", lambda: {"bias": f32(5)}, ValueError, "bias"),
    ("bias of rank 2", lambda: {"bias": f32(1, 4)}, ValueError, "bias"),
    ("unaligned bias", lambda: {"bias": np.ones(17, np.uint8)[1:].view(np.float32)}, ValueError,
     "bias"),
    ("masked bias", lambda: {"bias": np.ma.masked_array(f32(4))}, TypeError, "bias"),
    ("out is the bias", lambda: shared_with_bias(), ValueError, "out"),
    ("out of another dtype", lambda: {"out": np.ones(SHAPE, np.int32)}, TypeError, "out"),
    ("read-only out", lambda: {"out": read_only()}, ValueError, "out"),
    ("out over x in part", lambda: partly("x", "out"), ValueError, "out"),
    ("eps negative", lambda: {"eps": -1.0}, ValueError, "eps"),
    ("eps NaN", lambda: {"eps": float("nan")}, ValueError, "eps"),
    ("eps text", lambda: {"eps": "1e-6"}, TypeError, "eps"),
    ("offset infinite", lambda: {"weight_offset": float("inf")}, ValueError, "weight_offset"),
    ("no rounding here", lambda: {"rounding": "once"}, TypeError, "rounding"),
    ("the flag of rms_norm", lambda: {"return_rstd": True}, TypeError, "return_rstd"),
    ("return_stats int", lambda: {"return_stats": 1}, TypeError, "return_stats"),
    ("stream on the CPU", lambda: {"stream": 0}, ValueError, "stream"),
    ("unknown device", lambda: {"device": "tpu"}, ValueError, "device"),
]  # fmt: skip

# BACKWARD's cases of rstd also apply to mean, those of dweight to dbias.
LAYER_BACKWARD: list[Case] = [
    ("mean None", lambda: {"mean": None}, TypeError, "mean"),
    ("mean of another dtype", lambda: {"mean": rows(np.float16)}, TypeError, "mean"),
    ("mean too short", lambda: {"mean": rows(count=2)}, ValueError, "mean"),
    ("dx is the mean", lambda: shared_with_mean(), ValueError, "dx"),
    ("int dbias", lambda: {"dbias": np.ones(4, np.int32)}, TypeError, "dbias"),
    ("dbias too long", lambda: {"dbias": f32(5)}, ValueError, "dbias"),
    ("dbias of rank 2", lambda: {"dbias": f32(1, 4)}, ValueError, "dbias"),
    ("read-only dbias", lambda: {"dbias": read_only()[0]}, ValueError, "dbias"),
    ("dbias of one element", lambda: {"dbias": as_strided(f32(1), (4,), (0,))}, ValueError,
     "dbias"),
    ("dbias is the weight", lambda: dict.fromkeys(("weight", "dbias"), f32(4)), ValueError,
     "dbias"),
    ("one array for both sums", lambda: dict.fromkeys(("dweight", "dbias"), f32(4)), ValueError,
     "dbias"),
    ("dbias not wanted", lambda: {"dbias": f32(4), "need_dbias": False}, ValueError, "dbias"),
    ("need_dbias int", lambda: {"need_dbias": 1}, TypeError, "need_dbias"),
    ("nothing to add dbias to", lambda: {"accumulate": True, "dweight": f32(4)}, ValueError,
     "dbias"),
    ("nothing to add dweight to", lambda: {"accumulate": True, "dbias": f32(4)}, ValueError,
     "dweight"),
    ("no sum to add to", lambda: {"accumulate": True, "need_dweight": False, "need_dbias": False},
     ValueError, "dweight"),
    ("no rounding here", lambda: {"rounding": "once"}, TypeError, "rounding"),
]  # fmt: skip

GEMMA: list[Case] = [
    ("no weight", lambda: {"weight": None}, TypeError, "weight"),
    ("another offset", lambda: {"weight_offset": 0.0}, TypeError, "weight_offset"),
    ("list weight", lambda: {"weight": [0.0] * 4}, TypeError, "weight"),
]


GATED: list[Case] = [
    ("no z", lambda: {"z": None}, TypeError, "z"),
    ("list z", lambda: {"z": [[1.0] * 4] * 3}, TypeError, "z"),
    ("z of another dtype", lambda: {"z": np.ones(SHAPE, np.int32)}, TypeError, "z"),
    ("z of another shape", lambda: {"z": f32(4, 3)}, ValueError, "z"),
    ("z of a row", lambda: {"z": f32(4)}, ValueError, "z"),
    ("unaligned z", lambda: {"z": unaligned()}, ValueError, "z"),
    ("integers", lambda: {"x": np.ones(SHAPE, np.int32)}, TypeError, "x"),
    ("no columns", lambda: {"x": f32(3, 0)}, ValueError, "x"),
    ("long weight", lambda: {"weight": f32(5)}, ValueError, "weight"),
    ("out of another dtype", lambda: {"out": np.ones(SHAPE, np.int32)}, TypeError, "out"),
    ("read-only out", lambda: {"out": read_only()}, ValueError, "out"),
    ("out over x in part", lambda: partly("x", "out"), ValueError, "out"),
    ("out over z in part", lambda: partly("z", "out"), ValueError, "out"),
    ("order of a number", lambda: {"norm_before_gate": 1}, TypeError, "norm_before_gate"),
    ("eps negative", lambda: {"eps": -1.0}, ValueError, "eps"),
    ("unknown rounding", lambda: {"rounding": "thrice"}, ValueError, "rounding"),
    ("return_rstd int", lambda: {"return_rstd": 1}, TypeError, "return_rstd"),
    ("stream on the CPU", lambda: {"stream": 0}, ValueError, "stream"),
    ("unknown device", lambda: {"device": "tpu"}, ValueError, "device"),
    ("the name of another library", lambda: {"gate": f32()}, TypeError, "gate"),
]

# In addition to BACKWARD; its cases of dx also apply to dz.
GATED_BACKWARD: list[Case] = [
    *GATED[:6],
    ("order of a number", lambda: {"norm_before_gate": 1}, TypeError, "norm_before_gate"),
    ("dz of another dtype", lambda: {"dz": np.ones(SHAPE, np.int32)}, TypeError, "dz"),
    ("dz of another shape", lambda: {"dz": f32(4, 3)}, ValueError, "dz"),
    ("read-only dz", lambda: {"dz": read_only()}, ValueError, "dz"),
    ("broadcast dz", lambda: {"dz": as_strided(f32(4), SHAPE, (0, 4))}, ValueError, "dz"),
    ("dz over z in part", lambda: partly("z", "dz"), ValueError, "dz"),
    ("dx over z in part", lambda: partly("z", "dx"), ValueError, "dx"),
    ("one array for both", lambda: same("dx", "dz"), ValueError, "dz"),
    ("both over one input", lambda: same("x", "dx", "dz"), ValueError, "dz"),
    ("dz not wanted", lambda: {"dz": f32(), "need_dz": False}, ValueError, "dz"),
    ("need_dz int", lambda: {"need_dz": 1}, TypeError, "need_dz"),
    ("dweight is a row of dz", lambda: row_of_dz(), ValueError, "dweight"),
]


def row_of_dz() -> Call:
    dz = f32()
    return {"dz": dz, "dweight": dz[1]}


def shared_with_bias() -> Call:
    out = f32()
    return {"bias": out[1], "out": out}


def shared_with_mean() -> Call:
    dx = f32()
    return {"mean": dx[:, 0], "dx": dx}


def row_of_dx() -> Call:
    dx = f32()
    return {"dx": dx, "dweight": dx[1]}


def good(op: str) -> Call:
    if "fused" in op:
        return {"input": f32(), "residual": f32(), "weight": f32(4)}
    bias = {"bias": f32(4)} if "layer" in op else {}
    if not op.endswith("backward"):
        second = {"residual": f32()} if "add" in op else {"z": f32()} if "gated" in op else {}
        return {"x": f32(), **second, "weight": f32(4), **bias}
    mean = {"mean": rows()} if "layer" in op else {}
    x = {"dresidual_out": f32(), "residual_out": f32()} if "add" in op else {"x": f32()}
    x |= {"z": f32()} if "gated" in op else {}
    return {"dy": f32(), **x, "weight": f32(4), **mean, "rstd": rows()}


# Cases of rms_norm with arguments that layer_norm does not have.
ROUNDING = [case for case in BACKWARD if "rounding" in case[0]]
SUMS = [case for case in BACKWARD if case not in ROUNDING and "unwanted" not in case[0]]
ADDED = [case for case in ADD if "rounding" not in case[0] and "rstd" not in case[0]]

TABLE = [
    pytest.param(op, *case[1:], id=f"{op}-{case[0]}")
    for op, cases in (
        ("add_rms_norm", ADD),
        ("fused_add_rms_norm", FUSED),
        ("gemma_fused_add_rms_norm", [*FUSED, GEMMA[0]]),
        ("gemma_rms_norm", GEMMA),
        ("rms_norm_backward", BACKWARD),
        ("add_rms_norm_backward", BACKWARD),
        ("add_rms_norm_backward", ADD_BACKWARD),
        ("layer_norm", LAYER),
        ("add_layer_norm", [*ADDED, *LAYER]),
        ("layer_norm_backward", [*SUMS, *LAYER_BACKWARD]),
        ("add_layer_norm_backward", [*SUMS, *LAYER_BACKWARD, *ADD_BACKWARD]),
        ("rms_norm_gated", GATED),
        ("rms_norm_gated_backward", [*BACKWARD, *GATED_BACKWARD]),
    )
    for case in cases
]


@pytest.mark.parametrize(("op", "call", "expected", "argument"), TABLE)
def test_numpy(op, call, expected, argument):
    check(getattr(membound, op), call(), good(op), expected, argument)


# The number of positional arguments.
OPS = {
    "add_rms_norm": 3,
    "fused_add_rms_norm": 4,
    "rms_norm_backward": 4,
    "add_rms_norm_backward": 5,
    "layer_norm": 3,
    "add_layer_norm": 4,
    "layer_norm_backward": 5,
    "add_layer_norm_backward": 6,
    "rms_norm_gated": 3,
    "rms_norm_gated_backward": 5,
    "gemma_rms_norm": 2,
    "gemma_fused_add_rms_norm": 4,
}


def in_torch(torch: Any, call: Call) -> Call:
    return {name: torch.from_numpy(value) for name, value in call.items()}


@pytest.mark.parametrize("op", OPS)
def test_torch_tensors_that_require_grad(op):
    """Recorded if the op has a gradient, else refused; accepted while nothing is recorded."""
    torch = pytest.importorskip("torch")
    plain = in_torch(torch, good(op))
    function = getattr(membound, op)
    for name, value in plain.items():
        call = {**plain, name: value.clone().requires_grad_()}
        if op in importlib.import_module("membound.torch._functions").RECORDED:
            result = function(**call)
            first = result[0] if isinstance(result, tuple) else result
            assert first.requires_grad
        else:
            with pytest.raises(RuntimeError, match=rf"^{op}: argument '{name}' requires grad"):
                function(**call)
        with torch.no_grad():
            function(**call)


@pytest.mark.parametrize("op", OPS)
def test_arrays_of_two_frameworks(op):
    torch = pytest.importorskip("torch")
    call = good(op)
    first, *others = call
    for name in others:
        mixed = {**in_torch(torch, call), name: call[name]}
        with pytest.raises(TypeError, match=rf"'{name}' must be a torch array like '{first}'"):
            getattr(membound, op)(**mixed)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("missing", range(6))
def test_missing_arguments_are_named(op, missing):
    call = good(op)
    required = list(call)
    if op in ("add_rms_norm", "layer_norm", "add_layer_norm", "rms_norm_gated"):
        required = [name for name in required if name not in ("weight", "bias")]
    if missing >= len(required):
        pytest.skip("it has fewer")
    del call[required[missing]]
    with pytest.raises(TypeError, match=rf"^{op}: missing argument '{required[missing]}'"):
        getattr(membound, op)(**call)


@pytest.mark.parametrize(("op", "most"), OPS.items())
def test_options_are_named_at_the_call(op, most):
    with pytest.raises(TypeError, match=rf"^{op}: takes at most {most} positional"):
        getattr(membound, op)(*[f32()] * (most + 1))


def written_by(op: str) -> tuple[str, ...]:
    """The names of the output arguments."""
    if "fused" in op:
        return ()
    if op.endswith("backward"):
        more = ("dbias",) if "layer" in op else ("dz",) if "gated" in op else ()
        return ("dx", "dweight", *more)
    return ("out", "residual_out") if "add" in op else ("out",)


@pytest.mark.skipif(membound.cuda_status().device_count > 0, reason="there is a GPU")
@pytest.mark.parametrize("op", OPS)
def test_gpu_arrays_without_a_gpu(op):
    """The error names the op, and nothing is written."""
    lent = {name: DlpackObject(value, device=CUDA) for name, value in good(op).items()}
    for name in written_by(op):
        shape = (4,) if name in ("dweight", "dbias") else SHAPE
        lent[name] = DlpackObject(np.ones(shape, np.float32), device=CUDA)
    core = op.removeprefix("gemma_").removeprefix("fused_")
    with pytest.raises(membound.CudaError, match=rf"^{core}: "):
        getattr(membound, op)(**lent)
    assert all((one.array == 1).all() for one in lent.values())
