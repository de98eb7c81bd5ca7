# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled part of membound. Use the membound package."""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload


ArrayT = TypeVar("ArrayT")
__version__: str

DTYPE_CODES: dict = ...

ACTIVATIONS: dict = ...

class CudaError(RuntimeError):
    """
    A CUDA call failed, or CUDA was asked for and is not there.

    Attributes:
        code (int): the runtime's error number, 0 when this build has no CUDA.
        name (str): the error's name, e.g. 'cudaErrorNoDevice'.
    """
    code: int
    name: str

class Buffer:
    """Memory behind a memoryview that new_buffer made."""

def new_buffer(format: str, item_size: int, shape: tuple[int, ...]) -> memoryview:
    """Zeros of a buffer format, as a memoryview of any shape."""

class CudaStatus:
    """What CUDA this build and this machine offer."""

    @property
    def built_with_cuda(self) -> bool: ...

    @property
    def device_count(self) -> int: ...

    @property
    def error_code(self) -> int:
        """0 when at least one device is usable."""

    @property
    def error_name(self) -> str: ...

    @property
    def message(self) -> str:
        """Why there is no device, or 'ok'."""

    @property
    def runtime_version(self) -> int:
        """As CUDA encodes it: 13000."""

    @property
    def driver_version(self) -> int:
        """0 when no driver is installed."""

    @property
    def architectures(self) -> str:
        """Compiled for, e.g. '80 90 120'."""

    def __repr__(self) -> str: ...

class DeviceProperties:
    """Facts about one GPU."""

    @property
    def name(self) -> str: ...

    @property
    def compute_major(self) -> int: ...

    @property
    def compute_minor(self) -> int: ...

    @property
    def multiprocessors(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def l2_bytes(self) -> int: ...

def cuda_status() -> CudaStatus:
    """What CUDA this build and this machine offer. Never raises."""

def device_properties(device: object = 'cuda:0') -> DeviceProperties:
    """
    Facts about one GPU: 'cuda:1' or 1. Raises CudaError when it is not there.
    """

def cpu_isa() -> str:
    """
    The CPU instruction set in use: 'baseline', 'avx2', 'avx512' or 'neon'.
    """

def cpu_threads() -> int:
    """How many threads a large CPU call may use."""

def set_cpu_threads(count: int) -> None:
    """
    Sets how many threads a large CPU call may use; 0 returns to the default. Results do not depend on it.
    """

def jax_ffi_targets() -> dict:
    """XLA FFI handlers: {target name: {platform: capsule}}."""

def rms_norm_backward_workspace(rows: int, cols: int, item_bytes: int, heads: int = 1, mixed: bool = False) -> int:
    """
    Bytes that rms_norm_backward sums dweight in on a GPU; heads of a weight of (heads, cols).
    """

def rms_norm_gated_backward_workspace(rows: int, cols: int, item_bytes: int, heads: int = 1, mixed: bool = False) -> int:
    """The same of rms_norm_gated_backward."""

def layer_norm_backward_workspace(rows: int, cols: int, item_bytes: int, heads: int = 1, mixed: bool = False) -> int:
    """
    Bytes that layer_norm_backward sums dweight and dbias in on a GPU; likewise.
    """

def embedding_backward_workspace(tokens: int, dim: int, vocab: int, item_bytes: int) -> int:
    """Bytes that embedding_backward sorts and sums in on a GPU."""

def traced_workspace(op: str, operands: list, results: list, attributes: dict) -> int:
    """
    Checks a call of a rotation by (shape, dtype code) of its arrays, and returns the bytes of its workspace on a GPU.
    """

class StagingOptions:
    """
    How NumPy arrays travel through a GPU and back (device="cuda"): in chunks, several at once.
    """

    def __init__(self) -> None: ...

    @property
    def slot_bytes(self) -> int:
        """Bytes of a chunk, each way."""

    @slot_bytes.setter
    def slot_bytes(self, arg: int, /) -> None: ...

    @property
    def slots_per_thread(self) -> int:
        """Chunks that one thread keeps in flight."""

    @slots_per_thread.setter
    def slots_per_thread(self, arg: int, /) -> None: ...

    @property
    def threads(self) -> int:
        """Threads that copy; 0: as many as CPU calls use."""

    @threads.setter
    def threads(self, arg: int, /) -> None: ...

    @property
    def cached_bytes(self) -> int:
        """Page-locked memory kept between calls."""

    @cached_bytes.setter
    def cached_bytes(self, arg: int, /) -> None: ...

def staging_options() -> StagingOptions:
    """The options in use."""

def set_staging_options(options: StagingOptions) -> None:
    """Sets the options for later calls."""

def cached_staging_bytes() -> int:
    """Page-locked bytes kept between calls; a GPU keeps as many."""

def release_staging() -> None:
    """Frees the page-locked memory kept between calls, and the GPU's share."""

def implement_torch_operator(op: str, kernel: str, types: str) -> list[str]:
    """
    Gives membound::op of torch's registry the kernel of that name, and returns for which back ends: none where there is no such kernel, or the torch that is loaded is too old. types is that of the operator's schema: 'Tensor, float -> 1'.
    """

def torch_builtin(kernel: str, operator: object) -> object:
    """
    What calls the kernel of that name without torch's dispatcher, on the arguments of the operator in their order. What it cannot take goes to the operator. None where there is no such kernel, or the torch that is loaded has no way to it.
    """

def implement_torch_function(function: object, forward: object, backward: object, by_operator: object, *, tensors: int, differentiable: int, saved: Sequence[int], gradients_of: Sequence[int]) -> None:
    """
    Gives a torch.autograd.Function its forward(context, *tensors, options), and a backward. forward(*tensors, *options) runs the call, backward(*grads, *saved, *options, wanted) its gradients, by_operator the same where that has to be an operator; saved are indices among tensors, options and results, gradients_of has for each tensor the index of its gradient or -1.
    """

def torch_eager_call(apply: object, *, plain: object, tensors: int) -> object:
    """
    What calls apply(*tensors, options) on the arguments of an operator, or returns NotImplemented where it has to be one: tensors are not of the plain types, or something traces, transforms or watches calls.
    """

def torch_public_call(recorded: object, extension: object, other: object, *, plain: object, outside: object) -> object:
    """
    What calls the first where a tensor of the plain types wants its gradient recorded and no keyword is one of those outside, the third where no tensor is plain or a mode watches, and else the second.
    """

def torch_kernels() -> list[str]:
    """The names of the kernels."""
