# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Frequencies and tables of rope from the dictionary in model configurations."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from membound.arrays import dtype_name, numpy_dtype

# Defaults: the base where a configuration has none, and the bounds of YaRN's ramp.
_THETA = 10000.0
_BETA_FAST, _BETA_SLOW = 32.0, 1.0

Parameters = Mapping[str, Any]


def rope_frequencies(
    rope_parameters: Parameters | None,
    head_dim: int,
    max_position: int | None = None,
    *,
    layer_type: str | None = None,
    like: Any = None,
) -> tuple[Any, float]:
    """Inverse frequencies, and the factor on cos and sin, of a model's rotary embedding.

    Args:
        rope_parameters: what configurations carry as ``rope_parameters``, or as ``rope_scaling``
            with ``rope_theta`` put in; None for the default. ``rope_type`` (or ``type``) is one of
            ``"default"``, ``"linear"``, ``"dynamic"`` (NTK), ``"yarn"`` (Peng et al. 2023,
            arXiv:2309.00071), ``"llama3"``, ``"longrope"`` (Ding et al. 2024, arXiv:2402.13753),
            ``"proportional"`` and ``"mrope"``, with the keys that Hugging Face's transformers
            give it. ``max_position_embeddings`` may stand in it too, where a type asks the
            configuration for it.
        head_dim: elements of a head. With ``partial_rotary_factor`` only part of them is rotated.
        max_position: how long sequences are. Only ``"dynamic"`` and ``"longrope"`` depend on it,
            and must have it.
        layer_type: which layers' parameters to take, where rope_parameters holds a dictionary for
            each type of layer, as Gemma 3's and ModernBERT's do.
        like: an array of NumPy, torch, JAX or CuPy, whose framework and device the frequencies
            take, in float32, or float64 where it has that. None: a list of numbers.

    Returns:
        ``rotary_dim / 2`` frequencies, computed in float64, and the attention scaling factor: the
        arguments ``freqs`` and ``attention_scaling`` of :func:`membound.rope`.

    Raises:
        ValueError: an unknown type, a key that is missing, or lengths that do not fit.
        ImportError: with like, NumPy is not installed.

    Example:
        >>> import membound as mb
        >>> mb.rope_frequencies({"rope_type": "linear", "factor": 2.0}, 4)
        ([0.5, 0.005], 1.0)
    """
    op = "rope_frequencies"
    freqs, scaling = _frequencies(op, rope_parameters, head_dim, max_position, layer_type)
    if like is None:
        return freqs, scaling
    import numpy

    name = "float64" if dtype_name(like.dtype) == "float64" else "float32"
    return _in_framework(op, numpy.array(freqs), name, like), scaling


def _frequencies(
    op: str,
    rope_parameters: Parameters | None,
    head_dim: int,
    max_position: int | None,
    layer_type: str | None,
) -> tuple[list[float], float]:
    try:
        given = _of_layer(rope_parameters, layer_type)
        return _checked_frequencies(given, head_dim, max_position)
    except _UnfitError as error:
        raise ValueError(f"{op}: argument {error}") from None


def _of_layer(rope_parameters: Parameters | None, layer_type: str | None) -> dict[str, Any]:
    """The parameters of one layer type: its own, merged with those common to all types."""
    _require(
        rope_parameters is None or isinstance(rope_parameters, Mapping),
        f"'rope_parameters' must be a dictionary or None, got {rope_parameters!r}",
    )
    given = dict(rope_parameters or {})
    types = [name for name, value in given.items() if isinstance(value, Mapping)]
    if not types:
        _require(
            layer_type is None,
            "'layer_type' must be None where rope_parameters has no dictionary for each type of "
            f"layer, got {layer_type!r}",
        )
        return given
    _require(
        layer_type in types,
        f"'layer_type' must be one of those of rope_parameters, {', '.join(map(repr, types))}, "
        f"got {layer_type!r}",
    )
    return {k: v for k, v in given.items() if k not in types} | dict(given[layer_type])


def _checked_frequencies(
    given: Parameters, head_dim: int, max_position: int | None
) -> tuple[list[float], float]:
    kind = given.get("rope_type", given.get("type", "default"))
    _require(
        isinstance(kind, str) and kind in _TYPES,
        f"'rope_type' must be one of {', '.join(_TYPES)}, got {kind!r}",
    )
    _require(
        isinstance(head_dim, int) and head_dim >= 2,
        f"'head_dim' must be an integer of at least 2, got {head_dim!r}",
    )
    _require(
        max_position is not None or kind not in _DEPEND_ON_LENGTH,
        f"'max_position' must be given for the rope type {kind!r}, got None",
    )
    max_position = 0 if max_position is None else max_position
    _require(
        isinstance(max_position, int) and max_position >= 0,
        f"'max_position' must be an integer that is not negative, got {max_position!r}",
    )
    return _TYPES[kind](given, head_dim, max_position)


