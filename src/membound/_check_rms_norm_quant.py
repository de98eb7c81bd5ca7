# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_quant against its definition."""

from __future__ import annotations

import functools

from membound import _check_norm_quant as quant

OP = quant.Op("rms_norm_quant", "rms_norm")
FORMS, cases, run = quant.FORMS, OP.cases, functools.partial(quant.run, op=OP)
