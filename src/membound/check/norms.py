# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The norms and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound.check import cases
from membound.check.cases import Case
from membound.oracle import Expected, np, statistics_dtype
from membound.oracle import norms as oracle

# "fused": the alias that overwrites both inputs.
FORMS = ("returned", "out", "in place")
WITH_ALIAS = (*FORMS, "fused")
BACKWARD_FORMS = (
    "returned", "given", "over dy", "over x", "accumulated", "dx alone", "dweight alone",
)  # fmt: skip
WITH_DZ, WITH_DBIAS = (*BACKWARD_FORMS, "dz alone"), (*BACKWARD_FORMS, "dbias alone")
# The gradients that a form computes; any other form computes all.
ALONE = {f"{name} alone": name for name in ("dx", "dz", "dweight", "dbias")}
_WRITING = ("given", "over dy", "over x", "accumulated")


@dataclass(frozen=True)
class Norm:
    """One of the forward ops."""

    name: str
    centred: bool = False
    added: bool = False
    gated: bool = False
    forms: tuple[str, ...] = FORMS

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        forms = cases.available_forms(framework, self.forms)
        forms = forms[:3] if framework.call_options else forms  # the alias takes no device
        if self.gated:
            return cases.both_orders(cases.all_cases(framework, dtype, thorough, forms))
        if not self.centred:
            return cases.all_cases(framework, dtype, thorough, forms)
        special = (*cases.SPECIAL, "far mean")
        return cases.all_cases(framework, dtype, thorough, forms, cases.BIASES, special)

    def options(self, case: Case) -> dict[str, Any]:
        """The numbers of a call, which the op and its formula take."""
        options: dict[str, Any] = {"weight_offset": case.weight_offset}
        if not self.centred:
            options["rounding"] = case.rounding
        if self.gated:
            options["norm_before_gate"] = case.norm_before_gate
        return options

    def run(self, case: Case, framework: Framework) -> tuple[float, float]:
        """Run one case; return the worst error in ulps, and the limit."""
        values = [cases.draw(case)]
        values += [cases.draw_residual(case)] * self.added + [_normal(case, "z")] * self.gated
        weight, bias = cases.draw_weight(case), cases.draw_bias(case)
        parameters = [weight, bias] if self.centred else [weight]
        formula = getattr(oracle, self.name)
        options = {"eps": case.eps, **self.options(case)}
        right = formula(*values, *parameters, case.dtype, **options)
        right, total = right if self.added else (right, None)

        inputs = [cases.to_array(case, framework, one) for one in values]
        arrays = [cases.plain(framework, weight, cases.weight_dtype(case))]
        if self.centred:
            arrays.append(cases.plain(framework, bias, case.bias))
        y, *more = self._call(case, framework, inputs, arrays, options)
        if total is not None and not np.array_equal(cases.held(framework, more.pop(0)), total):
            return math.inf, 0.0
        statistics = (right.mean, right.rstd)[-len(more) :] if more else ()
        pairs = [(y, right.out), *zip(more, statistics, strict=True)]
        return cases.compare(framework, case.dtype, pairs)

    def _call(
        self,
        case: Case,
        framework: Framework,
        inputs: list[Any],
        parameters: list[Any],
        options: dict[str, Any],
    ) -> Sequence[Any]:
        """All results; the statistics last, in the form "returned"."""
        form = case.form
        if form == "fused" and case.rounding == "once":
            alias = membound.fused_add_rms_norm
            if case.weight_offset:
                alias = membound.gemma_fused_add_rms_norm
            alias(*inputs, *parameters, case.eps)
            return inputs
        options = {**options, **framework.call_options}
        names = ("out", "residual_out") if self.added else ("out",)
        if form == "out":
            options |= {name: cases.to_array(case, framework) for name in names}
        elif form != "returned":  # in place; also a fused call with a rounding that the alias lacks
            options |= dict(zip(names, inputs, strict=False))
        else:
            options["return_stats" if self.centred else "return_rstd"] = True
        if case.by_head:
            options["normalized_shape"] = case.cols
        found = getattr(membound, self.name)(*inputs, *parameters, **options)
        return found if isinstance(found, tuple) else (found,)


def _normal(case: Case, name: str) -> np.ndarray:
    return cases.draw(case, name, "normal")


