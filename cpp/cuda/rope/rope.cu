// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/rope/rope_kernels.cuh"
#include "cuda/rope/rope_layout.cuh"
#include "ops/rope.hpp"

namespace membound::cuda {

namespace {

// True if units are two vectors of kElements throughout a head, and every head is aligned to one.
template <class T, int kElements>
bool is_aligned_to(const RopeProblem& p) {
  constexpr std::int64_t kUnit = 2 * kElements;
  constexpr std::int64_t kWidest = std::int64_t{1} << 30;
  if (p.rotary_dim % kUnit != 0 || p.rotary_offset % kUnit != 0 || p.head_dim % kUnit != 0 ||
      p.head_dim > kWidest) {
    return false;
  }
  for (int i = 0; i < p.count; ++i) {
    const RopeHeads& array = p.arrays[i];
    if (!in_vectors<T, kElements>(p, array.x, array.x_strides, array.heads) ||
        !in_vectors<T, kElements>(p, array.out, array.out_strides, array.heads)) {
      return false;
    }
  }
  return true;
}

// The part of a head that does not rotate is copied unless every array is in place.
bool copies_rest(const RopeProblem& p) {
  bool copies = false;
  for (int i = 0; i < p.count; ++i) copies = copies || p.arrays[i].out != p.arrays[i].x;
  return copies && p.rotary_dim < p.head_dim;
}

// Elements of the widest vectors of 16, 8 and 4 bytes that fit, or 1.
template <class T, int kElements = kPack<T>>
int vector_elements(const RopeProblem& p) {
  if constexpr (kElements == 1) {
    return 1;
  } else {
    return is_aligned_to<T, kElements>(p) ? kElements : vector_elements<T, kElements / 2>(p);
  }
}

template <class T, int kElements = kPack<T> / 2>
void launch_narrow_vectors(const RopeParams& p, int elements, const LaunchShape& shape,
                           StreamView stream, int device) {
  if constexpr (kElements > 1) {
    if (elements < kElements) {
      return launch_narrow_vectors<T, kElements / 2>(p, elements, shape, stream, device);
    }
  }
  launch<rope_narrow_vectors_kernel<T, kElements>>(shape, stream, device, p);
}

}  // namespace

void rope(const RopeProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "rope", [&]<class T>() {
    const int elements = vector_elements<T>(problem);
    const bool vectors = elements == kPack<T>;
    RopeParams p{};
    p.rope = problem;
    p.rotary_units = problem.rotary_dim / 2 / elements;
    const std::int64_t rest = problem.head_dim - problem.rotary_dim;
    p.units = p.rotary_units;
    if (copies_rest(problem)) p.units += elements > 1 ? rest / (2 * elements) : rest;
    const int shared =
        vectors ? tuning::rope_heads_of_vectors(problem.cos.data == nullptr)
                : tuning::rope_heads_of_narrow_vectors(elements * static_cast<int>(sizeof(T)));
    const tuning::RopeConfig config =
        tuning::rope_config(problem.tokens(), problem.arrays[0].heads,
                            problem.count == 2 ? problem.arrays[1].heads : 0, p.units, shared);
    set_rows(p, config);
    p.table_in_vectors = vectors ? table_in_vectors<T>(problem) : has_common_table<T>(problem);
    const LaunchShape shape{.blocks = config.blocks,
                            .threads = config.threads(),
                            .overlap_launch = config.overlap_launch};
    const int device = current_device();
    if (!vectors) return launch_narrow_vectors<T>(p, elements, shape, stream, device);
    if (computes_rotations(problem) && !problem.has_column_each()) {
      launch<rope_vectors_kernel<T, RotationSource::kFrequencies>>(shape, stream, device, p);
    } else if (!p.table_in_vectors || problem.has_column_each()) {
      launch<rope_vectors_kernel<T, RotationSource::kAnywhere>>(shape, stream, device, p);
    } else if (problem.interleaved) {
      launch<rope_vectors_kernel<T, RotationSource::kInterleavedTable>>(shape, stream, device, p);
    } else {
      launch<rope_vectors_kernel<T, RotationSource::kSplitTable>>(shape, stream, device, p);
    }
  });
}

}  // namespace membound::cuda
