# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_gated against exact arithmetic."""

from __future__ import annotations

import functools

from membound import _check_norm_forward as forward

OP = forward.Op("rms_norm_gated", gated=True)
FORMS, cases, run = OP.forms, OP.cases, functools.partial(forward.run, op=OP)
