# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The seed of a session, which its header prints."""

import os
import random

SEED = int(os.environ.get("MEMBOUND_TEST_SEED", random.SystemRandom().randrange(2**32)))
os.environ["MEMBOUND_TEST_SEED"] = str(SEED)  # pytest-xdist's processes take it from here