def rope_table(
    rope_parameters: Parameters | None,
    head_dim: int,
    max_position: int,
    dtype: Any = "float32",
    *,
    layer_type: str | None = None,
    like: Any = None,
) -> tuple[Any, Any, float]:
    """Tables of cos and sin for :func:`membound.rope`, from angles in float64, rounded once.

    Args:
        rope_parameters, head_dim, layer_type: as in :func:`rope_frequencies`.
        max_position: the tables have positions 0 to before this.
        dtype: of the tables, by name or an object of NumPy's, torch's or JAX's.
        like: an array of torch, JAX or CuPy, whose framework and device the tables take. None:
            NumPy.

    Returns:
        ``(cos, sin, attention_scaling)``: both ``(max_position, rotary_dim / 2)``. The attention
        scaling factor is included in them; with ``freqs`` it is a separate argument.

    Raises:
        ValueError: what :func:`rope_frequencies` raises.
        TypeError: a dtype that is none.
        ImportError: NumPy is not installed.

    Example:
        >>> import membound as mb
        >>> cos, sin, scaling = mb.rope_table({"rope_theta": 10000.0}, 64, 128)
        >>> cos.shape, cos.dtype.name, scaling
        ((128, 32), 'float32', 1.0)
    """
    import numpy

    name = dtype_name(dtype)
    if name not in ("float16", "bfloat16", "float32", "float64"):
        raise TypeError(
            "rope_table: argument 'dtype' must be float16, bfloat16, float32 or float64, "
            f"got {dtype!r}"
        )
    op = "rope_table"
    freqs, scaling = _frequencies(op, rope_parameters, head_dim, max_position, layer_type)
    angles = numpy.arange(max_position, dtype=numpy.float64)[:, None] * numpy.array(freqs)
    tables = (scaling * numpy.cos(angles), scaling * numpy.sin(angles))
    cos, sin = (_in_framework(op, table, name, like) for table in tables)
    return cos, sin, scaling


def _in_framework(op: str, table: Any, name: str, like: Any) -> Any:
    torch, cupy, jax = (sys.modules.get(module) for module in ("torch", "cupy", "jax"))
    if torch is not None and isinstance(like, torch.Tensor):  # torch rounds to bfloat16 itself
        return torch.from_numpy(table).to(getattr(torch, name)).to(like.device)
    kind = numpy_dtype(name)
    if kind is None:
        raise ImportError(f"{op}: NumPy has bfloat16 from ml_dtypes, which is not installed")
    table = table.astype(kind)
    if cupy is not None and isinstance(like, cupy.ndarray):
        with like.device:
            return cupy.asarray(table)
    if jax is not None and isinstance(like, jax.Array):
        return jax.device_put(table, next(iter(like.devices())))
    return table


# --- the types: (parameters, head_dim, max_position) to frequencies and the factor ---


def _default(given: Parameters, head_dim: int, _: int) -> tuple[list[float], float]:
    return _powers(_theta(given), _rotary_dim(given, head_dim)), 1.0


def _linear(given: Parameters, head_dim: int, _: int) -> tuple[list[float], float]:
    factor = _number(given, "factor")
    return [one / factor for one in _default(given, head_dim, 0)[0]], 1.0


def _dynamic(given: Parameters, head_dim: int, max_position: int) -> tuple[list[float], float]:
    """A larger base for sequences longer than the model was trained on."""
    dim, factor = _rotary_dim(given, head_dim), _number(given, "factor")
    trained = _trained(given)
    _require(dim > 2, f"'head_dim' must have more than 2 elements that turn, got {dim}")
    stretch = factor * max(max_position, trained) / trained - (factor - 1)
    return _powers(_theta(given) * stretch ** (dim / (dim - 2)), dim), 1.0


