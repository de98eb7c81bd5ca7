# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Producers that violate their protocol, buffers beyond memoryview.cast, odd options."""

from __future__ import annotations

import array
import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from dlpack_objects import LooseDlpackObject

import membound

# --- the buffer protocol ---


def test_an_item_of_no_bytes_is_refused_by_name():
    class Empty(ctypes.Structure):
        _fields_ = ()

    with pytest.raises(TypeError, match=r"^rms_norm: argument 'x' .* format"):
        membound.rms_norm(memoryview((Empty * 3)()))
    with pytest.raises(TypeError, match=r"^rms_norm: argument 'weight' .* format"):
        membound.rms_norm(memoryview(np.ones(3, np.float32)), memoryview((Empty * 3)()))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0, 3), (3,)])
def test_new_buffers_have_every_format_and_shape(dtype, shape):
    x = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    y, rstd = membound.rms_norm(memoryview(x), return_rstd=True)
    expected, expected_rstd = membound.rms_norm(x, return_rstd=True)
    assert type(y) is type(rstd) is memoryview
    for ours, numpys in ((y, expected), (rstd, expected_rstd)):
        assert (ours.shape, ours.format) == (numpys.shape, memoryview(numpys).format)
        assert np.array_equal(np.asarray(ours), numpys)
    dx, dweight = membound.rms_norm_backward(
        memoryview(x), memoryview(x), memoryview(np.ones(3, dtype)), rstd
    )
    assert (dx.shape, dweight.shape) == (shape, (3,))


@pytest.mark.parametrize("shape", [(3, 0), (0, 0), ()])
def test_buffers_without_columns_are_refused_by_name(shape):
    x = memoryview(np.ones(shape, np.float32))
    with pytest.raises(ValueError, match=r"^rms_norm: argument 'x' must have"):
        membound.rms_norm(x, return_rstd=True)


def test_an_embedding_of_half_precision_buffers():
    table = np.arange(6, dtype=np.float16).reshape(3, 2)
    rows = membound.embedding(memoryview(array.array("q", [2, 0])), memoryview(table))
    assert np.array_equal(np.asarray(rows), table[[2, 0]])


# --- DLPack ---


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


MEMORY = (ctypes.c_float * 64)()
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def hostile(shape: tuple[int, ...], /, **faults: object) -> LooseDlpackObject:
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    tensor = Tensor(ctypes.addressof(MEMORY), 1, 0, len(shape), 2, 32, 1, extents)
    for name, value in faults.items():
        setattr(tensor, name, value)
    capsule = _new_capsule(ctypes.addressof(tensor), b"dltensor", None)
    lent = LooseDlpackObject(np.ones(1), capsule=capsule)
    lent.kept = (tensor, extents)
    return lent


HOSTILE = {
    "rank -1": lambda: hostile((2, 3), rank=-1),
    "rank of 65": lambda: hostile((1,) * 65),
    "the least rank": lambda: hostile((2, 3), rank=-(2**31)),
    "the largest rank": lambda: hostile((2, 3), rank=2**31 - 1),
    "no shape": lambda: hostile((2, 3), shape=None),
    "a negative extent": lambda: hostile((2, -3)),
    "two negative extents": lambda: hostile((-2, -3)),
    "the least extent": lambda: hostile((2, -(2**63))),
    "more elements than can be counted": lambda: hostile((2**33, 2**33)),
    "elements that wrap to none": lambda: hostile((2**32, 2**32), data=None),
    "no memory": lambda: hostile((2, 3), data=None),
    "no memory and an offset": lambda: hostile((2, 3), data=None, byte_offset=16),
    "bits of no dtype": lambda: hostile((2, 3), bits=33),
    "lanes": lambda: hostile((2, 3), lanes=0),
}


@pytest.mark.parametrize("fault", HOSTILE)
@pytest.mark.parametrize("argument", ["x", "weight", "out"])
def test_hostile_tensors_are_refused_by_name(fault, argument):
    arguments = {"x": np.ones((2, 3), np.float32)}
    assert membound.rms_norm(hostile((2, 3))).shape == (2, 3)
    arguments[argument] = HOSTILE[fault]()
    with pytest.raises((ValueError, TypeError), match=rf"^rms_norm: argument '{argument}' "):
        membound.rms_norm(**arguments)


# --- options ---


class Stream:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __cuda_stream__(self) -> object:
        return self.answer


@pytest.mark.parametrize("answer", [None, 5, (), (0,), (0, 1, 2), "ab", {"a": 1}, (0, "x")])
def test_a_malformed_stream_is_refused_by_name(answer):
    with pytest.raises(TypeError, match=r"^rms_norm: argument 'stream' must be"):
        membound.rms_norm(np.ones((2, 3), np.float32), stream=Stream(answer))


def test_an_array_is_no_number():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 4)
    for value in (torch.ones(4), torch.ones(1, 2)):
        with pytest.raises(TypeError, match=r"^rms_norm: argument 'eps' must be a real number"):
            membound.rms_norm(x, eps=value)
    with pytest.raises(TypeError, match=r"group_size' must be .*got torch\.Tensor"):
        membound.rms_norm_quant(x, group_size=torch.ones(4))


def test_the_cpu_is_no_gpu():
    with pytest.raises(ValueError, match=r"^device_properties: argument 'device' must be a CUDA"):
        membound.device_properties("cpu")


def test_no_memory_for_a_result_of_torch():
    torch = pytest.importorskip("torch")
    x = torch.ones(1).expand(2**40, 16)  # a result of 64 TiB
    with pytest.raises(MemoryError, match=r"^rms_norm: .*'out'"):
        membound.rms_norm(x)


@pytest.mark.parametrize("command", ["info", "check", "bench"])
def test_an_instruction_set_that_is_none_is_said_in_a_line(command):
    environment = {**os.environ, "MEMBOUND_CPU_ISA": "mmx"}
    run = subprocess.run(
        [sys.executable, "-m", "membound", command, *(["--op", "softmax"] * (command != "info"))],
        check=False, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    last = run.stderr.splitlines()[-1]  # an editable install says that it looked for changes
    assert last.startswith(
        "membound: cpu_isa: environment variable MEMBOUND_CPU_ISA must be one of"
    )
