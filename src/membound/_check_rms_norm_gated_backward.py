# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_gated_backward against exact arithmetic."""

from __future__ import annotations

import functools

from membound import _check_norm_backward as backward

OP = backward.Op("rms_norm_gated_backward", gated=True)
FORMS, cases, run = OP.forms, OP.cases, functools.partial(backward.run, op=OP)
