# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound.check import cases
from membound.check.softmax import widths
from membound.oracle import Expected, np, round_to, statistics_dtype
from membound.oracle import softmax as oracle

OPTIONS: dict[str, dict[str, float]] = {
    "plain": {},
    "label smoothing": {"label_smoothing": 0.1},
    "z loss": {"z_loss": 0.01},
    "soft cap": {"softcap": 3.0},
    "all": {"label_smoothing": 0.2, "z_loss": 0.001, "softcap": 4.0},
}
ROWS, IGNORED, OUTSIDE = 5, 1, 3  # the rows without a loss
DLOSS = (0.75, 2.0, -0.5, 1.0, 1.25)  # exact in every dtype


@dataclass(frozen=True)
class Case:
    dtype: str
    cols: int
    kind: str
    transposed: bool
    form: str

    def __str__(self) -> str:
        layout = " transposed" if self.transposed else ""
        return f"{ROWS} x {self.cols} {self.dtype}{layout}, {self.kind}, {self.form}"


def axes(framework: Framework, thorough: bool) -> Sequence[Sequence[Any]]:
    forms = ("out", "in place") if framework.takes_out else ("returned",)
    return widths(thorough), tuple(OPTIONS), cases.transposed_or_not(framework), forms


def backward_axes(framework: Framework, thorough: bool) -> Sequence[Sequence[Any]]:
    forms = cases.available_forms(framework, ("returned", "out", "in place"))
    return widths(thorough), tuple(OPTIONS), cases.transposed_or_not(framework), forms


@dataclass
class Given:
    """The arrays that a case passes to the op, and the results."""

    logits: Any
    labels: Any
    loss: Expected
    lse: np.ndarray  # in two parts: the largest logit, and the excess over it
    gradient: Expected

    @classmethod
    def of(cls, case: Case, framework: Framework) -> Given:
        rng, shape = cases.generator(case), (ROWS, case.cols)
        logits = round_to(2.0 * rng.standard_normal(shape), case.dtype)
        labels = rng.integers(0, case.cols, ROWS)
        labels[IGNORED], labels[OUTSIDE] = -100, case.cols
        options = OPTIONS[case.kind]
        loss, lse, gradient = oracle.cross_entropy(logits, labels, case.dtype, DLOSS, **options)
        cap = options.get("softcap")
        top = (logits if cap is None else cap * np.tanh(logits / cap)).max(-1)
        top = round_to(top, loss.dtype)
        array = cases.matrix(framework, logits, case.dtype, case.transposed)
        parts = np.stack([top, lse.values - top], -1).astype(np.float64)  # torch takes none wider
        return cls(array, cases.plain(framework, labels, "int64"), loss, parts, gradient)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for sums and exponentials, and the limit."""
    given, kind = Given.of(case, framework), statistics_dtype(case.dtype)
    options: dict[str, Any] = dict(OPTIONS[case.kind])
    gradients = []
    if case.form != "returned":
        options["out"] = cases.plain(framework, np.zeros(ROWS), kind)
        options |= cases.target(case, framework, "dlogits", given.logits)
        options["dloss"] = cases.plain(framework, DLOSS, kind)
        gradients = [(options["dlogits"], given.gradient)]
    loss = membound.cross_entropy(given.logits, given.labels, **options)
    pairs = [(loss, given.loss), *gradients]
    return cases.compare(framework, case.dtype, pairs)


def run_backward(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for exponentials, and the limit."""
    given, kind = Given.of(case, framework), statistics_dtype(case.dtype)
    options: dict[str, Any] = dict(OPTIONS[case.kind])
    lse, dloss = (cases.plain(framework, one, kind) for one in (given.lse, DLOSS))
    options |= cases.target(case, framework, "dlogits", given.logits)
    found = membound.cross_entropy_backward(dloss, given.logits, given.labels, lse, **options)
    return cases.compare(framework, case.dtype, [(found, given.gradient)])