def _yarn(given: Parameters, head_dim: int, _: int) -> tuple[list[float], float]:
    """Blend frequencies and frequencies / factor by a pair's rotations over the trained length."""
    theta, dim = _theta(given), _rotary_dim(given, head_dim)
    trained = _number(given, "original_max_position_embeddings")
    factor = _factor(given, trained)

    def pair_turning(times: float) -> float:
        return dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(theta))

    first = pair_turning(given.get("beta_fast") or _BETA_FAST)
    last = pair_turning(given.get("beta_slow") or _BETA_SLOW)
    if given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001

    def blend(pair: int, frequency: float) -> float:
        interpolated = min(max((pair - first) / width, 0.0), 1.0)
        return frequency / factor * interpolated + frequency * (1 - interpolated)

    freqs = [blend(pair, one) for pair, one in enumerate(_powers(theta, dim))]
    return freqs, _yarn_scaling(given, factor)


def _yarn_scaling(given: Parameters, factor: float) -> float:
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, all_dims = given.get("mscale"), given.get("mscale_all_dim")
    if weight and all_dims:
        return magnitude(weight) / magnitude(all_dims)
    return magnitude(1.0)


def _llama3(given: Parameters, head_dim: int, _: int) -> tuple[list[float], float]:
    """Divide long wavelengths by the factor, keep short ones, interpolate between."""
    factor = _number(given, "factor")
    low, high = _number(given, "low_freq_factor"), _number(given, "high_freq_factor")
    trained = _number(given, "original_max_position_embeddings")
    _require(high > low, f"'high_freq_factor' must be above 'low_freq_factor', got {high:g}")

    def scaled(frequency: float) -> float:
        share = (trained * frequency / (2 * math.pi) - low) / (high - low)
        share = min(max(share, 0.0), 1.0)
        return (1 - share) * frequency / factor + share * frequency

    return [scaled(one) for one in _default(given, head_dim, 0)[0]], 1.0


def _longrope(given: Parameters, head_dim: int, max_position: int) -> tuple[list[float], float]:
    """One factor per pair, from one list for long sequences and one for short ones."""
    trained = _number(given, "original_max_position_embeddings")
    name = "long_factor" if max_position > trained else "short_factor"
    _require(name in given, f"'rope_parameters' must have '{name}'")
    freqs, factors = _default(given, head_dim, 0)[0], given[name]
    _require(len(factors) == len(freqs),
             f"'{name}' must have {len(freqs)} numbers, got {len(factors)}")  # fmt: skip
    scaling = given.get("attention_factor")
    if scaling is None:
        factor = _factor(given, trained)
        scaling = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return [one / by for one, by in zip(freqs, factors, strict=True)], float(scaling)


def _proportional(given: Parameters, head_dim: int, _: int) -> tuple[list[float], float]:
    """Frequencies of a whole head, of which the lower ones are 0 (no rotation)."""
    turning = int(given.get("partial_rotary_factor", 1.0) * head_dim // 2)
    factor = given.get("factor", 1.0)
    freqs = [one / factor for one in _powers(_theta(given), head_dim)]
    return freqs[:turning] + [0.0] * (head_dim // 2 - turning), 1.0


_TYPES = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
    "mrope": _default,  # the sections of mrope are arguments of rope
}
_DEPEND_ON_LENGTH = ("dynamic", "longrope")


def _powers(theta: float, dim: int) -> list[float]:
    return [theta ** (-at / dim) for at in range(0, dim, 2)]


def _theta(given: Parameters) -> float:
    theta = given.get("rope_theta")
    return _THETA if theta is None else _number(given, "rope_theta")


def _rotary_dim(given: Parameters, head_dim: int) -> int:
    dim = int(head_dim * given.get("partial_rotary_factor", 1.0))
    _require(dim >= 2 and dim % 2 == 0,
             f"'head_dim' must have an even number of elements that turn, got {dim}")  # fmt: skip
    return dim


def _trained(given: Parameters) -> float:
    """The sequence length that the model was trained on."""
    name = "original_max_position_embeddings"
    return _number(given, name if name in given else "max_position_embeddings")


def _factor(given: Parameters, trained: float) -> float:
    if given.get("factor") is not None:
        return _number(given, "factor")
    return _number(given, "max_position_embeddings") / trained


def _number(given: Parameters, name: str) -> float:
    value = given.get(name)
    _require(value is not None, f"'rope_parameters' must have '{name}'")
    _require(isinstance(value, (int, float)) and math.isfinite(value) and value > 0,
             f"'{name}' must be a number above 0, got {value!r}")  # fmt: skip
    return float(value)


class _UnfitError(Exception):
    """Why an argument is refused; the public function prefixes its own name."""


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise _UnfitError(text)
