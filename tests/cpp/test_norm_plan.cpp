// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "cuda/norm/plan.hpp"
#include "tuning_text.hpp"

using namespace membound::cuda;
using namespace membound::cuda::tuning;

namespace {

constexpr GpuLimits kH100{132, 16, 227 << 10};
constexpr GpuLimits kGpus[] = {kH100, {40, 1, 64 << 10}, {108, 1, 163 << 10}, {170, 8, 99 << 10}};
constexpr std::int64_t kRows[] = {1, 17, 300, 2048, 8192, 50000, 1 << 20};
constexpr std::int64_t kCols[] = {1,    8,    64,   100,  128,  192,   384,   512,    640,
                                  768,  1000, 1024, 1152, 1536, 2304,  3072,  4096,   4097,
                                  5120, 5376, 8192, 8200, 9000, 16384, 32768, 131072, 1 << 20};

NormFacts rms_norm_of(std::int64_t rows, std::int64_t cols, int dtype_size = 2) {
  return contiguous_norm(rows, cols, dtype_size);
}

template <class Body>
void for_each_problem(Body body) {
  for (std::int64_t rows : kRows) {
    for (std::int64_t cols : kCols) {
      for (int size : {2, 4, 8}) {
        for (Access access : {Access::kAligned, Access::kUnaligned, Access::kStrided}) {
          for (int options = 0; options < 64; ++options) {
            NormFacts of = rms_norm_of(rows, cols, size);
            if (access < of.access) continue;
            of.access = access;
            of.fused_input = static_cast<FusedInput>(options % 3);
            of.centred = options & 4;
            of.quantised = options & 8;
            of.common = options & 16;
            if (options & 32) of.heads = rows % 4 == 0 ? 4 : 1;
            const bool gated = of.fused_input == FusedInput::kGate;
            if ((gated && (of.centred || of.quantised)) || (of.centred && of.quantised)) continue;
            for (const GpuLimits& gpu : kGpus) body(of, gpu, norm_plan(of, gpu));
          }
        }
      }
    }
  }
}

// Vectors of a row that the plan's threads hold, or read one after the other.
std::int64_t capacity(const NormPlan& plan) {
  const RmsNormConfig& row = plan.row;
  const std::int64_t items = std::int64_t{row.lanes} * row.items_per_thread;
  if (plan.kernel <= NormKernel::kCluster) {
    // kLanesThreeQuarters: half of the lanes, each with two items.
    const std::int64_t lanes =
        plan.kernel == NormKernel::kLanesThreeQuarters ? row.lanes / 2 : row.lanes;
    return lanes * plan.row.blocks_per_row * tile_of(plan.kernel).vectors;
  }
  return items * row.vectors_per_item * row.groups * row.segments_per_group;
}

}  // namespace

TEST_CASE("a plan names a kernel that exists and holds the row") {
  std::int64_t failed = 0;
  for_each_problem([&](const NormFacts& of, const GpuLimits& gpu, const NormPlan& plan) {
    const bool right = has_kernel(plan.kernel, plan.variant, of.dtype_size) &&
                       plan.variant.access >= of.access &&
                       capacity(plan) >= ceil_div(of.cols, kVector / of.dtype_size);
    if (right || ++failed > 5) return;
    CAPTURE(of.rows);
    CAPTURE(of.cols);
    CAPTURE(of.dtype_size);
    CAPTURE(to_string(plan));
    CHECK(right);
  });
  CHECK(failed == 0);
}

TEST_CASE("a plan is a legal launch that covers the rows") {
  std::int64_t failed = 0;
  for_each_problem([&](const NormFacts& of, const GpuLimits& gpu, const NormPlan& plan) {
    const bool shape = plan.row.threads >= 32 && plan.row.threads <= 512 &&
                       plan.row.threads % 32 == 0 && plan.blocks > 0 && plan.blocks <= 0x7fffffff &&
                       plan.row.blocks_per_row >= 1 && plan.row.blocks_per_row <= gpu.max_cluster &&
                       plan.blocks % plan.row.blocks_per_row == 0;
    const bool fits = plan.shared_bytes + (5 << 9) <= gpu.shared_bytes;
    const bool persistent = unit_of(plan.kernel, plan.variant) == NormUnit::kBulk;
    const std::int64_t rows_of_block = plan.tile_rows > 0 ? plan.tile_rows
                                       : plan.row.form == RowForm::kWarp
                                           ? plan.row.threads / plan.row.lanes * 2
                                           : 1;
    const bool covers =
        persistent || plan.blocks / plan.row.blocks_per_row * rows_of_block >= of.rows;
    if ((shape && fits && covers) || ++failed > 5) return;
    CAPTURE(of.rows);
    CAPTURE(of.cols);
    CAPTURE(of.dtype_size);
    CAPTURE(to_string(plan));
    CHECK(shape);
    CHECK(fits);
    CHECK(covers);
  });
  CHECK(failed == 0);
}

