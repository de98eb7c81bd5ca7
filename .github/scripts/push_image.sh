#!/usr/bin/env bash
# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
#
# push_image.sh REGISTRY/OWNER/NAME: build the image of the wheels in dist/, which runs `membound
# check`; push it where PUSH is true. Environment: TAG, PUSH, REGISTRY, REGISTRY_USER, REGISTRY_PASSWORD.
set -euo pipefail
image=${1,,}:${TAG#v} # a registry takes no capitals
docker build --pull --tag "$image" .
docker run --rm "$image" info
if [[ ${PUSH:-false} != true ]]; then
  echo "would push $image to ${REGISTRY:-its registry}"
  exit
fi
docker login "$REGISTRY" --username "$REGISTRY_USER" --password-stdin <<<"$REGISTRY_PASSWORD"
docker push "$image"
