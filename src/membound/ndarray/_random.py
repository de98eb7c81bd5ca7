# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Random numbers: Philox4x32-10, the same on every device."""

from __future__ import annotations

import operator

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import (
    FLOAT64,
    INT64,
    DeviceLike,
    DTypeLike,
    array_of,
    shape_of,
)
from membound.ndarray._types import iinfo


class Generator:
    """A stream of random numbers, which depends on the seed and on the calls before.

    The numbers of a call do not depend on the device. Pickle or copy it to keep its state.

    >>> nd.Generator(1).uniform(3) == nd.Generator(1).uniform(3)
    array([ True,  True,  True])
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= operator.index(seed) < 2**64:
            raise ValueError(f"Generator: argument 'seed' must be from 0 to 2**64 - 1, got {seed}")
        self._seed = operator.index(seed)
        self._counter = 0  # blocks of Philox so far

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, counter={self._counter})"

    def _draw(
        self,
        kind: str,
        shape: int | tuple[int, ...],
        dtype: DTypeLike,
        device: DeviceLike,
        *how: float,
    ) -> NDArray:
        lengths = shape_of(kind, shape)
        where = "cpu" if device is None else device
        state = (self._seed, self._counter)
        result = _core.array_random(kind, *state, lengths, dtype, where, *how)
        self._counter += _core.array_random_blocks(result.size, dtype)
        return result

    def uniform(
        self,
        shape: int | tuple[int, ...],
        *,
        low: float = 0.0,
        high: float = 1.0,
        dtype: DTypeLike = None,
        device: DeviceLike = None,
    ) -> NDArray:
        """Return floats (float64 by default) from low to before high, all as likely.

        Rounding to the dtype can give high, unless low is 0 and high 1.
        """
        wanted = FLOAT64 if dtype is None else dtype
        return self._draw("uniform", shape, wanted, device, low, high)

    def normal(
        self,
        shape: int | tuple[int, ...],
        *,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: DTypeLike = None,
        device: DeviceLike = None,
    ) -> NDArray:
        """Return floats (float64 by default) of a normal distribution."""
        wanted = FLOAT64 if dtype is None else dtype
        return self._draw("normal", shape, wanted, device, mean, std)

    def integers(
        self,
        low: int,
        high: int,
        shape: int | tuple[int, ...],
        *,
        dtype: DTypeLike = None,
        device: DeviceLike = None,
    ) -> NDArray:
        """Return integers (int64 by default) from low to before high, all as likely."""
        wanted = INT64 if dtype is None else dtype
        limits = iinfo(wanted)
        if not limits.min <= low < high <= limits.max + 1:
            raise ValueError(
                f"integers: argument 'high' must be above low and both fit {limits.dtype}, got low="
                f"{low}, high={high}"
            )
        return self._draw("integers", shape, wanted, device, low, high)

    def permutation(self, x: int | NDArray, *, device: DeviceLike = None) -> NDArray:
        """Return the numbers before an integer, or the rows of an array, in another order."""
        count = array_of("permutation", "x", x).shape[0] if isinstance(x, NDArray) else x
        own = x.device if isinstance(x, NDArray) else device
        order = _core.array_argsort(
            self._draw("integers", count, INT64, own, -(2**63), 2**63 - 1), 0, False, True
        )
        return _core.array_take(x, order, 0) if isinstance(x, NDArray) else order