@dataclass(frozen=True)
class NormBackward(Norm):
    """One of the backward ops."""

    forms: tuple[str, ...] = BACKWARD_FORMS

    @property
    def gradients(self) -> tuple[str, ...]:
        if self.gated:
            return ("dx", "dz", "dweight")
        return ("dx", "dweight", "dbias") if self.centred else ("dx", "dweight")

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        if framework.call_options:  # backward ops do not copy NumPy arrays to a GPU
            return
        given = [form for form in self.forms if framework.takes_out or form not in _WRITING]
        if self.centred:
            # Differences of the largest values from their mean overflow.
            special = [name for name in (*cases.SPECIAL, "far mean") if name != "largest"]
            nothing = ("rounding", ("once",))
            yield from cases.all_cases(framework, dtype, thorough, given, nothing, special)
        elif self.gated:
            yield from cases.both_orders(cases.all_cases(framework, dtype, thorough, given))
        else:
            yield from cases.all_cases(framework, dtype, thorough, given)
        # Enough rows for several partial sums, threads and blocks.
        for rows, cols in ((300, 64), (1031, 7)):
            yield Case(dtype, rows, cols, form=given[0])

    def run(self, case: Case, framework: Framework) -> tuple[float, float]:
        """Run one case; return the worst error in ulps, and the limit."""
        values = {"dy": _normal(case, "dy")}
        values |= {"dresidual_out": _normal(case, "dresidual_out")} if self.added else {}
        values |= {"x": cases.draw(case)} | ({"z": _normal(case, "z")} if self.gated else {})
        weight = cases.draw_weight(case)
        statistics = self._statistics(case, values)
        wanted = self._expected(case, values, weight, statistics)
        kind, form = statistics_dtype(case.dtype), case.form
        alone = ALONE.get(form)
        wanted = {name: one for name, one in wanted.items() if alone in (None, name)}
        sums = [name for name in ("dweight", "dbias") if name in wanted]
        given = {}
        for name in sums:
            wanted[name].dtype = cases.weight_dtype(case)
            if form in ("given", "accumulated"):
                given[name] = 1.0 + np.arange(wanted[name].values.size) % 7
                given[name] = given[name].reshape(wanted[name].values.shape)
                wanted[name].dtype = kind
            if form == "accumulated":
                wanted[name].add(given[name])
        got, again = (
            self._call_backward(case, framework, values, weight, statistics, given)
            for _ in range(2)
        )
        for name in self.gradients:
            if (got[name] is None) == (name in wanted):
                raise AssertionError(f"{name} is there but not wanted, or missing")
        pairs = [(got[name], right) for name, right in wanted.items()]
        error, limit = cases.compare(framework, case.dtype, pairs)
        if any(framework.values(got[name]) != framework.values(again[name]) for name in sums):
            error = math.inf  # a second run gave other bits
        return error, limit

    def _statistics(self, case: Case, values: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """(mean of a centred norm, rstd) as the forward returns them."""
        rows, nothing, options = [values["x"]], [None], {"eps": case.eps}
        if self.gated:
            rows, options["norm_before_gate"] = [*rows, values["z"]], case.norm_before_gate
        name = "layer_norm" if self.centred else "rms_norm_gated" if self.gated else "rms_norm"
        nothing *= 1 + self.centred
        found = getattr(oracle, name)(*rows, *nothing, case.dtype, **options)
        return oracle.statistics(found)[not self.centred :]

    def _expected(
        self, case: Case, values: dict[str, np.ndarray], weight: Any, statistics: Sequence[Any]
    ) -> dict[str, Expected]:
        options = self.options(case)
        if self.added:
            options["dresidual_out"] = values["dresidual_out"]
        rows = [values[name] for name in ("dy", "x", "z") if name in values]
        formula = getattr(oracle, self.name.removeprefix("add_"))
        found = formula(*rows, weight, *statistics, case.dtype, **options)
        found = zip(self.gradients, found, strict=True)
        return {name: one for name, one in found if one is not None}

    def _call_backward(
        self,
        case: Case,
        framework: Framework,
        values: dict[str, np.ndarray],
        weight: Any,
        statistics: Sequence[np.ndarray],
        given: dict[str, np.ndarray],
    ) -> dict[str, Any]:
        """Call the op on fresh arrays; return the gradients by name."""
        kind, form = statistics_dtype(case.dtype), case.form
        arrays = {name: cases.to_array(case, framework, one) for name, one in values.items()}
        options = self.options(case)
        if form in ALONE:
            options |= {f"need_{name}": name == ALONE[form] for name in self.gradients}
        if form.startswith("over "):
            options["dx"] = arrays[form.removeprefix("over ")]
        elif form == "given":
            of_rows = ("dx", "dz") if self.gated else ("dx",)
            options |= {name: cases.to_array(case, framework) for name in of_rows}
        options |= {name: cases.plain(framework, one, kind) for name, one in given.items()}
        if framework.takes_out:
            options["accumulate"] = form == "accumulated" and bool(given)
        if case.by_head:
            options["normalized_shape"] = case.cols
        parameters = [cases.plain(framework, weight, cases.weight_dtype(case))]
        parameters += [cases.plain(framework, one, kind) for one in statistics]
        found = getattr(membound, self.name)(*arrays.values(), *parameters, **options)
        return dict(zip(self.gradients, found, strict=True))
