// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "membound/error.hpp"
#include "membound/ops/add_rms_norm.hpp"
#include "membound/ops/add_rms_norm_quant.hpp"
#include "quant.hpp"

using namespace membound_test;

namespace {

using Options = RmsNormQuantOptions;

void run(const Array& x, const Array& residual, const Array* weight, const Options& options,
         const Array& out, const Array& residual_out, const Array* static_scale,
         const Array* scale) {
  add_rms_norm_quant(x.view(), residual.view(), Optional<ConstTensorView>(weight).get(), options,
                     out.view(), residual_out.view(), Optional<ConstTensorView>(static_scale).get(),
                     Optional<TensorView>(scale).get(), StreamView::legacy_default());
}

// The results of add_rms_norm for the same arguments.
struct Added {
  Added(const Array& x, const Array& residual, const Array* weight, const Options& options)
      : out(x.dtype(), x.shape()), sum(x.dtype(), x.shape()) {
    add_rms_norm(x.view(), residual.view(), Optional<ConstTensorView>(weight).get(),
                 {options.eps, options.weight_offset, options.rounding}, out.view(), sum.view(),
                 nullptr, StreamView::legacy_default());
  }
  Array out, sum;
};

}  // namespace

TEST_CASE("add_rms_norm_quant: every dtype, scale and width against the definition") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (DType out_dtype : kQuantised) {
      for (std::int64_t cols : {1, 63, 64, 130, 1000, 4097}) {
        // With one weight for all rows, and with one for each of three heads.
        for (const Array::Extents& weights : {Array::Extents{cols}, Array::Extents{3, cols}}) {
          Array x(dtype, {2, 3, cols}), residual(dtype, x.shape()), weight(dtype, weights);
          x.fill_normal(seed, 3.0);
          residual.fill_normal(seed + 1, 3.0);
          weight.fill_normal(seed + 2);
          const Added expected(x, residual, &weight, {});
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(std::string(dtype_name(out_dtype)));
          CAPTURE(cols);
          for (std::int64_t group : {0, 64, 128}) {
            const Options options{.group_size = group};
            Quantised got(out_dtype, x.shape(), group);
            Array sum(dtype, x.shape());
            run(x, residual, &weight, options, got.out, sum, nullptr, &got.scale);
            CAPTURE(group);
            check_quantised(expected.out, options, got.out, &got.scale, nullptr);
            REQUIRE(sum.first_difference(expected.sum) == -1);
          }
          const float scale = static_cast<float>(3.0 / limit_of(out_dtype));
          Array out(out_dtype, x.shape()), sum(dtype, x.shape());
          run(x, residual, &weight, {}, out, sum, static_scale_of(scale).get(), nullptr);
          check_quantised(expected.out, {}, out, nullptr, &scale);
          REQUIRE(sum.first_difference(expected.sum) == -1);
        }
      }
    }
  }
}

TEST_CASE("add_rms_norm_quant: strides, order and place of the sum change nothing") {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (std::int64_t cols : {100, 4500}) {
      const Array::Extents shape{2, 3, cols};
      Array x_model(dtype, shape), residual_model(dtype, shape);
      x_model.fill_normal(test_seed());
      residual_model.fill_normal(test_seed() + 1);
      Quantised expected(DType::kInt8, shape, 128);
      Array sum(dtype, shape);
      const Options options{.group_size = 128};
      run(x_model, residual_model, nullptr, options, expected.out, sum, nullptr, &expected.scale);
      for (const Layout& layout : layouts_of(cols)) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(cols);
        CAPTURE(std::string(layout.name));
        for (int place = 0; place < 3; ++place) {  // separate, in place of x, in place of residual
          CAPTURE(place);
          Array x(dtype, shape, layout.strides, layout.lead);
          Array residual(dtype, shape, layout.strides, layout.lead);
          Array apart(dtype, shape, layout.strides, layout.lead);
          x.copy_from(x_model);
          residual.copy_from(residual_model);
          Quantised got(DType::kInt8, shape, 128);
          const Array& to = place == 0 ? apart : place == 1 ? x : residual;
          run(x, residual, nullptr, options, got.out, to, nullptr, &got.scale);
          REQUIRE(got.out.first_difference(expected.out) == -1);
          REQUIRE(got.scale.first_difference(expected.scale) == -1);
          REQUIRE(to.first_difference(sum) == -1);
        }
      }
    }
  }
}

