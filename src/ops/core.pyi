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

def norm_plan_text(
    op: str, rows: int, cols: int, dtype: int, compute: int, multiprocessors: int
) -> str:
    """
    Which kernel a norm runs on a GPU of this compute capability, and its launch, as text. dtype: a code of DTYPE_CODES.
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

def record_torch_calls(op: str, function: object, *, plain: object, outside: object) -> None:
    """
    Lets function take the calls of that op in which a tensor of the plain types requires grad and no keyword is one of those outside, unless a mode watches.
    """

def torch_kernels() -> list[str]:
    """The names of the kernels."""

ARRAY_DTYPES: dict = ...

ARRAY_MAX_RANK: int = ...

class DType:
    """A dtype of arrays; equals its name, too."""

    @property
    def name(self) -> str: ...

    @property
    def itemsize(self) -> int: ...

    @property
    def kind(self) -> str:
        """As isdtype of the standard names it: 'bool', 'signed integer' ..."""

    def __repr__(self) -> str: ...

    def __hash__(self) -> int: ...

    def __eq__(self, other: object | None) -> bool: ...

    def __reduce__(self) -> tuple: ...

class Device:
    """A device of arrays: cpu, or cuda:0 and so on."""

    def __init__(self, arg: object, /) -> None: ...

    @property
    def type(self) -> str: ...

    @property
    def index(self) -> int: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

    def __hash__(self) -> int: ...

    def __eq__(self, other: object | None) -> bool: ...

    def __reduce__(self) -> tuple: ...

class NDArray:
    """A typed, strided array on a device."""

    @property
    def shape(self) -> tuple: ...

    @property
    def strides(self) -> tuple:
        """In elements."""

    @property
    def dtype(self) -> object: ...

    @property
    def device(self) -> object: ...

    @property
    def ndim(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def itemsize(self) -> int: ...

    @property
    def offset(self) -> int:
        """In elements, from the start of the buffer."""

    @property
    def data_ptr(self) -> int: ...

    @property
    def T(self) -> NDArray: ...

    @property
    def mT(self) -> NDArray: ...

    @property
    def writable(self) -> bool: ...

    @property
    def is_contiguous(self) -> bool:
        """In C order."""

    def shares_buffer(self, arg: NDArray, /) -> bool: ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: object | None) -> object: ...

    def __setitem__(self, key: object | None, value: object) -> None: ...

    def item(self) -> object: ...

    def tolist(self) -> object: ...

    def __index__(self) -> object: ...

    def __bool__(self) -> bool: ...

    def __int__(self) -> int: ...

    def __float__(self) -> float: ...

    def reshape_view(self, arg: object, /) -> NDArray:
        """A view; raises ValueError where a copy would be needed."""

    def reshape(self, arg: object, /) -> NDArray:
        """A view, or a copy where no view has that shape."""

    def can_reshape(self, arg: object, /) -> bool: ...

    def permute_dims(self, arg: object, /) -> NDArray: ...

    def matrix_transpose(self) -> NDArray: ...

    def moveaxis(self, arg0: int, arg1: int, /) -> NDArray: ...

    def broadcast_to(self, arg: object, /) -> NDArray: ...

    def squeeze(self, axis: object) -> NDArray: ...

    def expand_dims(self, axis: int) -> NDArray: ...

    def flip(self, axis: object | None = None) -> NDArray: ...

    def diagonal(self, offset: int = 0) -> NDArray: ...

    def as_strided(self, shape: object, strides: object, offset: int = 0) -> NDArray: ...

    def copy(self) -> NDArray: ...

    def contiguous(self) -> NDArray: ...

    def fill(self, arg: object, /) -> None: ...

    def __add__(self, arg: object, /) -> object: ...

    def __radd__(self, arg: object, /) -> object: ...

    def __iadd__(self, arg: object, /) -> object: ...

    def __sub__(self, arg: object, /) -> object: ...

    def __rsub__(self, arg: object, /) -> object: ...

    def __isub__(self, arg: object, /) -> object: ...

    def __mul__(self, arg: object, /) -> object: ...

    def __rmul__(self, arg: object, /) -> object: ...

    def __imul__(self, arg: object, /) -> object: ...

    def __truediv__(self, arg: object, /) -> object: ...

    def __rtruediv__(self, arg: object, /) -> object: ...

    def __itruediv__(self, arg: object, /) -> object: ...

    def __floordiv__(self, arg: object, /) -> object: ...

    def __rfloordiv__(self, arg: object, /) -> object: ...

    def __ifloordiv__(self, arg: object, /) -> object: ...

    def __mod__(self, arg: object, /) -> object: ...

    def __rmod__(self, arg: object, /) -> object: ...

    def __imod__(self, arg: object, /) -> object: ...

    def __pow__(self, arg: object, /) -> object: ...

    def __rpow__(self, arg: object, /) -> object: ...

    def __ipow__(self, arg: object, /) -> object: ...

    def __and__(self, arg: object, /) -> object: ...

    def __rand__(self, arg: object, /) -> object: ...

    def __iand__(self, arg: object, /) -> object: ...

    def __or__(self, arg: object, /) -> object: ...

    def __ror__(self, arg: object, /) -> object: ...

    def __ior__(self, arg: object, /) -> object: ...

    def __xor__(self, arg: object, /) -> object: ...

    def __rxor__(self, arg: object, /) -> object: ...

    def __ixor__(self, arg: object, /) -> object: ...

    def __lshift__(self, arg: object, /) -> object: ...

    def __rlshift__(self, arg: object, /) -> object: ...

    def __ilshift__(self, arg: object, /) -> object: ...

    def __rshift__(self, arg: object, /) -> object: ...

    def __rrshift__(self, arg: object, /) -> object: ...

    def __irshift__(self, arg: object, /) -> object: ...

    def __eq__(self, other: object | None) -> object: ...

    def __ne__(self, other: object | None) -> object: ...

    def __lt__(self, other: object | None) -> object: ...

    def __le__(self, other: object | None) -> object: ...

    def __gt__(self, other: object | None) -> object: ...

    def __ge__(self, other: object | None) -> object: ...

    def __neg__(self) -> object: ...

    def __pos__(self) -> object: ...

    def __abs__(self) -> object: ...

    def __invert__(self) -> object: ...

    def __matmul__(self, arg: object, /) -> object: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> object: ...

    def __dlpack_device__(self) -> tuple: ...

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> object: ...

    @property
    def __cuda_array_interface__(self) -> object: ...

def array_dtype(dtype: object) -> object:
    """The DType of a name, of a framework's dtype, or of bool, int or float."""

