# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The back end of ``cpu_numpy()``: its handles have NumPy's view of their memory, ``array``."""

from membound.needle._backend import functions

globals().update(functions("numpy", "cpu"))