TEST_CASE("add_rms_norm_quant: transposed arrays have the bits of contiguous ones") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  const std::int64_t rows = 83;
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {3, 17, 300}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      const Array::Extents shape{rows, cols}, columns{1, rows};
      Array x(dtype, shape), residual(dtype, shape), sum(dtype, shape);
      x.fill_normal(seed);
      residual.fill_normal(seed + 1);
      Quantised expected(DType::kInt8, shape, 0);
      run(x, residual, nullptr, {}, expected.out, sum, nullptr, &expected.scale);
      Array transposed(dtype, shape, columns, 1), added(dtype, shape, columns, 1);
      transposed.copy_from(x);
      added.copy_from(residual);
      Array codes(DType::kInt8, shape, columns, 1), scale(DType::kFloat32, {rows});
      Array transposed_sum(dtype, shape, columns, 1);
      run(transposed, added, nullptr, {}, codes, transposed_sum, nullptr, &scale);
      REQUIRE(codes.first_difference(expected.out) == -1);
      REQUIRE(scale.first_difference(expected.scale) == -1);
      REQUIRE(transposed_sum.first_difference(sum) == -1);
      Array apart(DType::kInt8, shape, {2, -2 * rows}, 1);
      run(transposed, residual, nullptr, {}, apart, added, nullptr, &scale);
      REQUIRE(apart.first_difference(expected.out) == -1);
      REQUIRE(added.first_difference(sum) == -1);
    }
  }
}

TEST_CASE("add_rms_norm_quant: errors name the argument and leave the outputs alone") {
  Array x(DType::kFloat32, {2, 8}), residual(DType::kFloat32, {2, 8});
  Array sum(DType::kFloat32, {2, 8}), narrow(DType::kFloat32, {2, 7}),
      half(DType::kFloat16, {2, 8});
  Array out(DType::kFloat8E5M2, {2, 8}), scale(DType::kFloat32, {2});
  const auto refused = [&](const char* text, const Array& added, const Array& to) {
    CHECK_THROWS_WITH(run(x, added, nullptr, {}, out, to, nullptr, &scale), text);
  };
  refused("add_rms_norm_quant: argument 'residual' must have shape (2, 8), got (2, 7)", narrow,
          sum);
  refused("add_rms_norm_quant: argument 'residual_out' must have shape (2, 8), got (2, 7)",
          residual, narrow);
  CHECK_THROWS_AS(run(x, half, nullptr, {}, out, sum, nullptr, &scale), TypeMismatch);
  CHECK_THROWS_AS(run(x, residual, nullptr, {}, out, half, nullptr, &scale), TypeMismatch);
  CHECK_THROWS_AS(run(x, residual, nullptr, {.group_size = 8}, out, sum, nullptr, &scale),
                  InvalidArgument);
  // The codes, or the scales, overlap the sum.
  const TensorView bytes(sum.at(0), DType::kFloat8E5M2, Device::cpu(), {2, 8});
  const TensorView two(sum.at(0), DType::kFloat32, Device::cpu(), {2});
  const TensorView scales = scale.view();
  const auto overlaps = [&](const TensorView& codes, const TensorView& to) {
    CHECK_THROWS_AS(add_rms_norm_quant(x.view(), residual.view(), nullptr, {}, codes, sum.view(),
                                       nullptr, &to, StreamView::legacy_default()),
                    InvalidArgument);
  };
  overlaps(bytes, scales);
  overlaps(out.view(), two);
  for (std::int64_t i = 0; i < out.size(); ++i) REQUIRE(code_at(out, i) == 0x5a);
}