TEST_CASE("a row's tree depends on its width and dtype alone") {
  for_each_problem([&](const NormFacts& of, const GpuLimits& gpu, const NormPlan& plan) {
    const RmsNormConfig tree = rms_norm_config(1, of.cols, of.dtype_size, kH100.max_cluster);
    const RmsNormConfig& row = plan.row;
    const auto virtual_threads = [](const RmsNormConfig& c) {
      return c.lanes * c.items_per_thread;
    };
    const bool same = virtual_threads(row) == virtual_threads(tree) &&
                      row.vectors_per_item == tree.vectors_per_item && row.groups == tree.groups &&
                      row.segments_per_group == tree.segments_per_group;
    if (!same) {
      CAPTURE(of.cols);
      CHECK(to_string(row) == to_string(tree));
    }
  });
}

TEST_CASE("every kernel is some plan's") {
  bool planned[std::size(kNormVariants)][static_cast<int>(NormKernel::kCount)][9] = {};
  for_each_problem([&](const NormFacts& of, const GpuLimits&, const NormPlan& plan) {
    for (std::size_t i = 0; i < std::size(kNormVariants); ++i) {
      if (kNormVariants[i] == plan.variant)
        planned[i][static_cast<int>(plan.kernel)][of.dtype_size] = true;
    }
  });
  for (std::size_t i = 0; i < std::size(kNormVariants); ++i) {
    for (int kernel = 0; kernel < static_cast<int>(NormKernel::kCount); ++kernel) {
      for (int size : {2, 4, 8}) {
        const auto of = static_cast<NormKernel>(kernel);
        if (!has_kernel(of, kNormVariants[i], size)) continue;
        CAPTURE(to_string(of));
        CAPTURE(i);
        CAPTURE(size);
        CHECK(planned[i][kernel][size]);
      }
    }
  }
}

TEST_CASE("which kernel runs") {
  const auto kernel = [](NormFacts of) { return norm_plan(of, kH100).kernel; };
  const auto with = [](NormFacts of, FusedInput fused, bool centred = false) {
    of.fused_input = fused;
    of.centred = centred;
    return of;
  };
  const auto quantised = [](NormFacts of) {
    of.quantised = true;
    return of;
  };
  const NormFacts llama = rms_norm_of(16384, 4096), gemma = rms_norm_of(8192, 2304);
  CHECK(kernel(rms_norm_of(1, 4096)) == NormKernel::kBlock);
  CHECK(kernel(llama) == NormKernel::kBlock2);
  CHECK(kernel(gemma) == NormKernel::kBlock2);
  CHECK(kernel(with(llama, FusedInput::kResidual)) == NormKernel::kBlock);
  CHECK(kernel(with(rms_norm_of(9760, 5376), FusedInput::kResidual)) == NormKernel::kBlockSmall);
  CHECK(kernel(with(llama, FusedInput::kNone, true)) == NormKernel::kBlock2);
  CHECK(kernel(with(rms_norm_of(16384, 2304), FusedInput::kNone, true)) ==
        NormKernel::kBlock2ThreeQuarters);
  CHECK(kernel(rms_norm_of(8192, 768)) == NormKernel::kWarp2);
  CHECK(kernel(rms_norm_of(524288, 128)) == NormKernel::kLanes);
  CHECK(kernel(rms_norm_of(524288, 192)) == NormKernel::kLanesThreeQuarters);
  CHECK(kernel(with(rms_norm_of(524288, 128), FusedInput::kNone, true)) == NormKernel::kPairs);
  CHECK(kernel(rms_norm_of(8, 16384)) == NormKernel::kBlock4VectorsRegisters);
  CHECK(kernel(rms_norm_of(8192, 16384)) == NormKernel::kBlock4Vectors);
  CHECK(kernel(rms_norm_of(4096, 32768)) == NormKernel::kCluster);
  CHECK(kernel(rms_norm_of(64, 1 << 20)) == NormKernel::kStreamed);
  CHECK(kernel(rms_norm_of(16384, 4100)) == NormKernel::kBulk);
  CHECK(kernel(rms_norm_of(262144, 90)) == NormKernel::kPackedThreeQuarters);
  CHECK(kernel(quantised(rms_norm_of(4096, 1536))) == NormKernel::kWarp4Six);
  CHECK(kernel(quantised(rms_norm_of(2048, 4096))) == NormKernel::kBlock);
  CHECK(kernel(quantised(rms_norm_of(4096, 4096))) == NormKernel::kBlock2);
}

TEST_CASE("quantised rows of float64 have a thread for every item") {
  NormFacts of = rms_norm_of(4096, 1024, 8);
  of.quantised = true;
  const NormPlan plan = norm_plan(of, kH100);
  CHECK(plan.variant.access == Access::kStrided);
  CHECK(plan.row.items_per_thread == 1);
}
