# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_rms_norm_backward against exact arithmetic: the plain backward with one more gradient."""

from __future__ import annotations

from membound._check_norm import Case
from membound._check_rms_norm_backward import cases, run_backward
from membound._frameworks import Framework

__all__ = ["cases", "run"]


def run(case: Case, framework: Framework) -> tuple[float, float]:
    return run_backward(case, framework, added=True)
