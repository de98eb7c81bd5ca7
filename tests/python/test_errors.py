# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input: each case raises the documented exception, names op and argument, writes nothing."""

from __future__ import annotations

import array
import decimal
import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bad_calls import (
    SHAPE,
    Case,
    Subclass,
    check,
    f32,
    overlapping,
    read_only,
    record_with_float,
    released,
    shared_with_weight,
    unaligned,
)
from dlpack_objects import CUDA, METAL, BrokenDlpackObject, DlpackObject, LooseDlpackObject
from numpy.lib.stride_tricks import as_strided

import membound

# Arguments in addition to a valid x, weight and out; the exception; the argument it must name.
NUMPY: list[Case] = [
    ("list", lambda: {"x": [[1.0, 2.0]]}, TypeError, "x"),
    ("none", lambda: {"x": None}, TypeError, "x"),
    ("float", lambda: {"x": 1.5}, TypeError, "x"),
    ("numpy scalar", lambda: {"x": np.float32(1.5)}, TypeError, "x"),
    ("string", lambda: {"x": "array"}, TypeError, "x"),
    ("bytes", lambda: {"x": b"1234"}, TypeError, "x"),
    ("class", lambda: {"x": np.ndarray}, TypeError, "x"),
    ("list weight", lambda: {"weight": [1.0] * 4}, TypeError, "weight"),
    ("list out", lambda: {"out": [[0.0] * 4] * 3}, TypeError, "out"),
    ("int32", lambda: {"x": np.ones(SHAPE, np.int32)}, TypeError, "x"),
    ("int8", lambda: {"x": np.ones(SHAPE, np.int8)}, TypeError, "x"),
    ("bool", lambda: {"x": np.ones(SHAPE, bool)}, TypeError, "x"),
    ("complex", lambda: {"x": np.ones(SHAPE, np.complex64)}, TypeError, "x"),
    ("long double", lambda: {"x": np.ones(SHAPE, np.longdouble)}, TypeError, "x"),
    ("object", lambda: {"x": np.ones(SHAPE, object)}, TypeError, "x"),
    ("datetime", lambda: {"x": np.zeros(SHAPE, "M8[s]")}, TypeError, "x"),
    ("text", lambda: {"x": np.full(SHAPE, "a")}, TypeError, "x"),
    ("structured", lambda: {"x": np.ones(SHAPE, [("a", "f4")])}, TypeError, "x"),
    ("byte-swapped", lambda: {"x": np.ones(SHAPE, ">f4")}, TypeError, "x"),
    ("byte-swapped float64", lambda: {"x": np.ones(SHAPE, ">f8")}, TypeError, "x"),
    ("float8", lambda: {"x": f32().astype(ml_dtypes.float8_e4m3fn)}, TypeError, "x"),
    ("float8 e4m3fnuz", lambda: {"x": f32().astype(ml_dtypes.float8_e4m3fnuz)}, TypeError, "x"),
    ("int4", lambda: {"x": f32().astype(ml_dtypes.int4)}, TypeError, "x"),
    ("masked", lambda: {"x": np.ma.masked_array(f32())}, TypeError, "x"),
    ("matrix", lambda: {"x": f32().view(np.matrix)}, TypeError, "x"),
    ("subclass", lambda: {"x": f32().view(Subclass)}, TypeError, "x"),
    ("integer weight", lambda: {"weight": np.ones(4, np.int64)}, TypeError, "weight"),
    ("masked weight", lambda: {"weight": np.ma.masked_array(f32(4))}, TypeError, "weight"),
    ("out of integers", lambda: {"out": np.ones(SHAPE, np.int32)}, TypeError, "out"),
    ("0-d", lambda: {"x": np.array(1.0, np.float32), "weight": None}, ValueError, "x"),
    ("no columns", lambda: {"x": f32(3, 0)}, ValueError, "x"),
    ("unaligned", lambda: {"x": unaligned()}, ValueError, "x"),
    ("unaligned out", lambda: {"out": unaligned()}, ValueError, "out"),
    ("record strides", lambda: {"x": record_with_float()}, ValueError, "x"),
    ("weight too short", lambda: {"weight": f32(3)}, ValueError, "weight"),
    ("weight of rank 2", lambda: {"weight": f32(1, 4)}, ValueError, "weight"),
    ("0-d weight", lambda: {"weight": np.array(1.0, np.float32)}, ValueError, "weight"),
    ("out of another shape", lambda: {"out": f32(4, 3)}, ValueError, "out"),
    ("out of another rank", lambda: {"out": f32(12)}, ValueError, "out"),
    ("read-only out", lambda: {"out": read_only()}, ValueError, "out"),
    ("broadcast out", lambda: {"out": as_strided(f32(4), SHAPE, (0, 4))}, ValueError, "out"),
    ("self-crossing out", lambda: {"out": as_strided(f32(9), SHAPE, (8, 4))}, ValueError, "out"),
    ("out overlaps x", overlapping, ValueError, "out"),
    ("out is the weight", lambda: shared_with_weight(), ValueError, "out"),
    ("eps NaN", lambda: {"eps": float("nan")}, ValueError, "eps"),
    ("eps negative", lambda: {"eps": -1e-6}, ValueError, "eps"),
    ("eps infinite", lambda: {"eps": float("inf")}, ValueError, "eps"),
    ("eps huge int", lambda: {"eps": 10**400}, ValueError, "eps"),
    ("eps text", lambda: {"eps": "1e-6"}, TypeError, "eps"),
    ("eps complex", lambda: {"eps": 1e-6 + 0j}, TypeError, "eps"),
    ("eps array", lambda: {"eps": f32(2)}, TypeError, "eps"),
    ("offset NaN", lambda: {"weight_offset": float("nan")}, ValueError, "weight_offset"),
    ("offset text", lambda: {"weight_offset": "1"}, TypeError, "weight_offset"),
    ("unknown rounding", lambda: {"rounding": "twice"}, ValueError, "rounding"),
    ("rounding int", lambda: {"rounding": 1}, ValueError, "rounding"),
    ("return_rstd int", lambda: {"return_rstd": 1}, TypeError, "return_rstd"),
    ("return_rstd array", lambda: {"return_rstd": f32()}, TypeError, "return_rstd"),
    ("stream on the CPU", lambda: {"stream": 0}, ValueError, "stream"),
    ("stream text", lambda: {"stream": "main"}, TypeError, "stream"),
    ("stream bool", lambda: {"stream": True}, TypeError, "stream"),
    ("stream negative", lambda: {"stream": -1}, ValueError, "stream"),
    ("unknown device", lambda: {"device": "tpu"}, ValueError, "device"),
    ("device without number", lambda: {"device": "cuda:"}, ValueError, "device"),
    ("device negative", lambda: {"device": "cuda:-1"}, ValueError, "device"),
    ("unknown keyword", lambda: {"epsilon": 1e-6}, TypeError, "epsilon"),
    ("released memoryview", lambda: {"x": released()}, ValueError, "x"),
    ("integer memoryview", lambda: {"x": memoryview(array.array("i", [1]))}, TypeError, "x"),
    ("array of chars", lambda: {"x": memoryview(bytearray(4))}, TypeError, "x"),
    ("refusing __dlpack__", lambda: {"x": BrokenDlpackObject(f32())}, TypeError, "x"),
    ("__dlpack__ on Metal", lambda: {"x": DlpackObject(f32(), device=METAL)}, ValueError, "x"),
    ("__dlpack__ of ints", lambda: {"x": DlpackObject(np.ones(SHAPE, int))}, TypeError, "x"),
    ("read-only __dlpack__", lambda: {"out": DlpackObject(read_only())}, ValueError, "out"),
    ("no capsule", lambda: {"x": LooseDlpackObject(f32())}, TypeError, "x"),
    ("half a device", lambda: {"x": LooseDlpackObject(f32(), device=1)}, TypeError, "x"),
    ("device of text", lambda: {"x": LooseDlpackObject(f32(), device=("c", 0))}, TypeError, "x"),
    ("far device", lambda: {"x": LooseDlpackObject(f32(), device=(1, 1 << 40))}, TypeError, "x"),
    ("GPU without out", lambda: {"x": DlpackObject(f32(), device=CUDA), "out": None}, ValueError,
     "out"),
]  # fmt: skip


