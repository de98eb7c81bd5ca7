# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m membound check`: compares every op, device and framework here with exact results."""

from __future__ import annotations

import itertools
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import membound
from membound import _frameworks
from membound._frameworks import DTYPES, Framework
from membound._progress import Progress
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
from membound.check.report import Line, print_report

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

ALL_RIGHT, WRONG, NOTHING_TESTED, INTERRUPTED = 0, 1, 2, 130
ONLY_MEMORYVIEWS = (
    "only memoryviews were tested, and the reference was membound.ndarray in float64: "
    "pip install 'membound[numpy]' tests more, against NumPy; so do [torch], [jax] and CuPy"
)
QUICK_SECONDS = 20.0

Work = list[tuple[Line, Framework, list[Any]]]


def check_case(line: Line, case: Any, framework: Framework) -> None:
    """Run one case and note on the line how far off it is."""
    failure = ""
    try:
        worst, line.allowed = OPS[line.op].run(case, framework)
        line.worst = max(line.worst, worst)
        if not worst <= line.allowed:
            failure = f"off by {worst:.4g} ulp, allowed {line.allowed:g}"
    except Exception as error:  # noqa: BLE001 - whatever an op throws here is a failure of the check
        failure = f"{type(error).__name__}: {error}"
    line.cases += 1
    line.failures += [f"{case}: {failure}"] if failure else []


def in_order(work: Work) -> Iterator[tuple[Line, Framework, Any]]:
    """One line of the table after the other."""
    for line, framework, cases in work:
        for case in cases:
            yield line, framework, case


def spread(work: Work) -> Iterator[tuple[Line, Framework, Any]]:
    """A case of every op, then one of each again, of another framework and dtype."""
    source = random.Random(0)
    by_op: dict[str, list[list[tuple[Line, Framework, Any]]]] = {}
    for line, framework, cases in work:
        mixed = [(line, framework, case) for case in source.sample(cases, len(cases))]
        by_op.setdefault(line.op, []).append(mixed)
    for lines in by_op.values():
        source.shuffle(lines)
    turns = [itertools.chain(*itertools.zip_longest(*lines)) for lines in by_op.values()]
    for round_of_ops in itertools.zip_longest(*turns):
        yield from (one for one in round_of_ops if one is not None)


def run(
    ops: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    device: str = "",
    thorough: bool = False,
    verbose: bool = False,
    quick: bool = False,
) -> int:
    """Print the table and return the exit code; empty arguments select everything available."""
    gpus = membound.cuda_status().device_count
    names = [name for name in _frameworks.NAMES if not frameworks or name in frameworks]
    found, missing = _frameworks.available(gpus, names)
    if frameworks and "memoryview" not in frameworks:
        found = [one for one in found if one.name != "memoryview"]
    if device:
        found = [one for one in found if one.device.startswith(device)]
    if gpus == 0:
        missing["any GPU"] = membound.cuda_status().message
    work = [
        (Line(op, framework.name, framework.device, dtype), framework, cases)
        for op in ops or OPS
        for framework in found
        for dtype in DTYPES
        if dtype in framework.dtypes
        if (cases := list(OPS[op].cases(framework, dtype, thorough)))
    ]
    started = time.perf_counter()
    total = sum(len(cases) for _, _, cases in work)
    progress = Progress(total, sys.stderr, QUICK_SECONDS if quick else math.inf)
    interrupted = False
    try:
        for line, framework, case in spread(work) if quick else in_order(work):
            if quick and time.perf_counter() - started > QUICK_SECONDS:
                break
            progress.step(f"{line.op} {line.framework} {line.dtype}")
            check_case(line, case, framework)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted", file=sys.stderr)
    progress.close()
    lines = [line for line, _, _ in work]
    print_report(lines, missing, total, time.perf_counter() - started, verbose)
    if interrupted:
        return INTERRUPTED
    if not any(line.cases for line in lines):
        return NOTHING_TESTED
    without_numpy = _frameworks.installed_version("numpy") is None
    if without_numpy and all(one.name == "memoryview" for one in found):
        print(ONLY_MEMORYVIEWS)
    return WRONG if any(line.failures for line in lines) else ALL_RIGHT
