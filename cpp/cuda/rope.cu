// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch.hpp"
#include "cuda/rope_kernels.cuh"
#include "cuda/rope_layout.cuh"
#include "ops/rope.hpp"

namespace membound::cuda {

namespace {

// Units are two chunks everywhere in a head, and every head starts on one.
template <class T>
bool has_chunks(const RopeProblem& p) {
  constexpr std::int64_t kUnit = 2 * kPack<T>;
  constexpr std::int64_t kWidest = std::int64_t{1} << 30;
  if (p.rotary_dim % kUnit != 0 || p.rotary_offset % kUnit != 0 || p.head_dim % kUnit != 0 ||
      p.head_dim > kWidest) {
    return false;
  }
  for (int i = 0; i < p.count; ++i) {
    const RopeHeads& array = p.arrays[i];
    if (!in_chunks<T>(p, array.x, array.x_strides, array.heads) ||
        !in_chunks<T>(p, array.out, array.out_strides, array.heads)) {
      return false;
    }
  }
  return true;
}

// What does not turn is copied unless every array is in place.
bool copies_rest(const RopeProblem& p) {
  bool copies = false;
  for (int i = 0; i < p.count; ++i) copies = copies || p.arrays[i].out != p.arrays[i].x;
  return copies && p.rotary_dim < p.head_dim;
}

}  // namespace

void rope(const RopeProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "rope", [&]<class T>() {
    const bool chunks = has_chunks<T>(problem);
    RopeParams p{};
    p.rope = problem;
    p.turning_units = problem.rotary_dim / 2 / (chunks ? kPack<T> : 1);
    const std::int64_t rest = problem.head_dim - problem.rotary_dim;
    p.units = p.turning_units;
    if (copies_rest(problem)) p.units += chunks ? rest / (2 * kPack<T>) : rest;
    const bool made = problem.cos == nullptr;
    const tuning::RopeConfig config =
        tuning::rope_config(problem.tokens(), problem.arrays[0].heads,
                            problem.count == 2 ? problem.arrays[1].heads : 0, p.units, made);
    set_rows(p, config);
    p.table_in_chunks = chunks && table_in_chunks<T>(problem);
    const LaunchShape shape{.blocks = config.blocks,
                            .threads = config.threads(),
                            .overlap_launch = config.overlap_launch};
    const int device = current_device();
    if (!chunks) return launch<rope_pairs_kernel<accumulate_t<T>>>(shape, stream, device, p);
    if (makes_turns(problem)) {
      launch<rope_chunks_kernel<T, TurnsFrom::kFrequencies>>(shape, stream, device, p);
    } else if (!p.table_in_chunks) {
      launch<rope_chunks_kernel<T, TurnsFrom::kAnywhere>>(shape, stream, device, p);
    } else if (problem.interleaved) {
      launch<rope_chunks_kernel<T, TurnsFrom::kTableOfNeighbours>>(shape, stream, device, p);
    } else {
      launch<rope_chunks_kernel<T, TurnsFrom::kTableOfHalves>>(shape, stream, device, p);
    }
  });
}

}  // namespace membound::cuda