def torch_cases() -> list[Case]:
    def grad(torch: Any) -> Any:
        return torch.ones(SHAPE, requires_grad=True)

    def freed(torch: Any) -> Any:
        x = torch.ones(SHAPE)
        x.untyped_storage().resize_(0)
        return x

    def fake(torch: Any) -> Any:
        mode = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode()
        return mode.from_tensor(torch.ones(SHAPE))

    def subclass(torch: Any) -> Any:
        return torch.ones(SHAPE).as_subclass(type("Tagged", (torch.Tensor,), {}))

    def negated(torch: Any) -> Any:
        return torch.ones(SHAPE, dtype=torch.complex64).conj().imag

    def conjugated(torch: Any) -> Any:
        return torch.ones(SHAPE, dtype=torch.complex64).conj()

    def quantized(torch: Any) -> Any:
        return torch.empty(SHAPE, dtype=torch.float8_e4m3fnuz)

    return [
        ("x requires grad", lambda t: {"x": grad(t)}, RuntimeError, "x"),
        ("weight requires grad", lambda t: {"weight": t.nn.Parameter(t.ones(4))}, RuntimeError,
         "weight"),
        ("out requires grad", lambda t: {"out": grad(t)}, RuntimeError, "out"),
        ("freed storage", lambda t: {"x": freed(t)}, ValueError, "x"),
        ("fake tensor", lambda t: {"x": fake(t)}, TypeError, "x"),
        ("subclass", lambda t: {"x": subclass(t)}, TypeError, "x"),
        ("negated view", lambda t: {"x": negated(t)}, TypeError, "x"),
        ("conjugated", lambda t: {"x": conjugated(t)}, TypeError, "x"),
        ("sparse", lambda t: {"x": t.ones(SHAPE).to_sparse()}, TypeError, "x"),
        ("meta", lambda t: {"x": t.ones(SHAPE, device="meta")}, TypeError, "x"),
        ("float8", lambda t: {"x": quantized(t)}, TypeError, "x"),
        ("int64", lambda t: {"x": t.ones(SHAPE, dtype=t.int64)}, TypeError, "x"),
        ("bool", lambda t: {"x": t.ones(SHAPE, dtype=t.bool)}, TypeError, "x"),
        ("65 axes", lambda t: {"x": t.ones([1] * 65)}, ValueError, "x"),
        ("0-d", lambda t: {"x": t.tensor(1.0)}, ValueError, "x"),
        ("NumPy weight", lambda _: {"weight": f32(4)}, TypeError, "weight"),
        ("NumPy out", lambda _: {"out": f32()}, TypeError, "out"),
        ("expanded out", lambda t: {"out": t.ones(4).expand(SHAPE)}, ValueError, "out"),
        ("device", lambda _: {"device": "cuda"}, ValueError, "device"),
        ("stream", lambda _: {"stream": 0}, ValueError, "stream"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "expected", "argument"), [case[1:] for case in NUMPY], ids=[case[0] for case in NUMPY]
)
def test_numpy(call, expected, argument):
    good = {"x": f32(), "weight": f32(4), "out": np.zeros(SHAPE, np.float32)}
    check(membound.rms_norm, call(), good, expected, argument)


