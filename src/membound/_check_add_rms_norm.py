# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_rms_norm and its aliases in place against exact arithmetic."""

from __future__ import annotations

import functools

from membound import _check_norm_forward as forward

OP = forward.Op("add_rms_norm", added=True, forms=forward.WITH_ALIAS)
FORMS, cases, run = OP.forms, OP.cases, functools.partial(forward.run, op=OP)
