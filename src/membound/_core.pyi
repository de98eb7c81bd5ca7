"""The compiled part of membound. Use the membound package."""

from typing import Any, Literal, TypeVar, overload


ArrayT = TypeVar("ArrayT")
__version__: str

DTYPE_CODES: dict = ...

class CudaError(RuntimeError):
    """
    A CUDA call failed, or CUDA was asked for and is not there.

    Attributes:
        code (int): the runtime's error number, 0 when this build has no CUDA.
        name (str): the error's name, e.g. 'cudaErrorNoDevice'.
    """
    code: int
    name: str

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

@overload
def rms_norm(
    x: ArrayT,
    weight: Any = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    out: ArrayT | None = None,
    return_rstd: Literal[False] = False,
    stream: Any = None,
    device: Any = None,
) -> ArrayT:
    """
    Root mean square normalisation over the last axis.

    ``rstd = 1 / sqrt(mean(x * x) + eps)``, ``out = x * rstd * (weight + weight_offset)``
    (Zhang and Sennrich 2019, arXiv:1910.07467).

    Args:
        x: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides: a torch, JAX, CuPy
            or NumPy array (bfloat16 through ml_dtypes), a memoryview, or anything with ``__dlpack__``.
            It is never converted nor copied.
        weight: ``(cols,)`` of any of those dtypes, of the same framework and on the same device as
            ``x``; None for no weight.
        eps: added to the mean of squares; finite and not negative.
        weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without a weight.
        rounding: where a 16-bit result is rounded. ``"once"``: everything in float32, one rounding at
            the end, as torch's F.rms_norm. ``"before_weight"``: ``x * rstd`` is rounded, then
            multiplied and rounded again, as Hugging Face's Llama-family modules.
        out: where to write: the shape, dtype, framework and device of ``x``. It may be ``x`` itself
            (in place), but may not overlap an input in part. Not for JAX arrays.
        return_rstd: return ``rstd`` too, of shape ``x.shape[:-1]`` in float32 (float64 for float64).
        stream: the CUDA stream to run on: a torch or CuPy stream, an object with ``__cuda_stream__``,
            or an integer handle. By default the current stream of the array's framework. Nothing waits
            for the GPU.
        device: by default where the arrays are. ``"cuda"`` or ``"cuda:1"`` carries NumPy arrays through
            that GPU and back, in chunks; the result is there on return.

    Returns:
        ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``x`` (a NumPy
        array for CPU arrays of an unknown framework); with ``return_rstd=True`` the pair
        ``(out, rstd)``.

    Raises:
        TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
        ValueError: a shape, stride, device, overlap or number does not fit.
        RuntimeError: a torch tensor requires grad while gradients are recorded. There is no backward
            yet: call it under ``torch.no_grad()`` or pass ``x.detach()``.
        membound.CudaError: CUDA is not there, or a launch failed.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
        >>> mb.rms_norm(x, np.array([1.0, 2.0], np.float32), eps=0.5)
        array([[0.8320503, 2.2188008],
               [0.       , 0.       ]], dtype=float32)
        >>> y, rstd = mb.rms_norm(x, out=x, eps=12.5, return_rstd=True)
        >>> y is x, rstd
        (True, array([0.2       , 0.28284273], dtype=float32))
    """
@overload
def rms_norm(
    x: ArrayT,
    weight: Any = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    out: ArrayT | None = None,
    return_rstd: Literal[True],
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT]: ...
