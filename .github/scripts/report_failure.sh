#!/usr/bin/env bash
# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
#
# report_failure.sh RUN: one open issue for nightly builds that fail; the next failure is a comment.
set -euo pipefail
title="The nightly build fails"
body="$1 failed on $(date -u +%F)."
number=$(gh issue list --state open --search "in:title \"$title\"" --json number --jq '.[0].number // empty')
if [[ -n $number ]]; then
  gh issue comment "$number" --body "$body"
else
  gh issue create --title "$title" --body "$body"
fi
