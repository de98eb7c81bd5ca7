#!/usr/bin/env bash
# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
#
# test_on_gpu.sh DIST [STAGE ...]: the wheel of this interpreter in DIST, in a new environment, through
# the stages of tests/gpu/verify.sh.
set -euo pipefail
dist=$1
shift
python3 -m venv env
env/bin/python -m pip install --quiet --upgrade pip
env/bin/python -m pip install --quiet --group test
MEMBOUND_WHEEL=$(env/bin/python .github/scripts/fitting_wheel.py "$dist")
export MEMBOUND_WHEEL
echo "testing $MEMBOUND_WHEEL"
tests/gpu/verify.sh "$@"
