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
}

# float32 and float64: four ulps of the exact result. 16 bits: the float32 value correctly rounded,
# that is half an ulp plus what four ulps of float32 are worth in the narrower format.
ALLOWED = {"float16": 0.501, "bfloat16": 0.5001, "float32": 4.0, "float64": 4.0}


def ulp(value: float, dtype: str) -> float:
    """The distance to the next value of dtype at |value|; below the normal range it is constant."""
    bits, smallest, _ = FORMATS[dtype]
    exponent = math.frexp(value)[1] - 1 if value else smallest
    return math.ldexp(1.0, max(exponent, smallest) - bits + 1)
