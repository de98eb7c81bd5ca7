#!/usr/bin/env bash
# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
#
# Everything that only a GPU can show. Needs a GPU and Python with pytest, hypothesis, NumPy and
# ml_dtypes; torch, JAX and CuPy are used when they are there. Nothing is fetched.
#
#   tests/gpu/verify.sh [STAGE ...]         default: all but older and devices, in this order
#
#   install    the wheel in $MEMBOUND_WHEEL, or the source tree when that is empty
#   check      python -m membound info, check, bench
#   tests      the test suite without the large ones
#   large      arrays beyond 2^32 elements (40 GB of GPU memory)
#   older      the test suite with what GPUs of 8.0 and 7.5 run, built for this one (not by default)
#   memcheck racecheck initcheck synccheck    every kernel under compute-sanitizer
#   benchmark  benchmarks/bench_<op>.py $BENCHMARK_OPTIONS for each op
#   devices    the tests that need two GPUs
#
# Environment: PYTHON, MEMBOUND_WHEEL, JOBS (test processes), PYTEST_OPTIONS, DRIVERS (which of
# sanitize_<name>.cpp), CHUNKS (widths for the sanitizers: "0 300" up to 300 chunks of 16 bytes),
# BENCHMARKS (which of bench_<op>.py), BENCHMARK_OPTIONS, REPORTS (folder for the figures),
# MEMBOUND_TEST_SEED.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

python=${PYTHON:-python3}
reports=${REPORTS:-benchmarks/results}
export MEMBOUND_TEST_SEED=${MEMBOUND_TEST_SEED:-$RANDOM} XLA_PYTHON_CLIENT_PREALLOCATE=false
export PYTHONUNBUFFERED=1 PATH=$PATH:/usr/local/cuda/bin

# Without this a machine whose GPU is not seen would skip every test and call it right.
need_gpus() {
  "$python" -c "
import sys, membound
status = membound.cuda_status()
if status.device_count < $1:
    sys.exit(f'needs $1 GPU(s), found {status.device_count}: {status.message}')"
}

stage_install() {
  if [[ -n ${MEMBOUND_WHEEL:-} ]]; then
    "$python" -m pip install -q --no-index --no-deps --force-reinstall "$MEMBOUND_WHEEL"
  else
    MEMBOUND_CUDA=ON "$python" -m pip install -q --no-index --no-build-isolation --no-deps .
  fi
}

stage_check() {
  need_gpus 1 || return
  local folder
  mkdir -p "$reports"
  "$python" -m membound info &&
    "$python" -m membound check --verbose &&
    "$python" -m membound bench --device cuda --json "$reports/bench-cuda.json" &&
    folder=$("$python" -m membound cmake-dir) && echo "CMake package: $folder"
}

run_pytest() {
  local processes=()
  # One process per core would run out of GPU memory: each holds a context per framework.
  "$python" -c 'import xdist' 2>/dev/null && processes=(-n "${JOBS:-6}")
  # shellcheck disable=SC2086 # the options are words on purpose
  "$python" -m pytest -q -p no:cacheprovider -p no:benchmark "${processes[@]}" ${PYTEST_OPTIONS:-} "$@"
}

stage_tests() { need_gpus 1 && run_pytest -m 'not large and not multi_gpu'; }
stage_large() { need_gpus 1 && JOBS=0 run_pytest tests/python/test_large*.py; }
# Source that __CUDA_ARCH__ chooses for them; instructions are this GPU's.
stage_older() {
  local code status=0
  for code in 80 75; do
    MEMBOUND_CUDA=ON "$python" -m pip install -q --no-index --no-build-isolation --no-deps \
      --force-reinstall -Ccmake.define.MEMBOUND_CODE_OF=$code . && stage_tests || status=1
  done
  stage_install
  return $status
}
stage_devices() { need_gpus 2 && JOBS=0 run_pytest -m multi_gpu; }

sanitize() {
  need_gpus 1 || return
  local folder built driver dtype job jobs=() status=0
  # shellcheck disable=SC2206 # the names of the drivers are words on purpose
  local drivers=(${DRIVERS:-rms_norm layer_norm gradients gated quant activation
    gated_activation_quant rope qk_norm_rope embedding embedding_backward softmax cross_entropy
    elementwise})
  folder=$("$python" -m membound cmake-dir) && folder=$(realpath "$folder/../../..") || return
  built=$(mktemp -d)
  for driver in "${drivers[@]}"; do
    "${CXX:-g++}" -std=c++17 -O2 "tests/gpu/sanitize_$driver.cpp" -o "$built/$driver" \
      -I"$folder/include" -L"$folder/lib" -lmembound -Wl,-rpath,"$folder/lib" &
    jobs+=("$!")
  done
  for job in "${jobs[@]}"; do wait "$job" || return; done
  jobs=()
  for driver in "${drivers[@]}"; do
    for dtype in float16 bfloat16 float32 float64; do
      # shellcheck disable=SC2086 # the range of chunks is two words on purpose
      timeout 480 compute-sanitizer --tool "$1" --error-exitcode 99 "${@:2}" "$built/$driver" \
        "$dtype" ${CHUNKS:-} >"$built/$driver.$dtype" 2>&1 &
      jobs+=("$!:$driver.$dtype")
    done
  done
  for job in "${jobs[@]}"; do
    wait "${job%%:*}" || status=1
    echo "-- $1 ${job##*:}" && tail -n 15 "$built/${job##*:}"
  done
  return $status
}

stage_memcheck() { sanitize memcheck --leak-check no; }
# Below 1024 chunks of 16 bytes: from there on rows go over clusters, and racecheck of CUDA 13.0
# does not return from kernels whose blocks wait for bytes that another block sends (st.async on an
# mbarrier).
stage_racecheck() { CHUNKS=${CHUNKS:-"0 1023"} sanitize racecheck --racecheck-report all; }
stage_initcheck() { sanitize initcheck; }
# What it finds by itself of barriers in a block is too few for kernels of float64.
stage_synccheck() { sanitize synccheck --num-cuda-barriers 65536; }

stage_benchmark() {
  local op status=0
  # shellcheck disable=SC2086 # the names of the ops are words on purpose
  for op in ${BENCHMARKS:-rms_norm add_rms_norm rms_norm_backward layer_norm layer_norm_backward
    rms_norm_gated rms_norm_gated_backward rms_norm_quant gated_activation
    gated_activation_backward gated_activation_quant rope qk_norm_rope embedding embedding_backward softmax
    softmax_backward cross_entropy}; do
    # shellcheck disable=SC2086
    "$python" "benchmarks/bench_$op.py" --output "$reports" ${BENCHMARK_OPTIONS:-} || status=1
  done
  return $status
}

stages=("$@")
if [[ $# -eq 0 ]]; then
  stages=(install check tests large memcheck racecheck initcheck synccheck benchmark)
fi
for stage in "${stages[@]}"; do
  if ! declare -F "stage_$stage" >/dev/null; then
    echo "unknown stage '$stage'" >&2
    exit 2
  fi
done

failed=()
for stage in "${stages[@]}"; do
  echo "=== $stage"
  started=$SECONDS
  "stage_$stage" || failed+=("$stage")
  echo "=== $stage: $((SECONDS - started)) s"
done
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
echo "all right: ${stages[*]}"
