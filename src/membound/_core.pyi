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

def rope_attributes(op: str, arrays: dict, options: dict) -> dict:
    """
    Checks a call of rope by {name: (shape, dtype code)} and its options, and returns the attributes of the XLA handler.
    """

def rope_backward_workspace(rotary_dim: int) -> int:
    """Bytes that rope_backward sums dfreqs in on a GPU."""

def qk_norm_rope_attributes(op: str, arrays: dict, options: dict) -> dict:
    """
    Checks a call of qk_norm_rope by {name: (shape, dtype code)} and its options, and returns the attributes of the XLA handler and the bytes of its workspace.
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
    Gives a torch.autograd.Function its forward(context, *tensors, options), and a way back. forward(*tensors, *options) runs the call, backward(*grads, *saved, *options, wanted) its gradients, by_operator the same where that has to be an operator; saved are places among tensors, options and results, gradients_of has for each tensor the place of its gradient or -1.
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

@overload
def rms_norm(
    x: ArrayT,
    weight: Any = None,
    *,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
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
            ``x``; or ``(heads, cols)``, one for each head, for ``x`` of ``(..., heads, cols)`` with
            three axes or more; None for no weight.
        eps: added to the mean of squares; finite and not negative.
        weight_offset: added to each weight; 1.0 as in Gemma. Without a weight ``x`` is
            multiplied by it alone.
        rounding: where a 16-bit result is rounded. ``"once"``: everything in float32, one rounding at
            the end, as torch's F.rms_norm. ``"before_weight"``: ``x * rstd`` is rounded to
            the dtype of ``x``, then multiplied and rounded again, as Hugging Face's Llama-family modules.
        dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
        normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
            axes of ``x``, over all of which the norm is then, with a weight of that shape; their
            strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
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
        RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
            ``return_rstd`` or ``stream`` is given, with which none can be. Without them the call
            is that of :func:`membound.torch.rms_norm`, which records it.
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
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    return_rstd: Literal[True],
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT]: ...

@overload
def add_rms_norm(
    x: ArrayT,
    residual: ArrayT,
    weight: Any = None,
    *,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    residual_out: ArrayT | None = None,
    return_rstd: Literal[False] = False,
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT]:
    """
    Residual addition and root mean square normalisation of the sum, in one pass.

    ``sum = x + residual``, ``rstd = 1 / sqrt(mean(sum * sum) + eps)``,
    ``out = sum * rstd * (weight + weight_offset)`` (Zhang and Sennrich 2019, arXiv:1910.07467). The
    sum is float32 (float64 for float64): ``out`` and ``rstd`` come from it before it is rounded for
    ``residual_out``.

    Args:
        x: ``(..., cols)``, as in :func:`rms_norm`.
        residual: the shape, dtype, framework and device of ``x``, with any strides.
        weight: as in :func:`rms_norm`.
        eps: added to the mean of squares; finite and not negative.
        weight_offset: added to each weight; 1.0 as in Gemma. Without a weight ``x`` is
            multiplied by it alone.
        rounding: ``"once"`` or ``"before_weight"``, as in :func:`rms_norm`.
        dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
        normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
            axes of ``x``, over all of which the norm is then, with a weight of that shape; their
            strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
        out: where to write the norm: the shape, dtype, framework and device of ``x``. It may be ``x``
            or ``residual`` itself, but may not overlap an input in part. Not for JAX arrays.
        residual_out: where to write the sum; as ``out``, but it may not overlap ``out``.
        return_rstd: return ``rstd`` too, of shape ``x.shape[:-1]`` in float32 (float64 for float64).
        stream: the CUDA stream to run on, as in :func:`rms_norm`.
        device: ``"cuda"`` or ``"cuda:1"`` carries NumPy arrays through that GPU and back, as in
            :func:`rms_norm`.

    Returns:
        ``(out, residual_out)``, or with ``return_rstd=True`` ``(out, residual_out, rstd)``; new
        C-contiguous arrays of the framework and device of ``x`` for those that were not given.

    Raises:
        TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
        ValueError: a shape, stride, device, overlap or number does not fit.
        RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
            ``return_rstd`` or ``stream`` is given, with which none can be. Without them the call
            is that of :func:`membound.torch.add_rms_norm`, which records it.
        membound.CudaError: CUDA is not there, or a launch failed.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x = np.array([[1.0, 2.0], [0.5, 0.0]], np.float32)
        >>> residual = np.array([[2.0, 2.0], [-0.5, 0.0]], np.float32)
        >>> mb.add_rms_norm(x, residual, eps=12.5)
        (array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32), array([[3., 4.],
               [0., 0.]], dtype=float32))
        >>> y, total = mb.add_rms_norm(x, residual, out=x, residual_out=residual)
        >>> y is x, total is residual
        (True, True)
    """
@overload
def add_rms_norm(
    x: ArrayT,
    residual: ArrayT,
    weight: Any = None,
    *,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    residual_out: ArrayT | None = None,
    return_rstd: Literal[True],
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT, ArrayT]: ...

def rms_norm_backward(
    dy: ArrayT,
    x: ArrayT,
    weight: Any,
    rstd: Any,
    *,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    normalized_shape: int | Sequence[int] | None = None,
    dx: Any = None,
    dweight: Any = None,
    need_dx: bool = True,
    need_dweight: bool = True,
    accumulate: bool = False,
    stream: Any = None,
) -> tuple[Any, Any]:
    """
    The gradients of :func:`rms_norm`, in one pass.

    With ``h = x * rstd`` and ``g = dy * (weight + weight_offset)``, by the chain rule:
    ``dx = rstd * (g - h * mean(g * h))`` and ``dweight = sum(dy * h)`` over all rows.

    Args:
        dy: the gradient of ``out``: the shape, dtype, framework and device of ``x``, with any strides.
        x: ``(..., cols)``, what the forward read.
        weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
            there is no dweight.
        rstd: what the forward returned with ``return_rstd=True``: ``x.shape[:-1]``, float32 (float64
            for float64).
        weight_offset: the forward's.
        rounding: the forward's. With ``"before_weight"`` dweight takes ``h`` rounded to the dtype of
            ``x``, as the forward did; rounding itself has the derivative 1.
        normalized_shape: the forward's; needed for a weight of two axes.
        dx: where to write dx: the shape, dtype, framework and device of ``x``. It may be ``dy`` or
            ``x`` itself, but may not overlap an input in part. Not for JAX arrays.
        dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
        need_dx: whether dx is wanted.
        need_dweight: whether dweight is wanted.
        accumulate: add to ``dweight``, which must be given, in place of writing it.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``(dx, dweight)``, None in place of what is not wanted. New arrays are C-contiguous, of the
        framework and device of ``dy``; a new dweight has the dtype of ``weight``. Sums are float32
        (float64 for float64) in a tree fixed by rows, columns and dtype: every run gives the same
        bits, on any number of CPU threads or GPU multiprocessors.

    Raises:
        TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
        ValueError: a shape, stride, device, overlap or number does not fit; ``accumulate=True``
            without ``dweight``; an array for a gradient that is not wanted.
        RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
            does not do: call it under ``torch.no_grad()`` or pass ``x.detach()``.
        membound.CudaError: CUDA is not there, or a launch failed.
        MemoryError: no memory on the GPU to sum dweight in.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, weight = np.array([[3.0, 4.0], [4.0, -3.0]]), np.array([1.0, 2.0])
        >>> y, rstd = mb.rms_norm(x, weight, eps=12.5, return_rstd=True)
        >>> dx, dweight = mb.rms_norm_backward(np.ones_like(x), x, weight, rstd)
        >>> dx.round(3).tolist()
        [[0.068, 0.224], [0.232, 0.376]]
        >>> dweight.round(3).tolist()
        [1.4, 0.2]
    """

@overload
def add_rms_norm_backward(
    dy: ArrayT,
    dresidual_out: Any,
    residual_out: ArrayT,
    weight: Any,
    rstd: Any,
    *,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    normalized_shape: int | Sequence[int] | None = None,
    dx: Any = None,
    dresidual: Any = None,
    dweight: Any = None,
    need_dx: bool = True,
    need_dresidual: Literal[False] = False,
    need_dweight: bool = True,
    accumulate: bool = False,
    stream: Any = None,
) -> tuple[Any, Any]:
    """
    The gradients of :func:`add_rms_norm`, in one pass.

    ``x`` and ``residual`` have one gradient in common, since only their sum counts:
    ``dx = dresidual_out + `` what :func:`rms_norm_backward` gives for ``x = residual_out``.

    Args:
        dy: the gradient of ``out``.
        dresidual_out: the gradient of ``residual_out``: the shape, framework and device of ``dy``, in
            any floating dtype and with any strides; None where none came.
        residual_out: what the forward returned.
        weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
            there is no dweight.
        rstd: what the forward returned with ``return_rstd=True``.
        weight_offset: the forward's.
        rounding: the forward's, as in :func:`rms_norm_backward`.
        normalized_shape: the forward's; needed for a weight of two axes.
        dx: where to write dx; it may be ``dy``, ``dresidual_out`` or ``residual_out`` itself. Not for
            JAX arrays.
        dresidual: where to write the gradient of ``residual``: the numbers of dx in the dtype of
            ``residual_out``; as ``dx``, and not its array.
        dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
        need_dx: whether dx is wanted.
        need_dresidual: whether dresidual is wanted, beside dx: where ``residual`` has a dtype of its
            own.
        need_dweight: whether dweight is wanted.
        accumulate: add to ``dweight``, which must be given, in place of writing it.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``(dx, dweight)``, as :func:`rms_norm_backward` and with its promises.

    Raises:
        What :func:`rms_norm_backward` raises. A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, residual, weight = np.array([[1.0, 2.0]]), np.array([[2.0, 2.0]]), np.array([1.0, 2.0])
        >>> y, total, rstd = mb.add_rms_norm(x, residual, weight, eps=12.5, return_rstd=True)
        >>> dx, dweight = mb.add_rms_norm_backward(
        ...     np.ones_like(y), np.ones_like(total), total, weight, rstd)
        >>> dx.round(3).tolist(), dweight.round(3).tolist()
        ([[1.068, 1.224]], [0.6, 0.8])
    """
@overload
def add_rms_norm_backward(
    dy: ArrayT,
    dresidual_out: Any,
    residual_out: ArrayT,
    weight: Any,
    rstd: Any,
    *,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    normalized_shape: int | Sequence[int] | None = None,
    dx: Any = None,
    dresidual: Any = None,
    dweight: Any = None,
    need_dx: bool = True,
    need_dresidual: Literal[True],
    need_dweight: bool = True,
    accumulate: bool = False,
    stream: Any = None,
) -> tuple[Any, Any, Any]: ...

@overload
def layer_norm(
    x: ArrayT,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    return_stats: Literal[False] = False,
    stream: Any = None,
    device: Any = None,
) -> ArrayT:
    """
    Layer normalisation over the last axis.

    ``rstd = 1 / sqrt(mean((x - mean(x)) ** 2) + eps)``,
    ``out = (x - mean(x)) * rstd * (weight + weight_offset) + bias``
    (Ba, Kiros and Hinton 2016, arXiv:1607.06450).

    Args:
        x: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides: a torch, JAX, CuPy
            or NumPy array (bfloat16 through ml_dtypes), a memoryview, or anything with ``__dlpack__``.
            It is never converted nor copied.
        weight: ``(cols,)`` of any of those dtypes, of the same framework and on the same device as
            ``x``; or ``(heads, cols)``, one for each head, for ``x`` of ``(..., heads, cols)`` with
            three axes or more; None for no weight.
        bias: likewise, with a weight, whose shape it then has, or without; None for no bias.
        eps: added to the variance; finite and not negative. torch's F.layer_norm has 1e-5 by default.
        weight_offset: added to each weight; 1.0 where weights are stored less one. Must be 0 without a
            weight.
        dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
        normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
            axes of ``x``, over all of which the norm is then, with a weight of that shape; their
            strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
        out: where to write: the shape, dtype, framework and device of ``x``. It may be ``x`` itself
            (in place), but may not overlap an input in part. Not for JAX arrays.
        return_stats: return ``mean`` and ``rstd`` too, each of shape ``x.shape[:-1]`` in float32
            (float64 for float64).
        stream: the CUDA stream to run on, as in :func:`rms_norm`.
        device: ``"cuda"`` or ``"cuda:1"`` carries NumPy arrays through that GPU and back, as in
            :func:`rms_norm`.

    The variance is the mean of squared deviations from the row's own mean, kept to twice the precision
    of float32 (float64 for float64): a mean far above the spread costs no digits. Everything is
    float32, with one rounding at the end.

    Returns:
        ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``x`` (a NumPy
        array for CPU arrays of an unknown framework); with ``return_stats=True`` the tuple
        ``(out, mean, rstd)``.

    Raises:
        TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
        ValueError: a shape, stride, device, overlap or number does not fit.
        RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
            ``return_stats`` or ``stream`` is given, with which none can be. Without them the call
            is that of :func:`membound.torch.layer_norm`, which records it.
        membound.CudaError: CUDA is not there, or a launch failed.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x = np.array([[1.0, 5.0], [7.0, 7.0]], np.float32)
        >>> mb.layer_norm(x, np.array([1.0, 2.0], np.float32), np.array([0.5, 0.5], np.float32), eps=0.5)
        array([[-0.4428091,  2.3856182],
               [ 0.5      ,  0.5      ]], dtype=float32)
        >>> y, mean, rstd = mb.layer_norm(x, out=x, eps=12.0, return_stats=True)
        >>> y is x, mean, rstd
        (True, array([3., 7.], dtype=float32), array([0.25      , 0.28867513], dtype=float32))
    """
@overload
def layer_norm(
    x: ArrayT,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    return_stats: Literal[True],
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT, ArrayT]: ...

@overload
def add_layer_norm(
    x: ArrayT,
    residual: ArrayT,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    residual_out: ArrayT | None = None,
    return_stats: Literal[False] = False,
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT]:
    """
    Residual addition and layer normalisation of the sum, in one pass.

    ``sum = x + residual``, ``rstd = 1 / sqrt(mean((sum - mean(sum)) ** 2) + eps)``,
    ``out = (sum - mean(sum)) * rstd * (weight + weight_offset) + bias`` (Ba, Kiros and Hinton 2016,
    arXiv:1607.06450). The sum is float32 (float64 for float64): ``mean``, ``rstd`` and ``out`` come
    from it before it is rounded for ``residual_out``.

    Args:
        x: ``(..., cols)``, as in :func:`layer_norm`.
        residual: the shape, dtype, framework and device of ``x``, with any strides.
        weight: as in :func:`layer_norm`.
        bias: as in :func:`layer_norm`.
        eps: added to the variance; finite and not negative. torch's F.layer_norm has 1e-5 by default.
        weight_offset: as in :func:`layer_norm`.
        dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
        normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
            axes of ``x``, over all of which the norm is then, with a weight of that shape; their
            strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
        out: where to write the norm: the shape, dtype, framework and device of ``x``. It may be ``x``
            or ``residual`` itself, but may not overlap an input in part. Not for JAX arrays.
        residual_out: where to write the sum; as ``out``, but it may not overlap ``out``.
        return_stats: return ``mean`` and ``rstd`` too, each of shape ``x.shape[:-1]`` in float32
            (float64 for float64).
        stream: the CUDA stream to run on, as in :func:`rms_norm`.
        device: ``"cuda"`` or ``"cuda:1"`` carries NumPy arrays through that GPU and back, as in
            :func:`rms_norm`.

    Returns:
        ``(out, residual_out)``, or with ``return_stats=True`` ``(out, residual_out, mean, rstd)``; new
        C-contiguous arrays of the framework and device of ``x`` for those that were not given.

    Raises:
        What :func:`layer_norm` raises. A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x = np.array([[1.0, 2.0], [0.5, 0.0]], np.float32)
        >>> residual = np.array([[0.0, 3.0], [-0.5, 0.0]], np.float32)
        >>> mb.add_layer_norm(x, residual, eps=12.0)
        (array([[-0.5,  0.5],
               [ 0. ,  0. ]], dtype=float32), array([[1., 5.],
               [0., 0.]], dtype=float32))
        >>> y, total = mb.add_layer_norm(x, residual, out=x, residual_out=residual)
        >>> y is x, total is residual
        (True, True)
    """
@overload
def add_layer_norm(
    x: ArrayT,
    residual: ArrayT,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    residual_out: ArrayT | None = None,
    return_stats: Literal[True],
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT, ArrayT, ArrayT]: ...

def layer_norm_backward(
    dy: ArrayT,
    x: ArrayT,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    weight_offset: float = 0.0,
    normalized_shape: int | Sequence[int] | None = None,
    dx: Any = None,
    dweight: Any = None,
    dbias: Any = None,
    need_dx: bool = True,
    need_dweight: bool = True,
    need_dbias: bool = True,
    accumulate: bool = False,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    """
    The gradients of :func:`layer_norm`, in one pass.

    With ``h = (x - mean) * rstd`` and ``g = dy * (weight + weight_offset)``, by the chain rule:
    ``dx = rstd * (g - mean(g) - h * mean(g * h))``, where these means are over the last axis, and
    ``dweight = sum(dy * h)``, ``dbias = sum(dy)`` over all rows.

    Args:
        dy: the gradient of ``out``: the shape, dtype, framework and device of ``x``, with any strides.
        x: ``(..., cols)``, what the forward read.
        weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
            there is no dweight.
        mean: what the forward returned with ``return_stats=True``: ``x.shape[:-1]``, float32 (float64
            for float64).
        rstd: likewise.
        weight_offset: the forward's.
        normalized_shape: the forward's; needed for a weight of two axes.
        dx: where to write dx: the shape, dtype, framework and device of ``x``. It may be ``dy`` or
            ``x`` itself, but may not overlap an input in part. Not for JAX arrays.
        dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
        dbias: where to write dbias: likewise. It needs no weight, and is ``(cols,)`` without one.
        need_dx: whether dx is wanted.
        need_dweight: whether dweight is wanted.
        need_dbias: whether dbias is wanted; False where the forward had no bias.
        accumulate: add to ``dweight`` and ``dbias`` in place of writing them; each one that is wanted
            must be given.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``(dx, dweight, dbias)``, None in place of what is not wanted. New arrays are C-contiguous, of
        the framework and device of ``dy``; new dweight and dbias have the dtype of ``weight``, and
        without a weight dbias has that of ``dy``. Sums are float32 (float64 for float64) in a tree
        fixed by rows, columns and dtype: every run gives the same bits, on any number of CPU threads or
        GPU multiprocessors.

    Raises:
        TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
        ValueError: a shape, stride, device, overlap or number does not fit; ``accumulate=True``
            without an array to add to; an array for a gradient that is not wanted.
        RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
            does not do: call it under ``torch.no_grad()`` or pass ``x.detach()``.
        membound.CudaError: CUDA is not there, or a launch failed.
        MemoryError: no memory on the GPU to sum dweight and dbias in.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, weight = np.array([[1.0, 5.0], [9.0, 3.0]]), np.array([1.0, 2.0])
        >>> y, mean, rstd = mb.layer_norm(x, weight, eps=12.0, return_stats=True)
        >>> dx, dweight, dbias = mb.layer_norm_backward(np.ones_like(x), x, weight, mean, rstd)
        >>> dx.round(3).tolist()
        [[-0.094, 0.094], [-0.062, 0.062]]
        >>> dweight.round(3).tolist(), dbias.tolist()
        ([0.155, -0.155], [2.0, 2.0])
    """

@overload
def add_layer_norm_backward(
    dy: ArrayT,
    dresidual_out: Any,
    residual_out: ArrayT,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    weight_offset: float = 0.0,
    normalized_shape: int | Sequence[int] | None = None,
    dx: Any = None,
    dresidual: Any = None,
    dweight: Any = None,
    dbias: Any = None,
    need_dx: bool = True,
    need_dresidual: Literal[False] = False,
    need_dweight: bool = True,
    need_dbias: bool = True,
    accumulate: bool = False,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    """
    The gradients of :func:`add_layer_norm`, in one pass.

    ``x`` and ``residual`` have one gradient in common, since only their sum counts:
    ``dx = dresidual_out + `` what :func:`layer_norm_backward` gives for ``x = residual_out``.

    Args:
        dy: the gradient of ``out``.
        dresidual_out: the gradient of ``residual_out``: the shape, framework and device of ``dy``, in
            any floating dtype and with any strides; None where none came.
        residual_out: what the forward returned.
        weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
            there is no dweight.
        mean: what the forward returned with ``return_stats=True``.
        rstd: likewise.
        weight_offset: the forward's.
        normalized_shape: the forward's; needed for a weight of two axes.
        dx: where to write dx; it may be ``dy``, ``dresidual_out`` or ``residual_out`` itself. Not for
            JAX arrays.
        dresidual: where to write the gradient of ``residual``: the numbers of dx in the dtype of
            ``residual_out``; as ``dx``, and not its array.
        dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
        dbias: where to write dbias: likewise. It needs no weight, and is ``(cols,)`` without one.
        need_dx: whether dx is wanted.
        need_dresidual: whether dresidual is wanted, beside dx: where ``residual`` has a dtype of its
            own.
        need_dweight: whether dweight is wanted.
        need_dbias: whether dbias is wanted; False where the forward had no bias.
        accumulate: as in :func:`layer_norm_backward`.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``(dx, dweight, dbias)``, as :func:`layer_norm_backward` and with its promises.

    Raises:
        What :func:`layer_norm_backward` raises. A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, residual, weight = np.array([[1.0, 2.0]]), np.array([[0.0, 3.0]]), np.array([1.0, 2.0])
        >>> y, total, mean, rstd = mb.add_layer_norm(x, residual, weight, eps=12.0, return_stats=True)
        >>> dx, dweight, dbias = mb.add_layer_norm_backward(
        ...     np.ones_like(y), np.ones_like(total), total, weight, mean, rstd)
        >>> dx.tolist(), dweight.tolist(), dbias.tolist()
        ([[0.90625, 1.09375]], [-0.5, 0.5], [1.0, 1.0])
    """
@overload
def add_layer_norm_backward(
    dy: ArrayT,
    dresidual_out: Any,
    residual_out: ArrayT,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    weight_offset: float = 0.0,
    normalized_shape: int | Sequence[int] | None = None,
    dx: Any = None,
    dresidual: Any = None,
    dweight: Any = None,
    dbias: Any = None,
    need_dx: bool = True,
    need_dresidual: Literal[True],
    need_dweight: bool = True,
    need_dbias: bool = True,
    accumulate: bool = False,
    stream: Any = None,
) -> tuple[Any, Any, Any, Any]: ...

@overload
def rms_norm_gated(
    x: ArrayT,
    z: ArrayT,
    weight: Any = None,
    *,
    norm_before_gate: bool = True,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    return_rstd: Literal[False] = False,
    stream: Any = None,
    device: Any = None,
) -> ArrayT:
    """
    Root mean square normalisation with a gate, in one pass.

    With ``silu(z) = z / (1 + exp(-z))``: ``out = rms_norm(x) * silu(z)``, or with
    ``norm_before_gate=False`` ``out = rms_norm(x * silu(z))``. It ends a block of Mamba-2 (Dao and Gu
    2024, arXiv:2405.21060) and of gated attention.

    Args:
        x: ``(..., cols)``, as in :func:`rms_norm`. For a norm over groups of columns pass
            ``(..., groups, cols)``.
        z: the gate: the shape, dtype, framework and device of ``x``, with any strides.
        weight: ``(cols,)`` or ``(heads, cols)``, as in :func:`rms_norm`; None for no weight.
        norm_before_gate: True: the norm is of ``x``, and the gate multiplies the result, as in
            Qwen3-Next. False: the norm is of ``x * silu(z)``, as in Hugging Face's Mamba-2.
        eps: added to the mean of squares; finite and not negative.
        weight_offset: added to each weight. Without a weight ``x`` is
            multiplied by it alone.
        rounding: where a 16-bit result is rounded. ``"once"``: everything in float32, one rounding at
            the end. ``"before_weight"``: the normalised row is rounded before the weight comes in, and
            its product with the weight before the gate does, as in Hugging Face's modules of both
            orders.
        dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
        normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
            axes of ``x``, over all of which the norm is then, with a weight of that shape; their
            strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
        out: where to write: the shape, dtype, framework and device of ``x``. It may be ``x`` or ``z``
            itself (in place), but may not overlap an input in part. Not for JAX arrays.
        return_rstd: return ``rstd`` too, of the row that is normalised: ``x`` or ``x * silu(z)``. Its
            shape is ``x.shape[:-1]``, in float32 (float64 for float64).
        stream: the CUDA stream to run on, as in :func:`rms_norm`.
        device: as in :func:`rms_norm`.

    Returns:
        ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``x``; with
        ``return_rstd=True`` the pair ``(out, rstd)``.

    Raises:
        What :func:`rms_norm` raises; gradients come from :func:`rms_norm_gated_backward`.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, z = np.array([[3.0, 4.0]]), np.array([[1.0, 2.0]])
        >>> mb.rms_norm_gated(x, z, np.array([1.0, 2.0]), eps=12.5).round(3)
        array([[0.439, 2.819]])
        >>> mb.rms_norm_gated(x, z, norm_before_gate=False, eps=0.0).round(3)
        array([[0.42, 1.35]])
    """
@overload
def rms_norm_gated(
    x: ArrayT,
    z: ArrayT,
    weight: Any = None,
    *,
    norm_before_gate: bool = True,
    eps: float | None = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    dtype: Any = None,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    return_rstd: Literal[True],
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT]: ...

def rms_norm_gated_backward(
    dy: ArrayT,
    x: ArrayT,
    z: ArrayT,
    weight: Any,
    rstd: Any,
    *,
    norm_before_gate: bool = True,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    normalized_shape: int | Sequence[int] | None = None,
    dx: Any = None,
    dz: Any = None,
    dweight: Any = None,
    need_dx: bool = True,
    need_dz: bool = True,
    need_dweight: bool = True,
    accumulate: bool = False,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    """
    The gradients of :func:`rms_norm_gated`, in one pass.

    By the chain rule, with ``s = 1 / (1 + exp(-z))`` and ``silu'(z) = s * (1 + z * (1 - s))``:

    - ``norm_before_gate=True``: ``dx`` and ``dweight`` are what :func:`rms_norm_backward` gives for
      ``dy * silu(z)``, and ``dz = dy * rms_norm(x) * silu'(z)``.
    - ``norm_before_gate=False``: with ``u = x * silu(z)``, ``du`` and ``dweight`` are what
      :func:`rms_norm_backward` gives for ``dy`` and ``u``; ``dx = du * silu(z)``,
      ``dz = du * x * silu'(z)``.

    Args:
        dy: the gradient of ``out``: the shape, dtype, framework and device of ``x``, with any strides.
        x: ``(..., cols)``, what the forward read.
        z: the gate that the forward read.
        weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
            there is no dweight.
        rstd: what the forward returned with ``return_rstd=True``: ``x.shape[:-1]``, float32 (float64
            for float64).
        norm_before_gate: the forward's.
        weight_offset: the forward's.
        rounding: the forward's. With ``"before_weight"`` dweight and dz take what the forward rounded;
            rounding itself has the derivative 1.
        normalized_shape: the forward's; needed for a weight of two axes.
        dx: where to write dx: the shape, dtype, framework and device of ``x``. It may be ``dy``, ``x``
            or ``z`` itself, but may not overlap an input in part. Not for JAX arrays.
        dz: where to write dz: likewise, and not the array of dx.
        dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
        need_dx: whether dx is wanted.
        need_dz: whether dz is wanted.
        need_dweight: whether dweight is wanted.
        accumulate: add to ``dweight``, which must be given, in place of writing it.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``(dx, dz, dweight)``, None in place of what is not wanted, as in :func:`rms_norm_backward`:
        every run gives the same bits.

    Raises:
        What :func:`rms_norm_backward` raises.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, z = np.array([[3.0, 4.0], [4.0, -3.0]]), np.array([[1.0, 2.0], [0.0, -1.0]])
        >>> weight = np.array([1.0, 2.0])
        >>> y, rstd = mb.rms_norm_gated(x, z, weight, eps=12.5, return_rstd=True)
        >>> dx, dz, dweight = mb.rms_norm_gated_backward(np.ones_like(x), x, z, weight, rstd)
        >>> dx.round(3).tolist()
        [[-0.049, 0.444], [-0.026, -0.088]]
        >>> dz.round(3).tolist(), dweight.round(3).tolist()
        ([[0.557, 1.745], [0.4, -0.087]], [0.439, 1.571])
    """

@overload
def rms_norm_quant(
    x: ArrayT,
    weight: Any = None,
    *,
    dtype: Any = "float8_e4m3fn",
    scale: None = None,
    group_size: Literal[64, 128] | None = None,
    scale_upper_bound: float | None = None,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    out: ArrayT | None = None,
    scale_out: ArrayT | None = None,
    stream: Any = None,
) -> tuple[ArrayT, ArrayT]:
    """
    Root mean square normalisation with a result of 8 bits and its scales, in one pass.

    With ``y`` what :func:`rms_norm` returns for the same arguments, bit for bit, and ``limit`` the
    largest number of the dtype (448 for float8_e4m3fn, 57344 for float8_e5m2, 127 for int8), in float32
    (float64 for float64)::

        scale = min(max(abs(y).max() / limit, 2**-126), scale_upper_bound)   # or the one given
        out = round(clip(y * (1 / scale), -limit, limit))                    # ties to even

    so that ``out * scale`` is about ``y``. A scale is that of its row, or of ``group_size`` columns. NaN
    stays NaN, and makes its scale NaN; in int8 it becomes 0. Finite numbers of float64 that no float32 scale
    reaches are clipped at its largest.

    Args:
        x: ``(..., cols)``, as in :func:`rms_norm`.
        weight: as in :func:`rms_norm`.
        dtype: of the result: ``"float8_e4m3fn"``, ``"float8_e5m2"`` or ``"int8"``, or the framework's
            own object of that name. By default that of ``out``, or float8_e4m3fn.
        scale: a static scale: one float32 number, an array of shape ``()`` or ``(1,)`` where ``x`` is.
            None for dynamic ones.
        group_size: how many columns share a dynamic scale: 64 or 128 (the last group of a row may be
            shorter), or None for all of a row.
        scale_upper_bound: the largest dynamic scale; above 0, or None for no bound.
        eps: added to the mean of squares; finite and not negative.
        weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without a weight.
        rounding: ``"once"`` or ``"before_weight"``, as in :func:`rms_norm`.
        out: where to write: the shape, framework and device of ``x``, one of the dtypes above, with any
            strides. It may not overlap an input. Not for JAX arrays.
        scale_out: where to write dynamic scales: float32, ``x.shape[:-1]``, or with ``group_size`` and
            one axis more for the groups of a row. Any strides: a transposed view, ``base.T``, takes the
            scales column by column, as matrix products with scaled blocks want them.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``(out, scale)``, with a static scale ``out`` alone; new C-contiguous arrays of the framework
        and device of ``x`` for those that were not given. NumPy has float8 from ml_dtypes.

    Raises:
        TypeError: an argument is no array or of another framework, or has a dtype that is not taken;
            or the framework has no arrays of the dtype.
        ValueError: a shape, stride, device, overlap or number does not fit.
        RuntimeError: a torch tensor requires grad while gradients are recorded: call this function
            under ``torch.no_grad()`` or pass ``x.detach()``. It has no gradient.
        membound.CudaError: CUDA is not there, or a launch failed.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x = np.array([[3.0, 4.0], [0.0, -5.0]], np.float32)
        >>> out, scale = mb.rms_norm_quant(x, dtype="int8", eps=12.5)
        >>> out
        array([[  95,  127],
               [   0, -127]], dtype=int8)
        >>> bool(abs(out * scale[:, None] - mb.rms_norm(x, eps=12.5)).max() < 0.005)
        True
        >>> mb.rms_norm_quant(x, dtype="int8", scale=np.array(0.01, np.float32), eps=12.5)
        array([[  60,   80],
               [   0, -100]], dtype=int8)
    """
@overload
def rms_norm_quant(
    x: ArrayT,
    weight: Any = None,
    *,
    dtype: Any = "float8_e4m3fn",
    scale: Any,
    group_size: None = None,
    scale_upper_bound: None = None,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    out: ArrayT | None = None,
    scale_out: None = None,
    stream: Any = None,
) -> ArrayT: ...

@overload
def add_rms_norm_quant(
    x: ArrayT,
    residual: ArrayT,
    weight: Any = None,
    *,
    dtype: Any = "float8_e4m3fn",
    scale: None = None,
    group_size: Literal[64, 128] | None = None,
    scale_upper_bound: float | None = None,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    out: ArrayT | None = None,
    residual_out: ArrayT | None = None,
    scale_out: ArrayT | None = None,
    stream: Any = None,
) -> tuple[ArrayT, ArrayT, ArrayT]:
    """
    Residual addition and root mean square normalisation with a result of 8 bits, in one pass.

    What :func:`rms_norm_quant` is to :func:`rms_norm`, this is to :func:`add_rms_norm`: ``out`` and its
    scales are the quantisation of what that one returns first, bit for bit, and ``residual_out`` is
    ``x + residual``, as there.

    Args:
        x: ``(..., cols)``, as in :func:`rms_norm`.
        residual: the shape, dtype, framework and device of ``x``, with any strides.
        weight: as in :func:`rms_norm`.
        dtype: of ``out``, as in :func:`rms_norm_quant`.
        scale: a static scale, as in :func:`rms_norm_quant`.
        group_size: 64, 128 or None, as in :func:`rms_norm_quant`.
        scale_upper_bound: the largest dynamic scale; above 0, or None for no bound.
        eps: added to the mean of squares; finite and not negative.
        weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without a weight.
        rounding: ``"once"`` or ``"before_weight"``, as in :func:`rms_norm`.
        out: where to write the norm, as in :func:`rms_norm_quant`.
        residual_out: where to write the sum: the shape, dtype, framework and device of ``x``. It may be
            ``x`` or ``residual`` itself, but may not overlap one in part. Not for JAX arrays.
        scale_out: where to write dynamic scales, as in :func:`rms_norm_quant`.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``(out, residual_out, scale)``, with a static scale ``(out, residual_out)``; new C-contiguous
        arrays of the framework and device of ``x`` for those that were not given.

    Raises:
        TypeError: an argument is no array or of another framework, or has a dtype that is not taken;
            or the framework has no arrays of the dtype.
        ValueError: a shape, stride, device, overlap or number does not fit.
        RuntimeError: a torch tensor requires grad while gradients are recorded: call this function
            under ``torch.no_grad()`` or pass ``x.detach()``. It has no gradient.
        membound.CudaError: CUDA is not there, or a launch failed.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x = np.array([[1.0, 2.0]], np.float32)
        >>> residual = np.array([[2.0, 2.0]], np.float32)
        >>> out, total, scale = mb.add_rms_norm_quant(x, residual, dtype="int8", eps=12.5)
        >>> out, total
        (array([[ 95, 127]], dtype=int8), array([[3., 4.]], dtype=float32))
    """
@overload
def add_rms_norm_quant(
    x: ArrayT,
    residual: ArrayT,
    weight: Any = None,
    *,
    dtype: Any = "float8_e4m3fn",
    scale: Any,
    group_size: None = None,
    scale_upper_bound: None = None,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight"] = "once",
    out: ArrayT | None = None,
    residual_out: ArrayT | None = None,
    scale_out: None = None,
    stream: Any = None,
) -> tuple[ArrayT, ArrayT]: ...

@overload
def rope(
    q: ArrayT,
    k: None = None,
    cos: Any = None,
    sin: Any = None,
    *,
    freqs: Any = None,
    position_ids: Any = None,
    seqlen_offsets: Any = None,
    cu_seqlens: Any = None,
    layout: Literal["bshd", "sbhd", "bhsd", "thd"] = "bshd",
    interleaved: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    sections: Any = None,
    interleaved_sections: bool = False,
    attention_scaling: float = 1.0,
    inverse: bool = False,
    validate: bool = False,
    out: ArrayT | None = None,
    k_out: None = None,
    stream: Any = None,
) -> ArrayT:
    """
    Rotary position embedding of q and k, or of q alone, in one launch.

    Each pair of elements of a head is turned by the angle of its token's position:
    ``out1 = x1 * cos - x2 * sin`` and ``out2 = x2 * cos + x1 * sin`` (Su et al. 2021,
    arXiv:2104.09864). Products and their sum are each rounded to float32 (float64 for float64), the
    result once to its dtype: in float32 the bits of ``t * cos + rotate_half(t) * sin``.

    Args:
        q: float16, bfloat16, float32 or float64, from torch, JAX, CuPy or NumPy. Its axes are those of
            ``layout``, with any strides; a slice of a fused qkv array is fine.
        k: like ``q``, but for the number of heads; None: ``q`` alone.
        cos: with ``sin`` the angles, in any of these forms and any floating dtype:
            ``(positions, rotary_dim / 2)`` each;
            ``(positions, rotary_dim)`` each, a column for each element that turns, as heads have them:
            ``out1 = x1 * cos1 - x2 * sin1`` and ``out2 = x2 * cos2 + x1 * sin2``;
            ``cos`` alone as ``(positions, rotary_dim)``, all cosines and then all sines, as vLLM and
            flashinfer keep them;
            of each token its own, ``(batch, seq, ...)`` with the last axis of the pairs above, as
            Hugging Face passes them; a batch of 1 serves all;
            of each sequence, ``(batch, positions, ...)``, with ``position_ids`` or ``seqlen_offsets``
            and another number of positions than ``seq``.
            An axis of 1 where ``layout`` has heads is fine, and so is ``(positions, 1, 1, ...)``. Of a
            complex table pass the views ``table.real`` and ``table.imag``.
        sin: the shape and dtype of ``cos``; None where that holds both.
        freqs: instead of both, ``(rotary_dim / 2,)`` float32 or float64: the angle is
            ``position * freqs``, computed in float64 and exact to 2e-7 up to position 2**24. With two
            axes and more they are angles, in the forms and dtypes of ``cos`` but for the cache.
        position_ids: int32 or int64, ``(batch, seq)``, ``(1, seq)`` or ``(seq,)``; for ``"thd"``
            ``(tokens,)``. None: a token's place in its sequence. With ``sections``, one more axis in
            front: time, height and width of each token.
        seqlen_offsets: where sequences start: an int, or int32 or int64 ``(batch,)`` (of each sequence
            of ``cu_seqlens``), added to ``position_ids`` where those are given. In a loop of decoding
            pass JAX an array: each new int compiles once more.
        cu_seqlens: for ``"thd"``, int32 or int64 ``(sequences + 1,)``: sequence ``i`` is tokens
            ``cu_seqlens[i]`` to before ``cu_seqlens[i + 1]``. A token of none (padding) turns by no
            angle. Without it there is one sequence.
        layout: ``"bshd"``: ``(batch, seq, heads, head_dim)``; ``"sbhd"``; ``"bhsd"`` (Hugging Face);
            ``"thd"``: ``(tokens, heads, head_dim)``.
        interleaved: pairs are neighbours (GPT-J, RoFormer). False: element ``i`` and ``i +
            rotary_dim / 2`` (GPT-NeoX, Llama).
        rotary_dim: elements of a head that turn, even. None: what ``freqs`` or one cache say, else
            ``head_dim - rotary_offset``. The others are copied.
        rotary_offset: the first element that turns.
        sections: pairs of each axis of ``position_ids``, adding up to ``rotary_dim / 2``; at most 4.
            Multimodal RoPE as in Qwen2-VL, and 2-D positions of images: two sections, ``freqs`` or
            table columns repeated.
        interleaved_sections: pair ``j`` takes axis ``j % len(sections)`` while that section lasts, then
            the first axis (Qwen3-VL). False: one section after the other.
        attention_scaling: multiplies cos and sin made from ``freqs``; tables hold it.
        inverse: the transpose: turn the other way. Undoes a call, up to rounding, and is its gradient.
        validate: look at the positions (CPU arrays only) and raise ValueError where one is not in the
            table, or ``cu_seqlens`` are wrong.
        out: where to write: the shape, dtype, framework and device of ``q``. It may be ``q`` itself
            (in place), and may overlap nothing else. Not for JAX arrays.
        k_out: the same for ``k``.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``out``, with ``k`` the pair ``(out, k_out)``: what was given, or new C-contiguous arrays.

        Where a position is not in the table, the result is NaN; nothing is read out of bounds.

    Raises:
        TypeError: a dtype, a type or a framework that does not fit.
        ValueError: shapes, devices or options that do not fit.
        RuntimeError: a torch tensor that requires grad while gradients are recorded, if it is cos or
            sin, or with ``out`` or ``stream``; :func:`membound.torch.rope` records the others.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> q = np.array([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 1, 4)
        >>> cos, sin = np.array([[0.6, 1.0]]), np.array([[0.8, 0.0]])
        >>> mb.rope(q, None, cos, sin).ravel()
        array([0.6, 0. , 0.8, 1. ])
        >>> mb.rope(q, None, cos, sin, interleaved=True).ravel()
        array([0.6, 0.8, 0. , 1. ])
    """
@overload
def rope(
    q: ArrayT,
    k: ArrayT,
    cos: Any = None,
    sin: Any = None,
    *,
    freqs: Any = None,
    position_ids: Any = None,
    seqlen_offsets: Any = None,
    cu_seqlens: Any = None,
    layout: Literal["bshd", "sbhd", "bhsd", "thd"] = "bshd",
    interleaved: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    sections: Any = None,
    interleaved_sections: bool = False,
    attention_scaling: float = 1.0,
    inverse: bool = False,
    validate: bool = False,
    out: ArrayT | None = None,
    k_out: ArrayT | None = None,
    stream: Any = None,
) -> tuple[ArrayT, ArrayT]: ...

def rope_backward(
    dq: ArrayT,
    dk: ArrayT | None = None,
    cos: Any = None,
    sin: Any = None,
    *,
    q: ArrayT | None = None,
    k: ArrayT | None = None,
    freqs: Any = None,
    position_ids: Any = None,
    seqlen_offsets: Any = None,
    cu_seqlens: Any = None,
    layout: Literal["bshd", "sbhd", "bhsd", "thd"] = "bshd",
    interleaved: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    sections: Any = None,
    interleaved_sections: bool = False,
    attention_scaling: float = 1.0,
    inverse: bool = False,
    validate: bool = False,
    dq_out: ArrayT | None = None,
    dk_out: ArrayT | None = None,
    dfreqs: ArrayT | None = None,
    stream: Any = None,
) -> Any:
    """
    The gradients of :func:`rope`: dq and dk turned the other way, and that of the frequencies.

    ``rope`` is linear in ``q`` and ``k``, so their gradients are its transpose and need neither of
    them. With ``freqs`` and what ``rope`` read, the gradient of the frequencies comes too:
    ``dfreqs[j]`` is the sum over tokens and heads of ``position * (x1 * dx2 - x2 * dx1)``.

    Args:
        dq: the gradient of what :func:`rope` returned for ``q``, in the shape and dtype of that.
        dk: the same for ``k``; None: ``q`` alone.
        cos: as given to :func:`rope`, like all of the following but ``q`` and ``k``.
        sin: likewise.
        q: what :func:`rope` read, in the shape and dtype of ``dq``. Given: the gradient of ``freqs`` is
            wanted.
        k: the same for ``dk``, with ``q`` and only then.
        freqs: likewise as given.
        position_ids: likewise.
        seqlen_offsets: likewise.
        cu_seqlens: likewise.
        layout: likewise.
        interleaved: likewise.
        rotary_dim: likewise.
        rotary_offset: likewise.
        sections: likewise.
        interleaved_sections: likewise.
        attention_scaling: likewise.
        inverse: likewise: True for the gradient of ``rope(..., inverse=True)``.
        validate: likewise.
        dq_out: where to write. It may be ``dq`` itself (in place), but not ``q``. Not for JAX arrays.
        dk_out: the same for ``dk``.
        dfreqs: where to write, float32 or float64, the shape of ``freqs``. None: new, like ``freqs``.
        stream: as in :func:`rms_norm`.

    Returns:
        The gradient of ``q``; with ``dk``, with ``q``, or with both a tuple: ``(dq, dk)``, ``(dq,
        dfreqs)`` or ``(dq, dk, dfreqs)``. ``dfreqs`` is summed in float64 in a tree that the shapes
        fix, from gradients as they were written: the same bits on every run.

    Raises:
        What :func:`rope` raises, and
        RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
            never can.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> dq = np.array([0.6, 0.0, 0.8, 1.0]).reshape(1, 1, 1, 4)
        >>> cos, sin = np.array([[0.6, 1.0]]), np.array([[0.8, 0.0]])
        >>> mb.rope_backward(dq, None, cos, sin).ravel().round(6)
        array([1., 0., 0., 1.])
    """

def qk_norm_rope(
    q: ArrayT,
    k: ArrayT | None = None,
    q_weight: ArrayT | None = None,
    k_weight: ArrayT | None = None,
    cos: Any = None,
    sin: Any = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight", "before_rotation"] = "once",
    freqs: Any = None,
    position_ids: Any = None,
    seqlen_offsets: Any = None,
    cu_seqlens: Any = None,
    layout: Literal["bshd", "sbhd", "bhsd", "thd"] = "bshd",
    interleaved: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    sections: Any = None,
    interleaved_sections: bool = False,
    attention_scaling: float = 1.0,
    inverse: bool = False,
    validate: bool = False,
    v: ArrayT | None = None,
    key_cache: ArrayT | None = None,
    value_cache: ArrayT | None = None,
    slot_mapping: Any = None,
    out: ArrayT | None = None,
    k_out: ArrayT | None = None,
    return_rstd: bool = False,
    stream: Any = None,
) -> Any:
    """
    RMSNorm of each head of q and k, and rotary embedding of the result, in one pass.

    ``rstd = 1 / sqrt(mean(x * x) + eps)`` over a head, ``out = rope(x * rstd * (weight +
    weight_offset))``, as in Qwen3 and Gemma 3 (Zhang and Sennrich 2019, arXiv:1910.07467; Su et al.
    2021, arXiv:2104.09864). Models that normalise all heads of a token as one row, as OLMo 2, take
    :func:`rms_norm` and :func:`rope`.

    Args:
        q: float16, bfloat16, float32 or float64, from torch, JAX, CuPy or NumPy. Its axes are those of
            ``layout``, with any strides; a slice of a fused qkv array is fine. Heads have at most 1024
            elements.
        k: like ``q``, but for the number of heads; None: ``q`` alone.
        q_weight: ``(head_dim,)``, or ``(heads, head_dim)`` with one for each head, of any floating
            dtype; None for no weight.
        k_weight: the same for ``k``.
        cos: with ``sin`` or ``freqs`` the angles, as in :func:`rope`.
        sin: likewise.
        eps: added to the mean of squares; finite and not negative.
        weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without weights.
        rounding: where 16-bit values are rounded. ``"once"``: everything in float32, one rounding at
            the end. ``"before_weight"``: the bits of ``rms_norm(..., rounding="before_weight")`` and
            then :func:`rope`; Hugging Face's Qwen3 rounds its norm so. ``"before_rotation"``: the bits
            of ``rms_norm(..., rounding="once")`` and then :func:`rope`; Gemma 3 rounds so.
        freqs: as in :func:`rope`, like all of the following up to ``validate``.
        position_ids: likewise.
        seqlen_offsets: likewise.
        cu_seqlens: likewise.
        layout: likewise.
        interleaved: likewise.
        rotary_dim: likewise. Elements that do not turn are normalised all the same.
        rotary_offset: likewise.
        sections: likewise.
        interleaved_sections: likewise.
        attention_scaling: likewise.
        inverse: likewise.
        validate: likewise; slots beyond the cache raise too.
        v: of ``k``'s shape and dtype; copied into ``value_cache`` bit for bit, in the same launch.
        key_cache: where ``k`` goes, as serving engines keep it: ``(slots, heads, head_dim)``, or pages
            ``(blocks, block_size, heads, head_dim)`` whose slots are ``block * block_size + offset``.
            Of ``k``'s dtype, with any strides: pages of ``(blocks, heads, block_size, head_dim)`` are
            passed as ``cache.transpose(1, 2)``. It may overlap nothing else. Not for JAX arrays.
        value_cache: the same for ``v``, of the shape of ``key_cache``.
        slot_mapping: the slot of each token, int32 or int64, of shape ``(batch, seq)`` or
            ``(batch * seq,)``. A token whose slot is negative (padding) or beyond the cache writes no
            ``k`` and no ``v``. Slots of a call must differ, else which token a slot holds is not said.
        out: where to write: the shape, dtype, framework and device of ``q``. It may be ``q`` itself
            (in place), and may overlap nothing else. Not for JAX arrays.
        k_out: the same for ``k``.
        return_rstd: return ``rstd`` of every head too, of shape ``q.shape[:-1]`` in float32 (float64
            for float64), and so for ``k``: :func:`qk_norm_rope_backward` takes them.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``out``, with ``k`` the pair ``(out, k_out)``: what was given, or new C-contiguous arrays. With
        ``return_rstd=True`` ``(out, q_rstd)`` or ``(out, k_out, q_rstd, k_rstd)``. With ``key_cache``
        ``out`` alone: attention reads ``k`` from the cache then, and a second copy would be memory
        traffic for nobody. There is no gradient of that, nor ``k_out`` and ``return_rstd``.

        Where a position is not in the table, the result is NaN; nothing is read out of bounds.

    Raises:
        TypeError: a dtype, a type or a framework that does not fit.
        ValueError: shapes, devices or options that do not fit.
        RuntimeError: a torch tensor requires grad while gradients are recorded, if it is cos, sin or
            freqs, or with ``out``, ``return_rstd``, ``stream`` or a cache;
            :func:`membound.torch.qk_norm_rope` records the others.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> q = np.array([3.0, 0.0, 0.0, 4.0]).reshape(1, 1, 1, 4)
        >>> cos, sin = np.array([[0.6, 1.0]]), np.array([[0.8, 0.0]])
        >>> mb.qk_norm_rope(q, None, np.ones(4), None, cos, sin, eps=0).ravel()
        array([0.72, 0.  , 0.96, 1.6 ])
        >>> cache = np.zeros((3, 1, 4))  # of three tokens
        >>> q = mb.qk_norm_rope(q, q, None, None, cos, sin, key_cache=cache, slot_mapping=np.array([1]))
        >>> cache[:, 0].round(2)
        array([[0.  , 0.  , 0.  , 0.  ],
               [0.72, 0.  , 0.96, 1.6 ],
               [0.  , 0.  , 0.  , 0.  ]])
    """

def qk_norm_rope_backward(
    dq: ArrayT,
    dk: ArrayT | None,
    q: ArrayT,
    k: ArrayT | None,
    q_weight: ArrayT | None = None,
    k_weight: ArrayT | None = None,
    cos: Any = None,
    sin: Any = None,
    *,
    q_rstd: ArrayT | None = None,
    k_rstd: ArrayT | None = None,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    rounding: Literal["once", "before_weight", "before_rotation"] = "once",
    freqs: Any = None,
    position_ids: Any = None,
    seqlen_offsets: Any = None,
    cu_seqlens: Any = None,
    layout: Literal["bshd", "sbhd", "bhsd", "thd"] = "bshd",
    interleaved: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    sections: Any = None,
    interleaved_sections: bool = False,
    attention_scaling: float = 1.0,
    inverse: bool = False,
    validate: bool = False,
    accumulate: bool = False,
    need_dweight: bool = True,
    dq_out: ArrayT | None = None,
    dk_out: ArrayT | None = None,
    dq_weight: ArrayT | None = None,
    dk_weight: ArrayT | None = None,
    stream: Any = None,
) -> tuple[ArrayT, ArrayT | None, ArrayT | None, ArrayT | None]:
    """
    The gradients of :func:`qk_norm_rope`: of q and k, and of their weights.

    With ``h = x * rstd``, ``t`` the gradient of the result turned the other way and ``g = t * (weight +
    weight_offset)``: ``dx = rstd * (g - h * mean(g * h))`` and ``dweight`` the sum of ``t * h`` over
    tokens, and over heads where they share the weight.

    Args:
        dq: the gradient of what :func:`qk_norm_rope` returned for ``q``, in the shape and dtype of
            that.
        dk: the same for ``k``; None: ``q`` alone.
        q: what :func:`qk_norm_rope` read.
        k: likewise, with ``dk`` and only then.
        q_weight: as given to :func:`qk_norm_rope`, like all of the following up to ``validate`` but
            ``q_rstd`` and ``k_rstd``.
        k_weight: likewise.
        cos: likewise.
        sin: likewise.
        q_rstd: what ``return_rstd=True`` returned; None: computed again, with ``eps``.
        k_rstd: the same for ``k``.
        eps: likewise as given.
        weight_offset: likewise.
        rounding: likewise: ``"before_weight"`` rounds ``h`` in ``dweight``, where the forward did.
            Nothing else is rounded before the results.
        freqs: likewise.
        position_ids: likewise.
        seqlen_offsets: likewise.
        cu_seqlens: likewise.
        layout: likewise.
        interleaved: likewise.
        rotary_dim: likewise.
        rotary_offset: likewise.
        sections: likewise.
        interleaved_sections: likewise.
        attention_scaling: likewise.
        inverse: likewise.
        validate: likewise.
        accumulate: add to ``dq_weight`` and ``dk_weight``, which are given then, instead of writing
            them. Not for JAX arrays.
        need_dweight: False: no gradients of the weights.
        dq_out: where to write. It may be ``dq`` or ``q`` itself (in place). Not for JAX arrays.
        dk_out: the same for ``dk`` and ``k``.
        dq_weight: where to write, the shape of ``q_weight`` in any floating dtype. None: new, like
            ``q_weight``.
        dk_weight: the same for ``k_weight``.
        stream: as in :func:`rms_norm`.

    Returns:
        ``(dq, dk, dq_weight, dk_weight)``, None for what is not there. The gradients of weights are
        summed in float32 (float64 for float64) in a tree that shapes and dtype fix: the same bits on
        every run. Frequencies and tables have none here.

    Raises:
        What :func:`qk_norm_rope` raises, and
        RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
            never can.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> q = np.array([3.0, 0.0, 0.0, 4.0]).reshape(1, 1, 1, 4)
        >>> cos, sin = np.array([[0.6, 1.0]]), np.array([[0.8, 0.0]])
        >>> dq, _, dq_weight, _ = mb.qk_norm_rope_backward(
        ...     np.ones_like(q), None, q, None, np.ones(4), None, cos, sin, eps=0
        ... )
        >>> dq_weight
        array([1.68, 0.  , 0.  , 1.6 ])
    """

def embedding(
    ids: Any,
    weight: ArrayT,
    *,
    position_ids: Any = None,
    position_weight: ArrayT | None = None,
    padding_idx: int | None = None,
    scale: float = 1.0,
    vocab_start: int = 0,
    validate: bool = False,
    dtype: Any = None,
    out: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    The rows of a table that ids name: ``weight[ids]``, scaled and with positions added if wanted.

    In full, ``out = weight[ids - vocab_start] * scale + position_weight[position_ids]``. With a scale
    of 1, no positions and one dtype the bytes of the rows are copied, as torch's ``embedding`` does;
    otherwise product and sum are each rounded to float32 (float64 for float64), and the result once to
    its dtype. Gemma's models scale by the root of the width; GPT-2 and BERT add positions.

    Args:
        ids: int32 or int64, of any shape and strides, from the framework and device of ``weight``.
        weight: ``(vocab, dim)``, float16, bfloat16, float32 or float64, with any strides, from torch,
            JAX, CuPy or NumPy.
        position_ids: which row of ``position_weight`` a token gets: int32 or int64, of the shape of
            ``ids``. None: its place along the last axis of ``ids``. With ``position_weight`` alone.
        position_weight: ``(positions, dim)`` of the dtype of ``weight``; None: nothing is added.
        padding_idx: the id whose row gets no gradient; a negative one counts from the end of the table.
            Its row is returned as any other, as torch does.
        scale: multiplies the row of the id, not that of the position; finite.
        vocab_start: the id of the first row of ``weight``, where that is one rank's part of the rows
            (tensor parallelism): a token of another rank gets zeros, without its position too, so that
            the results of all ranks add up to the whole.
        validate: look at ids and positions (CPU arrays only) and raise ValueError where one is outside.
        dtype: of the result: that of ``weight``, or with 16 and 32 bits any of float16, bfloat16 and
            float32; its name, or the framework's own object. None: of ``out``, else of ``weight``.
        out: where to write: ``(*ids.shape, dim)``, of the framework and device of ``weight``. It may
            overlap nothing else. Not for JAX arrays.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``out``, or a new C-contiguous array of ``(*ids.shape, dim)``.

        An id outside of ``[vocab_start, vocab_start + vocab)`` gives zeros, negative ones too, and a
        position that the table does not have adds nothing; nothing is read out of bounds.

    Raises:
        TypeError: a dtype, a type or a framework that does not fit.
        ValueError: shapes, devices, options or an overlap that do not fit; with ``validate`` an id or
            a position that is outside.
        RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out`` or
            ``stream`` is given, with which none can be. Without them the call is that of
            :func:`membound.torch.embedding`, which records it.
        CudaError: CUDA reports an error.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> weight = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
        >>> mb.embedding(np.array([2, 0]), weight)
        array([[4., 5.],
               [0., 1.]])
        >>> mb.embedding(np.array([2, 0]), weight, scale=2.0, vocab_start=1)
        array([[4., 6.],
               [0., 0.]])
    """

@overload
def embedding_backward(
    dy: ArrayT,
    ids: Any,
    vocab: int,
    *,
    padding_idx: int | None = None,
    scale: float = 1.0,
    scale_grad_by_freq: bool = False,
    vocab_start: int = 0,
    validate: bool = False,
    sparse: Literal[False] = False,
    dtype: Any = None,
    out: ArrayT | None = None,
    accumulate: bool = False,
    stream: Any = None,
) -> ArrayT:
    """
    The gradient of the table of :func:`embedding`: what was looked up more than once is summed.

    Row ``r`` is the sum of ``dy`` over all tokens whose id is ``vocab_start + r``, times ``scale``: the
    gradient of torch's ``embedding``. That of an added position table is none of it: without
    ``position_ids`` it is ``dy.sum(0)``, with them this function's result for those ids.

    Args:
        dy: ``(*ids.shape, dim)``, the gradient of the rows looked up: float16, bfloat16, float32 or
            float64, with any strides, from torch, JAX, CuPy or NumPy.
        ids: int32 or int64, of any shape and strides, fewer than 2**31 - 1, from the framework and
            device of ``dy``. Those outside of ``[vocab_start, vocab_start + vocab)`` add nothing.
        vocab: how many rows the table has, at most 2**31 - 2.
        padding_idx: the id whose row gets no gradient; a negative one counts from the end of the table.
        scale: the forward's; finite.
        scale_grad_by_freq: divide the sum of an id by the number of its tokens.
        vocab_start: the forward's.
        validate: look at the ids (CPU arrays only) and raise ValueError where one is outside.
        sparse: return the rows of the ids that occur alone. Not for JAX arrays, as ``accumulate``.
        dtype: of the result: that of ``dy``, or with 16 and 32 bits any of float16, bfloat16 and
            float32; its name, or the framework's own object. None: of ``out``, else of ``dy``.
        out: where to write: ``(vocab, dim)``; with ``sparse=True`` a tuple of three arrays as they
            are returned. It may overlap nothing else. Not for JAX arrays.
        accumulate: add to ``out``, which must be given, in place of writing it. Rows of ids that do not
            occur are neither read nor written. Not with ``sparse=True``.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``out``, or a new C-contiguous array of ``(vocab, dim)``.

        With ``sparse=True`` ``(rows_ids, rows, count)`` with room for every token, so that nothing waits
        for a GPU to count: the ids that occur, ascending, ``(tokens,)`` of the dtype of ``ids``; their
        rows, ``(tokens, dim)``; and how many there are, int64 without an axis. Behind them ``rows_ids``
        repeats the last id of the table and ``rows`` is zero, so that all of it may be added to a table.

        Sums are float32 (float64 for float64), rounded once, in a tree that the number of an id's tokens
        alone fixes: 32 after the other, each such piece to one of 16 sums. Every run gives the same bits,
        on any number of CPU threads or GPU multiprocessors, and one id that has half of all tokens costs
        no more than others.

        On a GPU it takes, from the framework's allocator or on the stream, 16 bytes for each token, 4
        for each row of the table, and with more than 32 tokens two rows of sums for every 32 tokens
        (``dim`` float32 or float64 each); nothing is read back, so it can be captured in a CUDA graph.

    Raises:
        TypeError: a dtype, a type or a framework that does not fit.
        ValueError: shapes, devices, options or an overlap that do not fit; with ``validate`` an id that
            is outside.
        RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
            never can.
        MemoryError: no memory to sort the tokens in.
        CudaError: CUDA reports an error.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> dy = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> mb.embedding_backward(dy, np.array([2, 0, 2]), 3)
        array([[3., 4.],
               [0., 0.],
               [6., 8.]])
        >>> ids, rows, count = mb.embedding_backward(dy, np.array([2, 0, 2]), 3, sparse=True)
        >>> ids[:count].tolist(), rows[:count].tolist()
        ([0, 2], [[3.0, 4.0], [6.0, 8.0]])
    """
@overload
def embedding_backward(
    dy: ArrayT,
    ids: Any,
    vocab: int,
    *,
    padding_idx: int | None = None,
    scale: float = 1.0,
    scale_grad_by_freq: bool = False,
    vocab_start: int = 0,
    validate: bool = False,
    sparse: Literal[True],
    dtype: Any = None,
    out: tuple[ArrayT, ArrayT, ArrayT] | None = None,
    accumulate: bool = False,
    stream: Any = None,
) -> tuple[ArrayT, ArrayT, ArrayT]: ...

@overload
def cross_entropy(
    logits: ArrayT,
    labels: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Literal["none", "sum", "mean"] = "none",
    validate: bool = False,
    out: ArrayT | None = None,
    row_losses: ArrayT | None = None,
    return_lse: Literal[False] = False,
    return_z_loss: Literal[False] = False,
    return_predictions: Literal[False] = False,
    dlogits: ArrayT | None = None,
    dloss: Any = None,
    stream: Any = None,
) -> ArrayT:
    """
    The cross entropy of each row of logits and its label; its gradient in the same pass if wanted.

    With ``l = logits``, or ``softcap * tanh(logits / softcap)`` (Gemma 2), a row's label ``y``, the
    weights of classes ``w``, or 1, and ``lse = log(sum(exp(l)))``, the loss of a row is the sum of

        ``(1 - label_smoothing) * w[y] * (lse - l[y])``,
        ``label_smoothing / cols * sum(w * (lse - l))`` and
        ``z_loss * w[y] * lse ** 2``

    in float32 (float64 for float64): torch's ``cross_entropy``, and the z loss of PaLM (Chowdhery et al.
    2022, arXiv:2204.02311) and ST-MoE, which counts by the label's weight as the rest does.

    With ``dlogits`` the gradient of ``sum(dloss * loss)`` is written in the same pass, over ``logits``
    itself where that is given: training needs no second matrix of logits, as in Liger-Kernel.

    Args:
        logits: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides, from torch, JAX,
            CuPy or NumPy.
        labels: the column of each row: of the shape of ``logits`` less the last axis, int32 or int64,
            with any strides.
        weight: a weight of each class, ``(cols,)`` of any floating dtype. None: all are 1.
        ignore_index: the label of rows that do not count.
        label_smoothing: from 0 to 1: how much of the label all columns share.
        z_loss: the weight of the square of ``lse``; finite, not negative.
        softcap: what logits are held to, on both sides; above 0, None or infinity for no cap.
        reduction: ``"none"``: a loss for each row; ``"sum"``: their sum; ``"mean"``: that divided by the
            sum of ``w[y]`` over rows that count, NaN where there are none. Summed in one order, so that
            every run gives the same bits.
        validate: look at labels (CPU arrays only) and raise ValueError where one is neither ignored nor
            a column.
        out: where the loss goes: of the shape of ``labels``, or ``()`` with a reduction, float32
            (float64 for float64). Not for JAX arrays.
        row_losses: with a reduction, where the losses of rows go: of the shape of ``labels`` and the
            dtype of ``out``. None: a new array, which is not returned. With ``out`` and ``row_losses`` a
            reduction allocates nothing. Not for JAX arrays.
        return_lse: also return what :func:`cross_entropy_backward` takes: ``lse`` in two parts, of the
            shape of ``labels`` and a last axis of 2: the largest ``l``, and the logarithm of the sum
            relative to it. ``lse`` is their sum.
        return_z_loss: also return that part of the loss, reduced as the loss is.
        return_predictions: also return the column of each row's largest logit, the first one of several,
            NaN counting as the largest: of the shape and dtype of ``labels``, -1 in rows that do not
            count.
        dlogits: where the gradient goes: of the shape, dtype, framework and device of ``logits``. It may
            be ``logits`` itself (in place), but may not overlap it in part. None: there is none. Not for
            JAX arrays, where ``jax.grad`` works.
        dloss: the gradient of the loss: a number, or an array of the shape and dtype of ``out``. None: 1.
            With ``dlogits`` alone.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``out``, or a new array of the framework and device of ``logits``; a tuple of it and ``lse``, the
        z loss and the predictions, in this order, where these are wanted.

        A row whose label is ``ignore_index`` is not read: its loss, ``lse`` and gradient are 0. Neither
        is one whose label is no column: there they are NaN, and so is any sum or mean; with a mean, all
        gradients are. A row's bits depend on its values, label, width and dtype alone.

    Raises:
        ValueError: a shape, option, device or overlap that is not as above; with ``validate`` a label.
        TypeError: an array of another framework or dtype, or an option of another type.
        RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
            ``row_losses``, ``return_lse``, ``dlogits`` or ``stream`` is given, with which none can be.
            Without them the call is that of :func:`membound.torch.cross_entropy`, which records it.
        CudaError: CUDA reports an error.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> logits = np.log(np.array([[1.0, 1.0, 2.0], [1.0, 3.0, 4.0]]))
        >>> labels = np.array([2, -100])
        >>> mb.cross_entropy(logits, labels).round(4)
        array([0.6931, 0.    ])
        >>> loss = mb.cross_entropy(logits, labels, reduction="mean", dlogits=logits)
        >>> loss.round(4)
        np.float64(0.6931)
        >>> logits.round(2)
        array([[ 0.25,  0.25, -0.5 ],
               [ 0.  ,  0.  ,  0.  ]])
    """
@overload
def cross_entropy(
    logits: ArrayT,
    labels: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Literal["none", "sum", "mean"] = "none",
    validate: bool = False,
    out: ArrayT | None = None,
    row_losses: ArrayT | None = None,
    return_lse: bool = False,
    return_z_loss: bool = False,
    return_predictions: bool = False,
    dlogits: ArrayT | None = None,
    dloss: Any = None,
    stream: Any = None,
) -> ArrayT | tuple[ArrayT, ...]: ...

def cross_entropy_backward(
    dloss: Any,
    logits: ArrayT,
    labels: Any,
    lse: ArrayT,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Literal["none", "sum", "mean"] = "none",
    validate: bool = False,
    dlogits: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    The gradient of :func:`cross_entropy`, from what it read and its ``lse``.

    With ``l``, ``y`` and ``w`` as there, in float32 (float64 for float64) with one rounding at the end,
    ``dl`` is ``dloss`` times

        ``exp(l - lse) * ((1 - label_smoothing) * w[y] + label_smoothing / cols * sum(w) + 2 * z_loss * w[y] * lse)``
        less ``label_smoothing / cols * w``, less ``(1 - label_smoothing) * w[y]`` in column ``y``

    and ``dlogits = dl``, with a soft cap ``dl * (1 - (l / softcap) ** 2)``: the bits that
    :func:`cross_entropy` itself writes with ``dlogits``.

    Args:
        dloss: the gradient of the loss: a number, or an array of its shape (that of ``labels``, or
            ``()`` with a reduction) in float32 (float64 for float64), with any strides.
        logits: what the forward read, with any strides.
        labels: what it read.
        lse: what it returned with ``return_lse=True``, in two parts. Or of the shape of ``labels``, in
            one number, as other libraries keep it; that costs the gradient digits where logits are
            large: of logits near 1e4 it is off by 1e-3.
        weight: what the forward read.
        ignore_index: as for the forward, and so the next five.
        label_smoothing: from 0 to 1.
        z_loss: finite, not negative.
        softcap: above 0, None for no cap.
        reduction: ``"none"``, ``"sum"`` or ``"mean"``.
        validate: look at labels (CPU arrays only) and raise ValueError where one is wrong.
        dlogits: where to write: of the shape, dtype, framework and device of ``logits``. It may be
            ``logits`` itself (in place), but may not overlap it in part, nor anything else. Not for JAX
            arrays.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``dlogits``, or a new C-contiguous array of the framework, shape, dtype and device of ``logits``.
        Rows whose label is ``ignore_index`` are 0; rows whose label is no column are NaN, and with a
        mean all rows then are.

    Raises:
        ValueError: a shape, option, device or overlap that is not as above; with ``validate`` a label.
        TypeError: an array of another framework or dtype, or an option of another type.
        RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
            never can.
        CudaError: CUDA reports an error.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> logits, labels = np.log(np.array([[1.0, 1.0, 2.0]])), np.array([2])
        >>> loss, lse = mb.cross_entropy(logits, labels, return_lse=True)
        >>> mb.cross_entropy_backward(1.0, logits, labels, lse).round(3)
        array([[ 0.25,  0.25, -0.5 ]])
    """

def softmax(
    x: ArrayT,
    mask: Any = None,
    *,
    scale: float = 1.0,
    causal_offset: int | None = None,
    out: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    Softmax of ``scale * x + mask`` over the last axis, in one pass.

    With ``l = scale * x + mask``, ``out = exp(l - max(l)) / sum(exp(l - max(l)))``, in float32 (float64
    for float64) with one rounding at the end: torch's ``softmax`` of ``l``, and what stands between the
    two products of its ``scaled_dot_product_attention``, whose masks these are.

    Args:
        x: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides, from torch, JAX,
            CuPy or NumPy.
        mask: from the framework and device of ``x``, with any strides and a shape that broadcasts to
            that of ``x``. bool: True keeps an element and False drops it, whatever it is. Floating
            (float64 with float64, else any of float16, bfloat16 and float32): it is added. None for no
            mask.
        scale: multiplies ``x``; finite.
        causal_offset: row ``i`` of the last axis but one keeps columns ``j <= i + causal_offset``: 0
            where queries and keys start together, ``keys - queries`` where they end together. What it
            drops is not read. None keeps all.
        out: where to write: of the shape, dtype, framework and device of ``x``. It may be ``x`` itself
            (in place), but may not overlap it in part, nor the mask. Not for JAX arrays.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``x``.

        Elements that are dropped are 0. A row that the mask drops as a whole is NaN, as torch's
        ``softmax`` of infinities below 0 is, and so is a row with NaN or infinity above 0 among what it
        keeps; a row of which ``causal_offset`` keeps nothing is 0. A row's bits depend on its values,
        mask, width and dtype alone.

    Raises:
        ValueError: a shape, option, device or overlap that is not as above.
        TypeError: an array of another framework or dtype, or an option of another type.
        RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out`` or
            ``stream`` is given, with which none can be. Without them the call is that of
            :func:`membound.torch.softmax`, which records it.
        CudaError: CUDA reports an error.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x = np.log(np.array([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]]))
        >>> mb.softmax(x).round(3)
        array([[0.125, 0.25 , 0.625],
               [0.125, 0.25 , 0.625]])
        >>> mb.softmax(x, np.array([True, False, True]), causal_offset=1).round(3)
        array([[1.   , 0.   , 0.   ],
               [0.167, 0.   , 0.833]])
    """

def softmax_backward(
    dy: ArrayT,
    y: ArrayT,
    *,
    scale: float = 1.0,
    dx: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    The gradient of :func:`softmax`, from its result.

    In full, ``dx = scale * y * (dy - sum(dy * y))`` with the sum over the last axis, in float32 (float64
    for float64) with one rounding at the end. Masks and ``causal_offset`` need not be named: what they
    dropped is 0 in ``y``, and so in ``dx``. With a scale of 1 it is the gradient of an added mask of the
    shape of ``x``, too.

    Args:
        dy: the gradient of the result: of the shape, dtype, framework and device of ``y``, with any
            strides.
        y: what :func:`softmax` returned: ``(..., cols)``, float16, bfloat16, float32 or float64, with any
            strides.
        scale: that of the forward; finite.
        dx: where to write: of the shape, dtype, framework and device of ``y``. It may be ``dy`` or ``y``
            itself (in place), but may not overlap them in part. Not for JAX arrays.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``dx``, or a new C-contiguous array of the framework, shape, dtype and device of ``y``.

    Raises:
        ValueError: a shape, option, device or overlap that is not as above.
        TypeError: an array of another framework or dtype, or an option of another type.
        RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
            never can.
        CudaError: CUDA reports an error.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> y = np.array([[0.125, 0.25, 0.625]])
        >>> mb.softmax_backward(np.array([[1.0, 0.0, 0.0]]), y)
        array([[ 0.109375, -0.03125 , -0.078125]])
        >>> mb.softmax_backward(np.array([[1.0, 0.0, 0.0]]), y, scale=2.0)
        array([[ 0.21875, -0.0625 , -0.15625]])
    """

@overload
def gemma_rms_norm(
    x: ArrayT,
    weight: Any,
    *,
    eps: float | None = 1e-06,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    return_rstd: Literal[False] = False,
    stream: Any = None,
    device: Any = None,
) -> ArrayT:
    """
    :func:`rms_norm` with ``weight_offset=1``, as in Gemma: its weights are stored less one.

    ``out = x * rstd * (weight + 1)``, all in float32 with one rounding at the end.

    Args:
        x: ``(..., cols)``, as in :func:`rms_norm`.
        weight: ``(cols,)`` or ``(heads, cols)``, as in :func:`rms_norm`, but not None.
        eps: added to the mean of squares; finite and not negative.
        normalized_shape: as in :func:`rms_norm`.
        out: where to write; it may be ``x`` itself.
        return_rstd: return ``rstd`` too, for ``rms_norm_backward(..., weight_offset=1)``.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.
        device: as in :func:`rms_norm`.

    Returns:
        What :func:`rms_norm` returns.

    Raises:
        What :func:`rms_norm` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, weight = np.array([[3.0, 4.0]]), np.array([0.0, 1.0])
        >>> mb.gemma_rms_norm(x, weight, eps=12.5)
        array([[0.6, 1.6]])
        >>> mb.rms_norm(x, weight, eps=12.5, weight_offset=1.0)
        array([[0.6, 1.6]])
    """
@overload
def gemma_rms_norm(
    x: ArrayT,
    weight: Any,
    *,
    eps: float | None = 1e-06,
    normalized_shape: int | Sequence[int] | None = None,
    out: ArrayT | None = None,
    return_rstd: Literal[True],
    stream: Any = None,
    device: Any = None,
) -> tuple[ArrayT, ArrayT]: ...

def fused_add_rms_norm(
    input: ArrayT,
    residual: ArrayT,
    weight: Any,
    epsilon: float = 1e-06,
) -> None:
    """
    :func:`add_rms_norm` in place, by the name and with the arguments that vLLM and flashinfer use.

    ``residual`` becomes ``input + residual`` and ``input`` the norm of that sum. The sum is normalised
    before it is rounded, as in flashinfer.

    Args:
        input: ``(..., cols)``, float16, bfloat16, float32 or float64; written. Not a JAX array.
        residual: the shape, dtype, framework and device of ``input``; written.
        weight: ``(cols,)`` or ``(heads, cols)`` of any of those dtypes, or None.
        epsilon: added to the mean of squares; finite and not negative.

    Raises:
        What :func:`add_rms_norm` raises for ``x = input`` and ``eps = epsilon``.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, residual = np.array([[1.0, 2.0]]), np.array([[2.0, 2.0]])
        >>> mb.fused_add_rms_norm(x, residual, np.array([1.0, 0.5]), 12.5)
        >>> x, residual
        (array([[0.6, 0.4]]), array([[3., 4.]]))
    """

def gemma_fused_add_rms_norm(
    input: ArrayT,
    residual: ArrayT,
    weight: Any,
    epsilon: float = 1e-06,
) -> None:
    """
    :func:`fused_add_rms_norm` with one added to each weight, as flashinfer's gemma_fused_add_rmsnorm.

    Args:
        input: ``(..., cols)``, float16, bfloat16, float32 or float64; written. Not a JAX array.
        residual: the shape, dtype, framework and device of ``input``; written.
        weight: ``(cols,)`` or ``(heads, cols)`` of any of those dtypes.
        epsilon: added to the mean of squares; finite and not negative.

    Raises:
        What :func:`add_rms_norm` raises for ``x = input`` and ``eps = epsilon``.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, residual = np.array([[1.0, 2.0]]), np.array([[2.0, 2.0]])
        >>> mb.gemma_fused_add_rms_norm(x, residual, np.array([0.0, -0.5]), 12.5)
        >>> x, residual
        (array([[0.6, 0.4]]), array([[3., 4.]]))
    """

def gated_activation(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    kind: str = "silu",
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    The middle of a gated feed-forward block, in one pass: ``act(gate) * up``.

    In full, ``out = act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset) * row_scale``, in
    float32 (float64 for float64) with one rounding at the end, where ``act(g)`` is, by ``kind`` and
    with ``Phi`` the integral of the normal distribution,

    - ``"silu"``: ``g / (1 + exp(-alpha * g))``; SwiGLU of Llama (Shazeer 2020, arXiv:2002.05202)
    - ``"gelu"``: ``g * Phi(g)``; torch's ``gelu``
    - ``"gelu_tanh"``: ``g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g ** 3)))``; GeGLU of Gemma
    - ``"sigmoid"``: ``1 / (1 + exp(-alpha * g))``; GLU, and gates of attention
    - ``"relu2"``: ``max(g, 0) ** 2``; Primer (So et al. 2021, arXiv:2109.08668), alone in Nemotron
    - ``"relu"``: ``max(g, 0)``; ReGLU
    - ``"situ"``: ``alpha * tanh(g / alpha) / (1 + exp(-g))``; SiTU-GLU of Kimi K3 (arXiv:2607.24653),
      whose other factor is ``limit * tanh(up / limit) + up_offset``

    and by the names that configurations of models carry: ``"swish"`` is silu, ``"quick_gelu"`` silu with
    ``alpha=1.702``, ``"gelu_pytorch_tanh"``, ``"gelu_new"`` and ``"gelu_fast"`` are gelu_tanh,
    ``"relu_squared"`` is relu2.

    gpt-oss is ``packing="interleaved", alpha=1.702, limit=7.0, up_offset=1.0``: with ``g`` and ``u`` the
    limited gate and up, ``(u + 1) * g * sigmoid(1.702 * g)``.

    Args:
        gate: with ``up``: ``(..., cols)``. Without: ``(..., 2 * cols)``, both packed in one array.
            float16, bfloat16, float32 or float64, with any strides.
        up: the shape, dtype, framework and device of ``gate``, with any strides.
        kind: the function of the gate.
        packing: how ``gate`` holds both: ``"halves"``, first all of the gate, then all of up;
            ``"interleaved"``, gate and up in turn, element by element; or ``"gate"``: it is the gate,
            ``(..., cols)``, and there is no up to multiply by.
        alpha: a factor in the logistic function of silu and sigmoid, the cap of the gate of situ; finite
            and above 0. None for what the kind has: 1, of quick_gelu 1.702, of situ 4.
        limit: the gate is held from above and up on both sides, of situ up alone by a soft cap; above 0.
            None for no limit, of situ 25.
        up_offset: added to up; finite.
        row_scale: a factor for each row, such as the weight of an expert: the shape of the gate less
            its last axis, in float32 (float64 for float64); None for none.
        out: where to write: ``(..., cols)`` of the dtype, framework and device of ``gate``. It may be
            the gate or up itself (in place), such as ``gate[..., :cols]`` of a packed one, but may not
            overlap them otherwise. Not for JAX arrays.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``out``, or a new C-contiguous array of the framework, dtype and device of ``gate``.

    Raises:
        ValueError: a shape, extent, option or overlap that is not as above.
        TypeError: an array of another framework or dtype, or an option of another type.
        RuntimeError: a torch tensor requires grad while gradients are recorded, if it is ``row_scale``,
            or with ``out`` or ``stream``; :func:`membound.torch.gated_activation` records the others.
        CudaError: CUDA reports an error.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
        >>> mb.gated_activation(gate_up).round(3)
        array([[ 2.193, -1.076]])
        >>> mb.gated_activation(gate_up[:, :2], gate_up[:, 2:], kind="relu2")
        array([[3., 0.]])
    """

@overload
def gated_activation_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: None = None,
    *,
    kind: str = "silu",
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: None = None,
    need_dgate: Literal[True] = True,
    need_dup: Literal[True] = True,
    stream: Any = None,
) -> ArrayT:
    """
    The gradients of :func:`gated_activation`, recomputed from its inputs in one pass.

    By the chain rule, with ``g = min(gate, limit)`` and ``u = clamp(up, -limit, limit) + up_offset``:
    ``dgate = dy * row_scale * act'(g) * u``, 0 where ``gate > limit``, and
    ``dup = dy * row_scale * act(g)``, 0 where ``abs(up) > limit``; in float32 (float64 for float64),
    each rounded once. ``relu`` and ``relu2`` have the slope 0 at 0; of ``situ`` ``dup`` has the slope of the
    soft cap for a factor. The gradient of ``row_scale`` is not computed: it
    is the sum over a row of ``dy`` times what the forward gives without it.

    Args:
        dy: the gradient of ``out``: ``(..., cols)``, with any strides.
        gate: what the forward read.
        up: what the forward read.
        kind: the forward's.
        packing: the forward's.
        alpha: the forward's.
        limit: the forward's.
        up_offset: the forward's.
        row_scale: the forward's.
        dgate: where to write the gradient of ``gate``, packed where ``gate`` is: its shape, dtype,
            framework and device. It may be ``gate`` itself (in place); with ``up``, or alone, it may
            also be ``dy`` or ``up``. It may not overlap them otherwise. Not for JAX arrays.
        dup: where to write the gradient of ``up``: likewise, and not the array of dgate.
        need_dgate: whether dgate is wanted. True without ``up``.
        need_dup: whether dup is wanted. True without ``up``.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        With ``up`` the pair ``(dgate, dup)``, None in place of what is not wanted. Without, one array
        of the shape of ``gate``, packed like it.

    Raises:
        What :func:`gated_activation` raises, and
        RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
            never can.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
        >>> dgate, dup = mb.gated_activation_backward(dy, gate_up[:, :2], gate_up[:, 2:])
        >>> mb.gated_activation_backward(dy, gate_up).round(3)
        array([[ 2.783,  0.289,  0.731, -0.269]])
    """
@overload
def gated_activation_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: ArrayT,
    *,
    kind: str = "silu",
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: ArrayT | None = None,
    need_dgate: bool = True,
    need_dup: bool = True,
    stream: Any = None,
) -> tuple[Any, Any]: ...

@overload
def gated_activation_quant(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    kind: str = "silu",
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    dtype: Any = "float8_e4m3fn",
    scale: None = None,
    group_size: Literal[64, 128] | None = None,
    scale_upper_bound: float | None = None,
    alpha: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    scale_out: ArrayT | None = None,
    stream: Any = None,
) -> tuple[ArrayT, ArrayT]:
    """
    A gated activation with a result of 8 bits and its scales, in one pass.

    With ``y`` what :func:`gated_activation` returns for ``gate`` and ``up`` converted to float32
    (float64 as they are), bit for bit and on the same device, and ``limit`` the largest number of the
    dtype (448 for float8_e4m3fn, 57344 for float8_e5m2, 127 for int8), in float32 (float64 for
    float64)::

        scale = min(max(abs(y).max() / limit, 2**-126), scale_upper_bound)   # or the one given
        out = round(clip(y * (1 / scale), -limit, limit))                    # ties to even

    so that ``out * scale`` is about ``y``, which is not rounded to the dtype of ``gate`` on the way. A
    scale is that of its row, or of ``group_size`` columns. NaN stays NaN, and makes its scale NaN; in
    int8 it becomes 0. Finite numbers of float64 that no float32 scale
    reaches are clipped at its largest.

    Args:
        gate: as in :func:`gated_activation`: float16, bfloat16, float32 or float64, any strides.
        up: as in :func:`gated_activation`.
        kind: the function of the gate, as in :func:`gated_activation`.
        packing: how ``gate`` holds gate and up, as in :func:`gated_activation`.
        dtype: of the result: ``"float8_e4m3fn"``, ``"float8_e5m2"`` or ``"int8"``, or the framework's
            own object of that name. By default that of ``out``, or float8_e4m3fn.
        scale: a static scale: one float32 number, an array of shape ``()`` or ``(1,)`` where ``gate``
            is. None for dynamic ones.
        group_size: how many columns share a dynamic scale: 64 or 128 (the last group of a row may be
            shorter), or None for all of a row.
        scale_upper_bound: the largest dynamic scale; above 0, or None for no bound.
        alpha: as in :func:`gated_activation`.
        limit: as in :func:`gated_activation`.
        up_offset: as in :func:`gated_activation`.
        row_scale: as in :func:`gated_activation`.
        out: where to write: ``(..., cols)`` of the framework and device of ``gate``, one of the dtypes
            above, with any strides. It may not overlap an input. Not for JAX arrays.
        scale_out: where to write dynamic scales: float32, the shape of ``out`` without its last axis,
            or with ``group_size`` and one axis more for the groups of a row. Any strides: a transposed
            view, ``base.T``, takes the scales column by column.
        stream: the CUDA stream to run on, as in :func:`rms_norm`.

    Returns:
        ``(out, scale)``, with a static scale ``out`` alone; new C-contiguous arrays of the framework
        and device of ``gate`` for those that were not given. NumPy has float8 from ml_dtypes.

    Raises:
        TypeError: an argument is no array or of another framework, or has a dtype that is not taken;
            or the framework has no arrays of the dtype.
        ValueError: a shape, stride, device, overlap or number does not fit.
        RuntimeError: a torch tensor requires grad while gradients are recorded: call this function
            under ``torch.no_grad()`` or pass ``gate.detach()``. It has no gradient.
        membound.CudaError: CUDA is not there, or a launch failed.

        A call that raises has written nothing.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]], np.float32)
        >>> out, scale = mb.gated_activation_quant(gate_up, dtype="int8")
        >>> out, scale.round(4)
        (array([[127, -62]], dtype=int8), array([0.0173], dtype=float32))
        >>> bool(abs(out * scale[:, None] - mb.gated_activation(gate_up)).max() < 0.01)
        True
        >>> mb.gated_activation_quant(gate_up, dtype="int8", scale=np.array(0.02, np.float32))
        array([[110, -54]], dtype=int8)
    """
@overload
def gated_activation_quant(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    kind: str = "silu",
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    dtype: Any = "float8_e4m3fn",
    scale: Any,
    group_size: None = None,
    scale_upper_bound: None = None,
    alpha: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    scale_out: None = None,
    stream: Any = None,
) -> ArrayT: ...

@overload
def silu_and_mul_quant(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    dtype: Any = "float8_e4m3fn",
    scale: None = None,
    group_size: Literal[64, 128] | None = None,
    scale_upper_bound: float | None = None,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    scale_out: ArrayT | None = None,
    stream: Any = None,
) -> tuple[ArrayT, ArrayT]:
    """
    SwiGLU with a result of 8 bits, as :func:`gated_activation_quant` with ``kind="silu"``.

    Args:
        gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
        up: the shape, dtype, framework and device of ``gate``.
        packing: as in :func:`gated_activation_quant`.
        dtype: as in :func:`gated_activation_quant`.
        scale: as in :func:`gated_activation_quant`.
        group_size: as in :func:`gated_activation_quant`.
        scale_upper_bound: as in :func:`gated_activation_quant`.
        alpha: as in :func:`gated_activation_quant`.
        limit: as in :func:`gated_activation_quant`.
        up_offset: as in :func:`gated_activation_quant`.
        row_scale: as in :func:`gated_activation_quant`.
        out: as in :func:`gated_activation_quant`.
        scale_out: as in :func:`gated_activation_quant`.
        stream: as in :func:`gated_activation_quant`.

    Returns:
        What :func:`gated_activation_quant` returns.

    Raises:
        What :func:`gated_activation_quant` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]], np.float32)
        >>> out, scale = mb.silu_and_mul_quant(gate_up, dtype="int8")
        >>> out, scale.round(4)
        (array([[127, -62]], dtype=int8), array([0.0173], dtype=float32))
    """
@overload
def silu_and_mul_quant(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    dtype: Any = "float8_e4m3fn",
    scale: Any,
    group_size: None = None,
    scale_upper_bound: None = None,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    scale_out: None = None,
    stream: Any = None,
) -> ArrayT: ...

def silu_and_mul(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    SwiGLU: ``silu(gate) * up``, as :func:`gated_activation` with ``kind="silu"``.

    Args:
        gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
        up: the shape, dtype, framework and device of ``gate``.
        packing: as in :func:`gated_activation`.
        alpha: as in :func:`gated_activation`.
        limit: as in :func:`gated_activation`.
        up_offset: as in :func:`gated_activation`.
        row_scale: as in :func:`gated_activation`.
        out: as in :func:`gated_activation`.
        stream: as in :func:`gated_activation`.

    Returns:
        What :func:`gated_activation` returns.

    Raises:
        What :func:`gated_activation` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
        >>> mb.silu_and_mul(gate_up).round(3)
        array([[ 2.193, -1.076]])
        >>> mb.silu_and_mul(gate_up[:, :2], gate_up[:, 2:]).round(3)
        array([[ 2.193, -1.076]])
    """

@overload
def silu_and_mul_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: None = None,
    need_dgate: Literal[True] = True,
    need_dup: Literal[True] = True,
    stream: Any = None,
) -> ArrayT:
    """
    The gradients of :func:`silu_and_mul`, as :func:`gated_activation_backward`.

    Args:
        dy: the gradient of ``out``: ``(..., cols)``.
        gate: what the forward read.
        up: what the forward read.
        packing: the forward's.
        alpha: the forward's.
        limit: the forward's.
        up_offset: the forward's.
        row_scale: the forward's.
        dgate: as in :func:`gated_activation_backward`.
        dup: as in :func:`gated_activation_backward`.
        need_dgate: as in :func:`gated_activation_backward`.
        need_dup: as in :func:`gated_activation_backward`.
        stream: as in :func:`gated_activation`.

    Returns:
        What :func:`gated_activation_backward` returns.

    Raises:
        What :func:`gated_activation_backward` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
        >>> dgate, dup = mb.silu_and_mul_backward(dy, gate_up[:, :2], gate_up[:, 2:])
        >>> mb.silu_and_mul_backward(dy, gate_up).round(3)
        array([[ 2.783,  0.289,  0.731, -0.269]])
    """
@overload
def silu_and_mul_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: ArrayT,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: ArrayT | None = None,
    need_dgate: bool = True,
    need_dup: bool = True,
    stream: Any = None,
) -> tuple[Any, Any]: ...

def gelu_and_mul(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    GeGLU: ``gelu(gate) * up``, as :func:`gated_activation` with ``kind="gelu"``.

    Args:
        gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
        up: the shape, dtype, framework and device of ``gate``.
        packing: as in :func:`gated_activation`.
        limit: as in :func:`gated_activation`.
        up_offset: as in :func:`gated_activation`.
        row_scale: as in :func:`gated_activation`.
        out: as in :func:`gated_activation`.
        stream: as in :func:`gated_activation`.

    Returns:
        What :func:`gated_activation` returns.

    Raises:
        What :func:`gated_activation` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
        >>> mb.gelu_and_mul(gate_up).round(3)
        array([[ 2.524, -0.635]])
        >>> mb.gelu_and_mul(gate_up[:, :2], gate_up[:, 2:]).round(3)
        array([[ 2.524, -0.635]])
    """

@overload
def gelu_and_mul_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: None = None,
    need_dgate: Literal[True] = True,
    need_dup: Literal[True] = True,
    stream: Any = None,
) -> ArrayT:
    """
    The gradients of :func:`gelu_and_mul`, as :func:`gated_activation_backward`.

    Args:
        dy: the gradient of ``out``: ``(..., cols)``.
        gate: what the forward read.
        up: what the forward read.
        packing: the forward's.
        limit: the forward's.
        up_offset: the forward's.
        row_scale: the forward's.
        dgate: as in :func:`gated_activation_backward`.
        dup: as in :func:`gated_activation_backward`.
        need_dgate: as in :func:`gated_activation_backward`.
        need_dup: as in :func:`gated_activation_backward`.
        stream: as in :func:`gated_activation`.

    Returns:
        What :func:`gated_activation_backward` returns.

    Raises:
        What :func:`gated_activation_backward` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
        >>> dgate, dup = mb.gelu_and_mul_backward(dy, gate_up[:, :2], gate_up[:, 2:])
        >>> mb.gelu_and_mul_backward(dy, gate_up).round(3)
        array([[ 3.25 , -0.333,  0.841, -0.159]])
    """
@overload
def gelu_and_mul_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: ArrayT,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: ArrayT | None = None,
    need_dgate: bool = True,
    need_dup: bool = True,
    stream: Any = None,
) -> tuple[Any, Any]: ...