TORCH = torch_cases()


@pytest.mark.parametrize(
    ("call", "expected", "argument"), [case[1:] for case in TORCH], ids=[case[0] for case in TORCH]
)
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_torch(call, expected, argument):
    torch = pytest.importorskip("torch")
    good = {"x": torch.ones(SHAPE), "weight": torch.ones(4), "out": torch.zeros(SHAPE)}
    check(membound.rms_norm, call(torch), good, expected, argument)


@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_the_dtype_that_came_is_named(dtype):
    torch = pytest.importorskip("torch")
    x = torch.empty(SHAPE, dtype=getattr(torch, dtype))
    with pytest.raises(TypeError, match=rf"^rms_norm: argument 'x' has dtype torch\.{dtype},"):
        membound.rms_norm(x)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: {"device": "\udc80"}, ValueError),
        (lambda: {"device": "cpu\0"}, ValueError),
        (lambda: {"rounding": type("T", (), {"__repr__": lambda _: "\udc80"})()}, ValueError),
        (lambda: {"x": type("T", (), {"__module__": "\udc80"})()}, TypeError),
        (lambda: {"x": BrokenDlpackObject(f32(), "\udc80")}, TypeError),
    ],
    ids=["device", "device with a zero", "rounding", "type", "exporter"],
)
def test_text_that_utf8_cannot_hold(call, expected):
    (argument,) = call()
    check(membound.rms_norm, call(), {"x": f32()}, expected, argument)


