# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""layer_norm_backward against exact arithmetic."""

from __future__ import annotations

import functools

from membound import _check_norm_backward as backward

OP = backward.Op("layer_norm_backward", centred=True)
FORMS, cases, run = OP.forms, OP.cases, functools.partial(backward.run, op=OP)