def gelu_tanh_and_mul(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    GeGLU by tanh, as :func:`gated_activation` with ``kind="gelu_tanh"``.

    Args:
        gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
        up: the shape, dtype, framework and device of ``gate``.
        packing: as in :func:`gated_activation`.
        limit: as in :func:`gated_activation`.
        up_offset: as in :func:`gated_activation`.
        row_scale: as in :func:`gated_activation`.
        out: as in :func:`gated_activation`.
        stream: as in :func:`gated_activation`.

    Returns:
        What :func:`gated_activation` returns.

    Raises:
        What :func:`gated_activation` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
        >>> mb.gelu_tanh_and_mul(gate_up).round(3)
        array([[ 2.524, -0.635]])
        >>> mb.gelu_tanh_and_mul(gate_up[:, :2], gate_up[:, 2:]).round(3)
        array([[ 2.524, -0.635]])
    """

@overload
def gelu_tanh_and_mul_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: None = None,
    need_dgate: Literal[True] = True,
    need_dup: Literal[True] = True,
    stream: Any = None,
) -> ArrayT:
    """
    The gradients of :func:`gelu_tanh_and_mul`, as :func:`gated_activation_backward`.

    Args:
        dy: the gradient of ``out``: ``(..., cols)``.
        gate: what the forward read.
        up: what the forward read.
        packing: the forward's.
        limit: the forward's.
        up_offset: the forward's.
        row_scale: the forward's.
        dgate: as in :func:`gated_activation_backward`.
        dup: as in :func:`gated_activation_backward`.
        need_dgate: as in :func:`gated_activation_backward`.
        need_dup: as in :func:`gated_activation_backward`.
        stream: as in :func:`gated_activation`.

    Returns:
        What :func:`gated_activation_backward` returns.

    Raises:
        What :func:`gated_activation_backward` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
        >>> dgate, dup = mb.gelu_tanh_and_mul_backward(dy, gate_up[:, :2], gate_up[:, 2:])
        >>> mb.gelu_tanh_and_mul_backward(dy, gate_up).round(3)
        array([[ 3.249, -0.332,  0.841, -0.159]])
    """
@overload
def gelu_tanh_and_mul_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: ArrayT,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: ArrayT | None = None,
    need_dgate: bool = True,
    need_dup: bool = True,
    stream: Any = None,
) -> tuple[Any, Any]: ...

def sigmoid_and_mul(
    gate: ArrayT,
    up: ArrayT | None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    out: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    GLU: ``sigmoid(gate) * up``, as :func:`gated_activation` with ``kind="sigmoid"``.

    Args:
        gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
        up: the shape, dtype, framework and device of ``gate``.
        packing: as in :func:`gated_activation`.
        alpha: as in :func:`gated_activation`.
        limit: as in :func:`gated_activation`.
        up_offset: as in :func:`gated_activation`.
        row_scale: as in :func:`gated_activation`.
        out: as in :func:`gated_activation`.
        stream: as in :func:`gated_activation`.

    Returns:
        What :func:`gated_activation` returns.

    Raises:
        What :func:`gated_activation` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
        >>> mb.sigmoid_and_mul(gate_up).round(3)
        array([[2.193, 1.076]])
        >>> mb.sigmoid_and_mul(gate_up[:, :2], gate_up[:, 2:]).round(3)
        array([[2.193, 1.076]])
    """

@overload
def sigmoid_and_mul_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: None = None,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: None = None,
    need_dgate: Literal[True] = True,
    need_dup: Literal[True] = True,
    stream: Any = None,
) -> ArrayT:
    """
    The gradients of :func:`sigmoid_and_mul`, as :func:`gated_activation_backward`.

    Args:
        dy: the gradient of ``out``: ``(..., cols)``.
        gate: what the forward read.
        up: what the forward read.
        packing: the forward's.
        alpha: the forward's.
        limit: the forward's.
        up_offset: the forward's.
        row_scale: the forward's.
        dgate: as in :func:`gated_activation_backward`.
        dup: as in :func:`gated_activation_backward`.
        need_dgate: as in :func:`gated_activation_backward`.
        need_dup: as in :func:`gated_activation_backward`.
        stream: as in :func:`gated_activation`.

    Returns:
        What :func:`gated_activation_backward` returns.

    Raises:
        What :func:`gated_activation_backward` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
        >>> dgate, dup = mb.sigmoid_and_mul_backward(dy, gate_up[:, :2], gate_up[:, 2:])
        >>> mb.sigmoid_and_mul_backward(dy, gate_up).round(3)
        array([[0.59 , 0.786, 0.731, 0.269]])
    """