def jax_cases() -> list[Case]:
    return [
        ("out", lambda j: {"out": j.numpy.ones(SHAPE)}, TypeError, "out"),
        ("NumPy weight", lambda _: {"weight": f32(4)}, TypeError, "weight"),
        ("stream", lambda _: {"stream": 0}, TypeError, "stream"),
        ("device", lambda _: {"device": "cpu"}, TypeError, "device"),
        ("eps", lambda _: {"eps": -1.0}, ValueError, "eps"),
        ("deleted", lambda j: {"x": deleted(j)}, RuntimeError, None),
    ]


def deleted(jax: Any) -> Any:
    x = jax.numpy.ones(SHAPE)
    x.delete()
    return x


JAX = jax_cases()


@pytest.mark.parametrize(
    ("call", "expected", "argument"), [case[1:] for case in JAX], ids=[case[0] for case in JAX]
)
def test_jax(call, expected, argument):
    jax = pytest.importorskip("jax")
    importlib.import_module("jax.numpy")
    arguments = {"x": jax.numpy.ones(SHAPE), "weight": jax.numpy.ones(4), **call(jax)}
    with pytest.raises(expected) as caught:
        membound.rms_norm(**arguments)
    if argument is None:  # jax's own words
        assert "deleted" in str(caught.value)
    else:
        assert str(caught.value).startswith("rms_norm: ")
        assert f"'{argument}'" in str(caught.value)


def test_numpy_arguments_with_a_jax_weight():
    jax_numpy = pytest.importorskip("jax.numpy")
    check(membound.rms_norm, {"weight": jax_numpy.ones(4)}, {"x": f32()}, TypeError, "weight")


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch's own; its category changes
def test_functorch_tensors_are_refused_where_nothing_takes_them():
    torch = pytest.importorskip("torch")
    x, ones = torch.ones(SHAPE), torch.ones(4)
    with pytest.raises(TypeError, match=r"^rms_norm_quant: argument 'x' .*torch\.func"):
        torch.vmap(membound.rms_norm_quant)(x)
    with pytest.raises(RuntimeError, match=r"^fused_add_rms_norm: argument 'input' requires grad"):
        torch.func.grad(lambda x: membound.fused_add_rms_norm(x, x, ones))(x)


@pytest.mark.skipif(membound.cuda_status().device_count > 0, reason="there is a GPU")
class TestWithoutGpu:
    def test_gpu_array(self):
        x, out = (DlpackObject(f32(), device=CUDA) for _ in range(2))
        with pytest.raises(membound.CudaError, match=r"^rms_norm: ") as caught:
            membound.rms_norm(x, out=out, stream=0)
        assert isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value.code, int)
        assert caught.value.name == membound.cuda_status().error_name
        assert (out.array == 1).all()

    def test_staging(self):
        out = f32()
        with pytest.raises(membound.CudaError, match=r"^rms_norm: "):
            membound.rms_norm(f32(), out=out, device="cuda")
        assert (out == 1).all()

    def test_device_properties(self):
        with pytest.raises(membound.CudaError):
            membound.device_properties("cuda:0")


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [((), {}), ((f32(), f32(4), 1e-6), {}), ((f32(),), {"x": f32()}), ((), {"weight": f32(4)})],
    ids=["nothing", "positional eps", "x twice", "no x"],
)
def test_signature(arguments, keywords):
    with pytest.raises(TypeError, match=r"^rms_norm: "):
        membound.rms_norm(*arguments, **keywords)


def test_an_exception_of_the_caller_is_not_swallowed():
    class Explosive:
        def __float__(self):
            raise decimal.InvalidOperation("boom")

    with pytest.raises(decimal.InvalidOperation, match="boom"):
        membound.rms_norm(f32(), eps=Explosive())
