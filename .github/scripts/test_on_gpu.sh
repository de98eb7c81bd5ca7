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
# pip knows which of the wheels is for this interpreter.
chosen=$(env/bin/python -m pip install --dry-run --quiet --no-index --no-deps --ignore-installed \
  --pre --find-links "$dist" --report - membound |
  env/bin/python -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["download_info"]["url"])')
export MEMBOUND_WHEEL=${chosen#file://}
echo "testing $MEMBOUND_WHEEL"
tests/gpu/verify.sh "$@"