def array_empty(shape: object, dtype: object, device: object | None = None) -> object:
    """A new array whose memory is not set."""

def array_full(shape: object, value: object, dtype: object, device: object | None = None) -> object:
    """A new array of one number."""

def array_from(object: object, device: object | None = None, copy: object | None = None) -> object:
    """An array of any library, without a copy unless it is asked for or the device differs."""

def array_from_nested(object: object, dtype: object | None = None, device: object | None = None) -> object:
    """A new array from a number or nested sequences of them."""

def array_arange(start: object, stop: object, step: object, dtype: object, device: object | None = None) -> object:
    """Evenly spaced numbers below stop."""

def array_linspace(start: float, stop: float, num: int, dtype: object, device: object | None = None, endpoint: bool = True) -> object:
    """num evenly spaced numbers from start to stop."""

def array_random(kind: str, seed: int, counter: int, shape: object, dtype: object, device: object | None, *parameters) -> object:
    """Philox numbers: uniform (low, high), normal (mean, deviation) or integers (low, high)."""

def array_random_blocks(size: int, dtype: object) -> int:
    """How far so many random numbers move the counter."""

def array_to_bytes(x: NDArray) -> object:
    """The elements in C order."""

def array_from_bytes(bytes: bytes, shape: object, dtype: object) -> object:
    """A new array from the elements in C order."""

def array_result_type(*arrays_and_dtypes) -> object:
    """The dtype that arrays, dtypes and numbers are promoted to."""

def array_can_cast(from_: object, to: object) -> bool:
    """Whether promotion leads from one dtype, or an array's, to the other."""

def array_copy_into(destination: object, source: object) -> None:
    """Writes source, cast and broadcast, to destination."""

def array_astype(x: NDArray, dtype: object, copy: bool = True, device: object | None = None) -> object:
    """The array cast to a dtype."""

def array_elementwise(name: str, *operands) -> object:
    """An element-wise function of the standard, of arrays and numbers."""

def array_reduce(name: str, x: NDArray, axis: object | None = None, keepdims: bool = False, dtype: object | None = None, correction: float = 0.0) -> object:
    """sum, prod, min, max, argmin, argmax, any, all, mean, var or count_nonzero."""

def array_scan(name: str, x: NDArray, axis: int, dtype: object | None = None, include_initial: bool = False) -> object:
    """cumulative_sum or cumulative_prod."""

def array_matmul(x1: NDArray, x2: NDArray) -> object:
    """The product of matrices, batched over leading axes."""

def array_stencil_1d(x: NDArray, weights: NDArray, axis: int, boundary: str) -> object:
    """Weighted sums of neighbours along an axis."""

def array_stencil_1d_backward(dy: NDArray, x: NDArray, weights: NDArray, axis: int, boundary: str) -> tuple:
    """The gradients of x and weights of array_stencil_1d."""

def array_sort(x: NDArray, axis: int = -1, descending: bool = False, stable: bool = True) -> object:
    """The array sorted along an axis, NaNs last."""

def array_argsort(x: NDArray, axis: int = -1, descending: bool = False, stable: bool = True) -> object:
    """The indices that sort the array along an axis; always stable."""

def array_searchsorted(sorted: NDArray, wanted: NDArray, right: bool) -> object:
    """Where elements of one dtype enter a sorted vector, NaNs last."""

def array_adamw(params: object, grads: object, exp_avgs: object, exp_avg_sqs: object, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int) -> None:
    """One AdamW step of all parameters, in place."""

def array_nonzero(x: NDArray) -> object:
    """The places of nonzero elements, an int64 array per axis; waits for the device."""

def array_gather(x: NDArray, indices: object, first_axis: int = 0) -> object:
    """x[.., i, j, .., :] for index arrays of adjacent axes."""

def array_scatter(x: NDArray, indices: object, first_axis: int, values: object) -> None:
    """x[.., i, j, .., :] = values for index arrays of adjacent axes."""

def array_take(x: NDArray, indices: NDArray, axis: int) -> object:
    """Elements along an axis."""

def array_take_along_axis(x: NDArray, indices: NDArray, axis: int = -1) -> object:
    """Elements along an axis, an index for each."""
