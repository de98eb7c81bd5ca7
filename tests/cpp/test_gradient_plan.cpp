// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <iterator>

#include "cuda/norm/gradient_plan.hpp"
#include "tuning_text.hpp"

using namespace membound::cuda;
using namespace membound::cuda::tuning;

namespace {

constexpr GpuLimits kH100{132, 16, 227 << 10};
constexpr GpuLimits kGpus[] = {kH100, {40, 1, 64 << 10}, {108, 1, 163 << 10}, {170, 8, 99 << 10}};
constexpr std::int64_t kRows[] = {1, 17, 300, 768, 2048, 8192, 50000, 1 << 20};
constexpr std::int64_t kCols[] = {
    1,    8,    48,   64,   96,   100,  128,  512,   1000,  1024,  1536,  2048,  2560,   3000,
    3072, 4096, 4097, 5120, 6144, 8192, 9216, 10240, 12001, 16384, 20480, 32768, 131072, 1 << 20};

GradientFacts gradient_of(std::int64_t rows, std::int64_t cols, int dtype_size = 2) {
  return contiguous_gradient(rows, cols, dtype_size);
}

template <class Body>
void for_each_problem(Body body) {
  for (std::int64_t rows : kRows) {
    for (std::int64_t cols : kCols) {
      for (int size : {2, 4, 8}) {
        for (Access access : {Access::kAligned, Access::kUnaligned, Access::kStrided}) {
          for (int options = 0; options < 256; ++options) {
            GradientFacts of = gradient_of(rows, cols, size);
            if (access < of.access) continue;
            of.access = access;
            of.centred = options & 1;
            of.gated = options & 2;
            of.adds = options & 4;
            of.common = options & 8;
            of.plain = of.common && (options & 16);
            of.evenly_spaced = options & 32;
            of.sums = options & 64;
            if (options & 128) of.heads = rows % 4 == 0 ? 4 : 1;
            if (of.gated && (of.centred || of.adds)) continue;
            if (of.adds) of.row_strides[2] = cols;
            for (const GpuLimits& gpu : kGpus) body(of, gpu, gradient_plan(of, gpu));
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("a plan of a gradient names a kernel that exists, and a legal launch") {
  std::int64_t failed = 0;
  for_each_problem([&](const GradientFacts& of, const GpuLimits& gpu, const GradientPlan& plan) {
    const bool exists = has_kernel(plan.kernel, plan.variant, of.dtype_size);
    const bool shape = plan.threads >= 32 && plan.threads <= 1024 && plan.threads % 32 == 0 &&
                       plan.blocks > 0 && plan.config.blocks_per_row >= 1 &&
                       plan.config.blocks_per_row <= gpu.max_cluster &&
                       plan.blocks % plan.config.blocks_per_row == 0;
    const bool fits = plan.shared_bytes + (6 << 10) <= gpu.shared_bytes;
    if ((exists && shape && fits) || ++failed > 5) return;
    CAPTURE(of.rows);
    CAPTURE(of.cols);
    CAPTURE(of.dtype_size);
    CAPTURE(to_string(plan));
    CHECK(exists);
    CHECK(shape);
    CHECK(fits);
  });
  CHECK(failed == 0);
}

TEST_CASE("the sums of a gradient have one tree for all alignments and options") {
  for_each_problem([&](const GradientFacts& of, const GpuLimits&, const GradientPlan& plan) {
    if (!of.sums) return;
    const bool partials = plan.config.form == GradientForm::kPersistent;
    const std::int64_t rows =
        rms_norm_backward_partials(of.rows, of.cols, of.dtype_size, of.centred, of.heads, of.gated);
    if (partials && plan.config.partial_rows * (of.centred ? 2 : 1) != rows) {
      CAPTURE(of.rows);
      CAPTURE(of.cols);
      CHECK(plan.config.partial_rows == rows);
    }
  });
}

TEST_CASE("every kernel of gradients is some plan's") {
  constexpr int kKernels = static_cast<int>(GradientKernel::kCount);
  bool planned[std::size(kGradientVariants)][kKernels][9] = {};
  for_each_problem([&](const GradientFacts& of, const GpuLimits&, const GradientPlan& plan) {
    for (std::size_t i = 0; i < std::size(kGradientVariants); ++i) {
      if (kGradientVariants[i] == plan.variant)
        planned[i][static_cast<int>(plan.kernel)][of.dtype_size] = true;
    }
  });
  for (std::size_t i = 0; i < std::size(kGradientVariants); ++i) {
    for (int kernel = 0; kernel < kKernels; ++kernel) {
      for (int size : {2, 4, 8}) {
        const auto of = static_cast<GradientKernel>(kernel);
        if (!has_kernel(of, kGradientVariants[i], size)) continue;
        CAPTURE(to_string(of));
        CAPTURE(to_string(kGradientVariants[i]));
        CAPTURE(size);
        CHECK(planned[i][kernel][size]);
      }
    }
  }
}

TEST_CASE("which kernel runs for a gradient") {
  const auto kernel = [](const GradientFacts& of) { return gradient_plan(of, kH100).kernel; };
  const auto form = [](const GradientFacts& of) { return gradient_plan(of, kH100).variant.form; };
  const auto centred = [](GradientFacts of) {
    of.centred = true;
    return of;
  };
  const auto adds = [](GradientFacts of) {
    of.adds = true;
    of.row_strides[2] = of.cols;
    return of;
  };
  const auto rounded = [](GradientFacts of) {
    of.plain = false;
    return of;
  };
  const GradientFacts llama = gradient_of(16384, 4096);
  CHECK(kernel(gradient_of(16, 4096)) == GradientKernel::kBlockRows);
  CHECK(kernel(gradient_of(16, 16384)) == GradientKernel::kClusterRows);
  CHECK(kernel(llama) == GradientKernel::kRegisters1);
  CHECK(gradient_plan(llama, kH100).adds_pairs);
  CHECK(kernel(adds(llama)) == GradientKernel::kStaged1);
  CHECK(form(adds(llama)) == Form::kPlainAdd);
  CHECK(form(rounded(llama)) == Form::kPlainRounded);
  CHECK(kernel(centred(llama)) == GradientKernel::kStaged1);
  CHECK(form(centred(rounded(llama))) == Form::kPlain);
  CHECK(kernel(gradient_of(524288, 128)) == GradientKernel::kLanesEven);
  CHECK(kernel(gradient_of(16384, 3072)) == GradientKernel::kStaged1Small);
  CHECK(kernel(gradient_of(8192, 5120)) == GradientKernel::kStaged2Small);
  CHECK(kernel(gradient_of(8192, 8192)) == GradientKernel::kStaged2);
  CHECK(kernel(gradient_of(8192, 10240)) == GradientKernel::kStaged4);
  CHECK(kernel(gradient_of(8192, 16384)) == GradientKernel::kStaged2Cluster);
  CHECK(kernel(centred(gradient_of(4096, 20480))) == GradientKernel::kStaged4ClusterSmall);
  CHECK(kernel(gradient_of(16384, 4097)) == GradientKernel::kBulk2Small);
  CHECK(kernel(gradient_of(524288, 127)) == GradientKernel::kPacked);
}

TEST_CASE("few rows: which have their columns in shared memory") {
  const auto is_wide = [](std::int64_t rows, std::int64_t cols, int size = 2) {
    const GradientKernel kernel = gradient_plan(gradient_of(rows, cols, size), kH100).kernel;
    return kernel == GradientKernel::kWideRows || kernel == GradientKernel::kClusterRows;
  };
  CHECK(is_wide(1, 8192));
  CHECK(is_wide(1024, 8192));
  CHECK(is_wide(16, 5128));
  CHECK(is_wide(128, 4096, 4));
  CHECK(!is_wide(16, 5120));
  CHECK(!is_wide(128, 4096));
  CHECK(!is_wide(16, 8191));
  CHECK(!is_wide(16, 2048, 8));
}
