# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One interface to every array library on this machine, on each of its devices.

`check` and `bench` use it; importing it imports none of them.
"""

from __future__ import annotations

import array
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

DTYPES = ("float16", "bfloat16", "float32", "float64")
QUANTISED = ("float8_e4m3fn", "float8_e5m2", "int8")
NAMES = ("numpy", "torch", "jax", "cupy")

# CuPy is one package per CUDA version.
_DISTRIBUTIONS = {"cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}


def installed_version(name: str) -> str | None:
    """The version of a package, read without importing it; None if it is not installed."""
    if importlib.util.find_spec(name) is None:
        return None
    for distribution in _DISTRIBUTIONS.get(name, (name,)):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown version"


class Framework:
    """One array library on one device. Values are exchanged as flat lists of Python floats."""

    name: str
    device: str = "cpu"
    dtypes: tuple[str, ...] = DTYPES
    quantised: tuple[str, ...] = QUANTISED  # 8-bit dtypes of which it can make arrays
    strided: bool = True  # basic slicing and transposing give views
    takes_out: bool = True

    @property
    def call_options(self) -> dict[str, Any]:
        """Extra keyword arguments of every call on this device."""
        return {}

    def array(self, values: Sequence[float], shape: tuple[int, ...], dtype: str) -> Any:
        raise NotImplementedError

    def values(self, x: Any) -> list[float]:
        """The elements in C order."""
        raise NotImplementedError

    def transpose(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.transpose(axes)


class Buffers(Framework):
    """memoryviews of array.array from the standard library, which support two of the dtypes."""

    name = "memoryview"
    dtypes = ("float32", "float64")
    quantised = ("int8",)
    strided = False

    def array(self, values, shape, dtype):
        code = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}[dtype]
        numbers = map(int, values) if dtype.startswith("int") else values
        return memoryview(array.array(code, numbers)).cast("B").cast(code, shape)

    def values(self, x):
        return list(memoryview(x).cast("B").cast(x.format))


class NumPy(Framework):
    """NumPy arrays; with device "cuda:0" the op itself copies them to the GPU and back."""

    name = "numpy"

    def __init__(self, device: str = "cpu"):
        import numpy

        self.np = numpy
        self.device = device
        self.bfloat16 = None
        if installed_version("ml_dtypes"):
            self.bfloat16 = importlib.import_module("ml_dtypes").bfloat16
        else:
            self.dtypes = tuple(name for name in DTYPES if name != "bfloat16")
            self.quantised = ("int8",)

    @property
    def call_options(self):
        return {} if self.device == "cpu" else {"device": self.device}

    def array(self, values, shape, dtype):
        kind = self.bfloat16 if dtype == "bfloat16" else dtype
        return self.np.array(values, self.np.float64).astype(kind).reshape(shape)

    def values(self, x):
        return x.astype(self.np.float64).ravel().tolist()


class Torch(Framework):
    name = "torch"

    def __init__(self, device: str = "cpu"):
        self.torch = importlib.import_module("torch")
        self.device = device

    def array(self, values, shape, dtype):
        kind = getattr(self.torch, dtype)
        return (
            self.torch.tensor(values, dtype=self.torch.float64)
            .to(kind)
            .reshape(shape)
            .to(self.device)
        )

    def values(self, x):
        return x.double().cpu().flatten().tolist()

    def transpose(self, x, axes):
        return x.permute(axes)


class Jax(Framework):
    name = "jax"
    strided = False
    takes_out = False

    def __init__(self, device: Any):
        self.jax = importlib.import_module("jax")
        self.target = device
        self.device = "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}"

    def array(self, values, shape, dtype):
        import numpy

        np_values = numpy.array(values, numpy.float64).reshape(shape)
        kind = self.jax.numpy.dtype(dtype)
        return self.jax.device_put(np_values.astype(kind), self.target)

    def values(self, x):
        import numpy

        return numpy.asarray(x).astype(numpy.float64).ravel().tolist()


class CuPy(Framework):
    name = "cupy"
    dtypes = ("float16", "float32", "float64")
    quantised = ("int8",)

    def __init__(self, index: int):
        self.cupy = importlib.import_module("cupy")
        self.index = index
        self.device = f"cuda:{index}"

    # Conversions on the host: CuPy's own kernels flush subnormal numbers to zero.
    def array(self, values, shape, dtype):
        import numpy

        with self.cupy.cuda.Device(self.index):
            exact = numpy.array(values, numpy.float64)
            return self.cupy.asarray(exact.astype(dtype).reshape(shape))

    def values(self, x):
        import numpy

        return self.cupy.asnumpy(x).astype(numpy.float64).ravel().tolist()


def _torch_devices(gpus: int) -> list[Framework]:
    torch = importlib.import_module("torch")
    count = min(gpus, torch.cuda.device_count()) if torch.cuda.is_available() else 0
    return [Torch()] + [Torch(f"cuda:{index}") for index in range(count)]


def jax_module() -> Any:
    """Import jax with float64 enabled and GPU memory preallocation off."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


def _jax_devices(gpus: int) -> list[Framework]:
    jax = jax_module()
    found = [Jax(jax.devices("cpu")[0])]
    if gpus and jax.default_backend() == "gpu":
        found += [Jax(device) for device in jax.local_devices(backend="gpu")]
    return found


def _numpy_devices(gpus: int) -> list[Framework]:
    return [NumPy()] + [NumPy(f"cuda:{index}") for index in range(gpus)]


def _cupy_devices(gpus: int) -> list[Framework]:
    return [CuPy(index) for index in range(gpus)]


_DEVICES = {
    "numpy": _numpy_devices,
    "torch": _torch_devices,
    "jax": _jax_devices,
    "cupy": _cupy_devices,
}


def available(gpus: int, names: Sequence[str] = NAMES) -> tuple[list[Framework], dict[str, str]]:
    """Find every named framework on every device that both it and membound reach.

    Also returns, for each one left out, the reason. The standard library's buffers come first.
    """
    found: list[Framework] = [Buffers()]
    missing: dict[str, str] = {}
    for name in names:
        if installed_version(name) is None:
            missing[name] = "not installed"
        elif name == "cupy" and gpus == 0:
            missing[name] = "no GPU for it"
        else:
            try:
                found += _DEVICES[name](gpus)
            except Exception as error:  # noqa: BLE001 - a broken installation of theirs must not stop the rest
                missing[name] = f"does not work here: {type(error).__name__}: {error}"
    return found, missing
