# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_layer_norm_backward against exact arithmetic."""

from __future__ import annotations

import functools

from membound import _check_norm_backward as backward

OP = backward.Op("add_layer_norm_backward", centred=True, added=True)
FORMS, cases, run = OP.forms, OP.cases, functools.partial(backward.run, op=OP)