@overload
def sigmoid_and_mul_backward(
    dy: ArrayT,
    gate: ArrayT,
    up: ArrayT,
    *,
    packing: Literal["halves", "interleaved", "gate"] = "halves",
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    dup: ArrayT | None = None,
    need_dgate: bool = True,
    need_dup: bool = True,
    stream: Any = None,
) -> tuple[Any, Any]: ...

def relu2(
    gate: ArrayT,
    *,
    row_scale: Any = None,
    out: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    ``max(gate, 0) ** 2``, as :func:`gated_activation` with ``kind="relu2"`` and nothing to multiply by.

    Args:
        gate: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides.
        row_scale: as in :func:`gated_activation`.
        out: where to write: the shape, dtype, framework and device of ``gate``, or ``gate`` itself.
        stream: as in :func:`gated_activation`.

    Returns:
        ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``gate``.

    Raises:
        What :func:`gated_activation` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x = np.array([-1.0, 2.0, 3.0])
        >>> mb.relu2(x)
        array([0., 4., 9.])
        >>> mb.relu2(x, out=x) is x
        True
    """

def relu2_backward(
    dy: ArrayT,
    gate: ArrayT,
    *,
    row_scale: Any = None,
    dgate: ArrayT | None = None,
    stream: Any = None,
) -> ArrayT:
    """
    The gradient of :func:`relu2`: ``2 * max(gate, 0) * dy * row_scale``.

    Args:
        dy: the gradient of ``out``: the shape, dtype, framework and device of ``gate``.
        gate: what the forward read.
        row_scale: the forward's.
        dgate: where to write: likewise, or ``gate`` or ``dy`` itself.
        stream: as in :func:`gated_activation`.

    Returns:
        ``dgate``, or a new C-contiguous array.

    Raises:
        What :func:`gated_activation_backward` raises.

    Example:
        >>> import numpy as np
        >>> import membound as mb
        >>> x, dy = np.array([-1.0, 2.0, 3.0]), np.ones(3)
        >>> mb.relu2_backward(dy, x)
        array([0., 4., 6.])
        >>> mb.relu2_backward(dy, x, dgate=x) is x
        True
    """
