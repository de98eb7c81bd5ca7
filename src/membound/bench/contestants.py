# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` times: each op on rotating sets of buffers, against a copy and other frameworks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from membound._frameworks import Framework

EPS = 1e-6
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
STEP = 7919  # stride between the indices of consecutive rows; a prime scatters them

Call = Callable[[], Any]
Contestants = dict[str, list[Call]]


@dataclass(frozen=True)
class Op:
    """The matrices that an op reads and writes, and the calls that are timed.

    The functions take a set of arrays: the matrices by name, weight, bias and eps; prepare adds
    more to it.
    """

    name: str
    read: Sequence[str]
    written: Sequence[str]
    ours: Callable[[Any], Call]  # of a set of arrays
    torch_call: Callable[[Any, Any], Call | None]  # of torch and a set of arrays
    # The results by NumPy's or JAX's functions: of the module, a set of arrays, and the dtype for
    # sums.
    formula: Callable[[Any, Any, Any], Any] | None = None
    prepare: Callable[[Any], None] | None = None
    quantised: bool = False  # it writes one more matrix, in int8
    sequences: bool = False  # rows are the tokens of one sequence

    def bytes_moved(self, rows: int, cols: int, dtype: str) -> int:
        """Bytes moved if every matrix is read or written once."""
        row = (len(self.read) + len(self.written)) * ITEM_BYTES[dtype] + self.quantised
        return row * rows * cols

    def copied_elements(self, rows: int, cols: int, dtype: str) -> int:
        """How many elements a copy reads, and writes, if it moves the same number of bytes."""
        return -(-self.bytes_moved(rows, cols, dtype) // (2 * ITEM_BYTES[dtype]))

    def sets_of_arrays(
        self, draw: Callable[[], Any], empty: Callable[[], Any], sets: int, **shared: Any
    ) -> list[SimpleNamespace]:
        found = []
        for _ in range(sets):
            a = SimpleNamespace(**shared, eps=EPS)
            for name in self.read:
                setattr(a, name, draw())
            for name in self.written:
                setattr(a, name, empty())
            if self.prepare is not None:
                self.prepare(a)
            found.append(a)
        return found


def arrays(a: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(a, name) for name in names}


def scattered(x: Any, below: int, module: Any = None) -> Any:
    """One index for each row of x; module: x's, where its type does not tell."""
    module = module or importlib.import_module(type(x).__module__.split(".")[0])
    options = {"device": x.device} if module.__name__ == "torch" else {}
    return module.arange(x.shape[0], **options) * (STEP if below % STEP else 1) % below


def on_torch(
    op: Op, torch: Any, device: str, rows: int, cols: int, dtype: str, sets: int
) -> Contestants:
    kind = getattr(torch, dtype)
    empty = partial(torch.empty, device=device, dtype=kind)
    weight, bias = (torch.ones(cols, device=device, dtype=kind) for _ in range(2))
    every = op.sets_of_arrays(
        lambda: torch.randn(rows, cols, device=device).to(kind),
        lambda: empty(rows, cols),
        sets,
        weight=weight,
        bias=bias,
    )
    count = op.copied_elements(rows, cols, dtype)
    copies = [(empty(count).zero_(), empty(count)) for _ in range(sets)]
    contestants = {
        "membound": [op.ours(a) for a in every],
        "copy": [partial(into.copy_, source) for source, into in copies],
    }
    theirs = [op.torch_call(torch, a) for a in every]
    if None not in theirs:
        contestants["torch"] = theirs
    return contestants


def on_numpy_like(
    op: Op, np: Any, one: Framework, rows: int, cols: int, dtype: str, sets: int
) -> Contestants:
    """NumPy and CuPy contestants: both have copyto, and neither has norms of its own."""
    random = np.random.default_rng(0).standard_normal
    weight, bias = (one.array([1.0] * cols, (cols,), dtype) for _ in range(2))
    every = op.sets_of_arrays(
        lambda: random((rows, cols), dtype=np.float32).astype(weight.dtype),
        lambda: np.empty((rows, cols), weight.dtype),
        sets,
        weight=weight,
        bias=bias,
    )
    count = op.copied_elements(rows, cols, dtype)
    copies = [(np.zeros(count, weight.dtype), np.empty(count, weight.dtype)) for _ in range(sets)]
    contestants = {
        "membound": [op.ours(a) for a in every],
        "copy": [partial(np.copyto, into, source) for source, into in copies],
    }
    if one.name == "numpy":
        wide = np.float64 if dtype == "float64" else np.float32
        contestants["numpy"] = [partial(op.formula, np, a, wide) for a in every]
    return contestants


def on_jax(
    op: Op, jax: Any, device: Any, rows: int, cols: int, dtype: str, sets: int
) -> Contestants:
    """Times only the formula under jit; ours is measured on the arrays of the other framework."""
    jnp = jax.numpy
    names = (*op.read, "weight", "bias", "mean", "rstd")
    wide = jnp.float64 if dtype == "float64" else jnp.float32

    @jax.jit
    def formula(*values: Any) -> Any:
        a = SimpleNamespace(eps=EPS, **dict(zip(names, values, strict=True)))
        return op.formula(jnp, a, wide)

    with jax.default_device(device):
        weight, rstd = jnp.ones(cols, dtype), jnp.ones(rows, wide)
        rest = (weight, weight, rstd, rstd)
        every = [
            (*(jnp.full((rows, cols), 1.0 + at, dtype) for _ in op.read), *rest)
            for at in range(sets)
        ]
    return {"jax": [lambda a=a: jax.block_until_ready(formula(*a)) for a in every]}
