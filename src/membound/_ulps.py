# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The one table of tolerances, in units in the last place of the result's dtype.

`check`, the tests and the benchmarks all read it.
"""

from __future__ import annotations

import math

# significant bits, smallest normal exponent, largest finite value
FORMATS = {
    "float16": (11, -14, 65504.0),
    "bfloat16": (8, -126, (2 - 2**-7) * 2.0**127),
    "float32": (24, -126, (2 - 2**-23) * 2.0**127),
    "float64": (53, -1022, math.ldexp(2 - 2**-52, 1023)),
    "float8_e4m3fn": (4, -6, 448.0),
    "float8_e5m2": (3, -14, 57344.0),
}

# float32 and float64: the formula rounds the mean, eps, the root, its inverse, the weight's offset
# and two products. One of 100 million random elements exceeded four ulps (widths 64 to 65536).
# 16 bits: the float32 result is rounded correctly, so half an ulp plus the float32 error in ulps of
# the narrower format.
ALLOWED = {"float16": 0.501, "bfloat16": 0.5001, "float32": 5.0, "float64": 5.0}
# Compared with the exact norm over its exact scale. Rounding to bfloat16 changes a value by at most
# 2**-8 of itself, which is 2**-4 ulp here: both the norm and the row maximum may have been rounded.
ALLOWED["float8_e4m3fn"] = 0.501 + 2 * 2.0**-4

# A gate adds one factor: its exponential, division and product round. The largest error of 30
# million random elements on a CPU was 6.3, for widths of 64 to 65536. 16 bits as above.
GATED_ALLOWED = {"float16": 0.501, "bfloat16": 0.5002, "float32": 8.0, "float64": 8.0}

# dtype -> its ulp in float64 ulps, and its smallest ulp
_SCALE = {
    name: (2.0 ** (53 - bits), math.ldexp(1.0, smallest - bits + 1))
    for name, (bits, smallest, _) in FORMATS.items()
}


def ulp(value: float, dtype: str) -> float:
    """The distance to the next value of dtype at |value|; below the normal range it is constant."""
    scale, smallest = _SCALE[dtype]
    return max(math.ulp(value) * scale, smallest)


# Larger values round to infinity.
RANGE = {name: largest + ulp(largest, name) / 2 for name, (_, _, largest) in FORMATS.items()}


def error_beyond(slack: float, found: float, right: float, dtype: str) -> float:
    """Distance of found from right, less slack, in ulps; infinite if only one is NaN."""
    if math.isnan(found) and math.isnan(right):
        return 0.0
    difference = abs(found - right)
    if difference <= slack:
        return 0.0
    return (difference - slack) / ulp(right, dtype) if math.isfinite(difference) else math.inf


# Gradients, and deviations from a row's mean, are sums of terms that may cancel. In addition to the
# ulps above they may be off by this many roundings, in the accumulator's dtype, of the magnitude of
# those terms. The largest seen on a CPU: 3.7 for gradients (widths 1 to 65536, up to 20,000 rows of
# normal values), 5.7 with a gate, and 3.3 for layer_norm (the same widths, means up to 10,000
# standard deviations).
SUM_ROUNDINGS = 8.0


def sum_slack(dtype: str) -> float:
    """The slack of such a sum, relative to the magnitude of its terms."""
    return SUM_ROUNDINGS * 2.0 ** -FORMATS["float64" if dtype == "float64" else "float32"][0]


# Gated activations: the exponential, the division, up to three products and the tail of gelu round.
# The largest error was 8.1 on a CPU and 10.1 on a GPU, for gelu in float64. With 16-bit storage
# gelu's tail is accurate to 2^-18 on a CPU and 2^-17 on a GPU, where the exponential and division
# of the other kinds are accurate to 2^-17.
ACTIVATION_ALLOWED = {"float16": 0.52, "bfloat16": 0.504, "float32": 10.0, "float64": 12.0}
# For their slopes, whose terms cancel where the function is flat, relative to those terms.
ACTIVATION_SLACK = {"float16": 2.0**-16, "bfloat16": 2.0**-16}
ACTIVATION_SLACK |= {name: sum_slack(name) for name in ("float32", "float64")}

# Softmax: the exponential, the sum, its inverse and the product round.
SOFTMAX_ALLOWED = {"float16": 0.501, "bfloat16": 0.5002, "float32": 6.0, "float64": 6.0}
