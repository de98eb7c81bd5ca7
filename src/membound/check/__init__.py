# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m membound check`: compares every op, device and framework here with exact results."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import membound
from membound import _frameworks
from membound._frameworks import DTYPES, Framework
from membound._table import render
from membound.check import (
    activations,
    cross_entropy,
    elementwise,
    embedding,
    norms,
    qk_norm_rope,
    quantised_norms,
    rope,
    softmax,
)
from membound.check.activations import Activation
from membound.check.cases import Product
from membound.check.norms import Norm, NormBackward
from membound.check.quantised_norms import QuantisedNorm

# An op has cases(framework, dtype, thorough), and run(case, framework), which returns the worst
# error in ulps and the allowed one.
_OPS = (
    Norm("rms_norm"),
    Norm("add_rms_norm", added=True, forms=norms.WITH_ALIAS),
    NormBackward("rms_norm_backward"),
    NormBackward("add_rms_norm_backward", added=True),
    Norm("layer_norm", centred=True),
    Norm("add_layer_norm", centred=True, added=True),
    NormBackward("layer_norm_backward", centred=True, forms=norms.WITH_DBIAS),
    NormBackward("add_layer_norm_backward", centred=True, added=True, forms=norms.WITH_DBIAS),
    Norm("rms_norm_gated", gated=True),
    NormBackward("rms_norm_gated_backward", gated=True, forms=norms.WITH_DZ),
    QuantisedNorm("rms_norm_quant"),
    QuantisedNorm("add_rms_norm_quant", added=True),
    Activation("gated_activation", activations.run),
    Activation("gated_activation_backward", activations.run_backward),
    Activation("gated_activation_quant", activations.run_quantised, quantised_norms.FORMS),
    Product("rope", rope.run, rope.Case, rope.axes, step=23),
    Product("rope_backward", rope.run_backward, rope.BackwardCase, rope.backward_axes),
    Product("qk_norm_rope", qk_norm_rope.run, qk_norm_rope.Case, qk_norm_rope.axes, step=7),
    Product(
        "qk_norm_rope_backward",
        qk_norm_rope.run_backward,
        qk_norm_rope.Case,
        qk_norm_rope.backward_axes,
        step=7,
    ),
    Product("embedding", embedding.run, embedding.Case, embedding.axes, step=3),
    Product(
        "embedding_backward",
        embedding.run_backward,
        embedding.BackwardCase,
        embedding.backward_axes,
        step=11,
    ),
    Product("cross_entropy", cross_entropy.run, cross_entropy.Case, cross_entropy.axes, step=3),
    Product(
        "cross_entropy_backward",
        cross_entropy.run_backward,
        cross_entropy.Case,
        cross_entropy.backward_axes,
        step=3,
    ),
    Product("softmax", softmax.run, softmax.Case, softmax.axes, step=4),
    Product(
        "softmax_backward",
        softmax.run_backward,
        softmax.BackwardCase,
        softmax.backward_axes,
        step=2,
    ),
    *elementwise.ROWS_OF_TABLE,
)
OPS = {op.name: op for op in _OPS}

ALL_RIGHT, WRONG, NOTHING_TESTED = 0, 1, 2


@dataclass
class Line:
    """One line of the table."""

    op: str
    framework: str
    device: str
    dtype: str
    cases: int = 0
    worst: float = 0.0
    allowed: float = 0.0
    failures: list[str] = field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        verdict = f"WRONG in {len(self.failures)}" if self.failures else "ok"
        worst = f"{self.worst:.4g}" if self.cases else "-"
        return (
            self.op,
            self.framework,
            self.device,
            self.dtype,
            str(self.cases),
            worst,
            f"{self.allowed:g}",
            verdict,
        )


HEADER = ("op", "framework", "device", "dtype", "cases", "worst ulp", "allowed", "result")


def check_one(op: str, framework: Framework, dtype: str, thorough: bool) -> Line:
    line = Line(op, framework.name, framework.device, dtype)
    for case in OPS[op].cases(framework, dtype, thorough):
        line.cases += 1
        try:
            worst, line.allowed = OPS[op].run(case, framework)
        except Exception as error:  # noqa: BLE001 - whatever an op throws here is a failure of the check
            line.failures.append(f"{case}: {type(error).__name__}: {error}")
            continue
        line.worst = max(line.worst, worst)
        if not worst <= line.allowed:
            line.failures.append(f"{case}: off by {worst:.4g} ulp, allowed {line.allowed:g}")
    return line


def run(
    ops: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    device: str = "",
    thorough: bool = False,
    verbose: bool = False,
) -> int:
    """Print the table and return the exit code; empty arguments select everything available."""
    started = time.perf_counter()
    gpus = membound.cuda_status().device_count
    names = [name for name in _frameworks.NAMES if not frameworks or name in frameworks]
    found, missing = _frameworks.available(gpus, names)
    if frameworks and "memoryview" not in frameworks:
        found = [one for one in found if one.name != "memoryview"]
    if device:
        found = [one for one in found if one.device.startswith(device)]
    lines = []
    for op in ops or OPS:
        for framework in found:
            for dtype in DTYPES:
                if dtype in framework.dtypes:
                    if sys.stderr.isatty():
                        print(f"\r{op} {framework.name} {dtype:<10}", end="\r", file=sys.stderr)
                    lines.append(check_one(op, framework, dtype, thorough))
    print(render(HEADER, [line.cells() for line in lines if line.cases]))
    for name, reason in missing.items():
        print(f"not checked: {name} ({reason})")
    if gpus == 0:
        print(f"not checked: any GPU ({membound.cuda_status().message})")
    return _verdict(lines, verbose, time.perf_counter() - started)


def _verdict(lines: list[Line], verbose: bool, seconds: float) -> int:
    failures = [failure for line in lines for failure in line.failures]
    for failure in failures if verbose else failures[:10]:
        print(f"WRONG {failure}")
    if len(failures) > 10 and not verbose:
        print(f"... and {len(failures) - 10} more; --verbose lists them")
    count = sum(line.cases for line in lines)
    if not count:
        print("nothing was checked: no framework and device match")
        return NOTHING_TESTED
    if failures:
        print(f"{len(failures)} of {count} cases are WRONG ({seconds:.1f} s)")
        return WRONG
    print(f"all {count} cases are right ({seconds:.1f} s)")
    return ALL_RIGHT
