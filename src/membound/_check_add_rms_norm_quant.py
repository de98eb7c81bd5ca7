# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_rms_norm_quant against its definition."""

from __future__ import annotations

import functools

from membound import _check_norm_quant as quant

OP = quant.Op("add_rms_norm_quant", "add_rms_norm", added=True)
FORMS, cases, run = quant.FORMS, OP.cases, functools.partial(quant.run, op=OP)
