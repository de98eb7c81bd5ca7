# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Argument checks shared by the functions of embedding tables, with the core's error texts."""

from membound.jax import _arguments

_FLOATING = ("float16", "bfloat16", "float32", "float64")
_NAMES = "float16, bfloat16, float32 or float64"


def require(op, condition, argument, text, error=ValueError):
    if not condition:
        raise error(f"{op}: argument '{argument}' must {text}")


def number(op, value, argument):
    """An integer that is static: an id, or a number of rows."""
    value = _arguments.index(op, value, argument)
    text = f"not be negative, and below 2**62, got {value}"
    require(op, 0 <= value < 1 << 62, argument, text)
    return value


def padding_id(op, value, vocab, vocab_start):
    """Resolve padding_idx: a negative one counts from the end of a whole table."""
    if value is None:
        return None
    value = _arguments.index(op, value, "padding_idx")
    if value >= 0:
        return number(op, value, "padding_idx")
    text = f"not be negative with 'vocab_start', got {value}"
    require(op, vocab_start == 0, "padding_idx", text)
    text = f"be at least -{vocab}, counted from the end of the table, got {value}"
    require(op, value >= -vocab, "padding_idx", text)
    return value + vocab


def resolved(options, vocab):
    """The options with ids that are known to be such."""
    op, first = options.op, number(options.op, options.vocab_start, "vocab_start")
    padding = padding_id(op, options.padding_idx, vocab, first)
    return options if padding is options.padding_idx else options._replace(padding_idx=padding)


def check_floating(op, array, argument):
    name = array.dtype.name
    require(op, name in _FLOATING, argument, f"be {_NAMES}, got {name}", TypeError)


def check_integers(op, array, argument):
    name = array.dtype.name
    require(op, name in ("int32", "int64"), argument, f"be int32 or int64, got {name}", TypeError)


def check_result_dtype(op, dtype, array, argument):
    """Require float64 for a float64 array, and another floating dtype otherwise."""
    wide = array.dtype.name == "float64"
    require(op, dtype is None or (dtype == "float64") == wide, "dtype",
            f"be {'float64' if wide else 'float16, bfloat16 or float32'} for a {argument} of "
            f"{array.dtype.name}, got {dtype}", TypeError)  # fmt: skip
