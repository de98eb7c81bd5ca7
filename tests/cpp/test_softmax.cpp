// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "array.hpp"
#include "cuda/softmax/cross_entropy_config.hpp"
#include "cuda/softmax/softmax_backward_config.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/ops/softmax.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();

// Reference in more than double; rows keep columns j <= row % queries + offset.
std::vector<double> definition(const Array& x, std::int64_t cols, double scale,
                               std::int64_t queries, std::int64_t offset,
                               const std::vector<double>& added) {
  std::vector<double> out(static_cast<std::size_t>(x.size()), 0.0);
  for (std::int64_t row = 0; row < x.size() / cols; ++row) {
    const std::int64_t kept = std::clamp<std::int64_t>(row % queries + offset + 1, 0, cols);
    const auto logit = [&](std::int64_t col) -> long double {
      return static_cast<long double>(scale) * x.get(row * cols + col) +
             added[static_cast<std::size_t>(col)];
    };
    long double top = -INFINITY, sum = 0;
    for (std::int64_t col = 0; col < kept; ++col) top = std::max(top, logit(col));
    for (std::int64_t col = 0; col < kept; ++col) sum += std::exp(logit(col) - top);
    for (std::int64_t col = 0; col < kept; ++col)
      out[static_cast<std::size_t>(row * cols + col)] =
          static_cast<double>(std::exp(logit(col) - top) / sum);
  }
  return out;
}

// logits: their largest finite magnitude, whose rounding limits the accuracy of the result.
void require_close(const Array& out, const std::vector<double>& right, DType dtype, double logits) {
  const double slack = (dtype == DType::kFloat64 ? 0x1p-52 : 0x1p-23) * (logits + 6);
  for (std::int64_t i = 0; i < out.size(); ++i) {
    const double wanted = right[static_cast<std::size_t>(i)];
    CAPTURE(i);
    REQUIRE(std::abs(out.get(i) - wanted) <= slack * wanted + 0.51 * ulp(wanted, dtype));
  }
}

}  // namespace

TEST_CASE("softmax: every dtype and width against the definition") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {1, 2, 7, 16, 33, 64, 200, 1000, 2048, 2049, 9001}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      Array x(dtype, {2, 3, cols}), out(dtype, {2, 3, cols});
      x.fill_normal(seed);
      SoftmaxOptions options;
      options.scale = 1.5;
      const std::vector<double> nothing(static_cast<std::size_t>(cols), 0.0);
      softmax(x.view(), nullptr, options, out.view(), kStream);
      require_close(out, definition(x, cols, 1.5, 3, cols, nothing), dtype, 8);
      options.causal_offset = cols / 2 - 1;
      softmax(x.view(), nullptr, options, out.view(), kStream);
      require_close(out, definition(x, cols, 1.5, 3, cols / 2 - 1, nothing), dtype, 8);
    }
  }
}

TEST_CASE("softmax: masks of every dtype") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {3, 70, 2100}) {
      Array x(dtype, {2, 3, cols}), out(dtype, {2, 3, cols});
      x.fill_normal(seed);
      const auto count = static_cast<std::size_t>(cols);
      const auto bytes = std::make_unique<bool[]>(count);
      std::vector<double> added(count);
      for (std::size_t col = 0; col < count; ++col) {
        bytes[col] = col % 3 != 1;
        added[col] = bytes[col] ? 0.0 : -INFINITY;
      }
      for (std::int64_t row = 0; row < 6; ++row) x.set(row * cols + 1, NAN);  // dropped
      const ConstTensorView kept(bytes.get(), DType::kBool, Device::cpu(), {cols});
      softmax(x.view(), &kept, {}, out.view(), kStream);
      require_close(
          out,
          [&] {
            Array clean(dtype, {2, 3, cols});
            for (std::int64_t i = 0; i < x.size(); ++i)
              clean.set(i, std::isnan(x.get(i)) ? 0.0 : x.get(i));
            return definition(clean, cols, 1.0, 3, cols, added);
          }(),
          dtype, 8);
      x.fill_normal(seed);
      for (DType mask_dtype : kFloating) {
        if ((mask_dtype == DType::kFloat64) != (dtype == DType::kFloat64)) continue;
        Array mask(mask_dtype, {1, cols});
        mask.fill_normal(seed + 1);
        for (std::size_t col = 0; col < count; ++col)
          added[col] = mask.get(static_cast<std::int64_t>(col));
        const ConstTensorView view = mask.view();
        softmax(x.view(), &view, {}, out.view(), kStream);
        require_close(out, definition(x, cols, 1.0, 3, cols, added), dtype, 12);
      }
    }
  }
}

TEST_CASE("softmax: any strides, and in place, have the bits of contiguous rows") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {5, 300, 2500, 9000}) {
      Array plain(dtype, {3, cols}), transposed(dtype, {3, cols}, {1, 3}, 1);
      plain.fill_normal(seed);
      transposed.copy_from(plain);
      Array right(dtype, {3, cols}), out(dtype, {3, cols}, {-2 * cols, 2}, 4 * cols);
      softmax(plain.view(), nullptr, {}, right.view(), kStream);
      softmax(transposed.view(), nullptr, {}, out.view(), kStream);
      CHECK(out.first_difference(right) == -1);
      softmax(transposed.view(), nullptr, {}, transposed.view(), kStream);
      CHECK(transposed.first_difference(right) == -1);
      softmax(plain.view(), nullptr, {}, plain.view(), kStream);
      CHECK(plain.first_difference(right) == -1);
    }
  }
}

TEST_CASE("softmax: no rows, rows that keep nothing, and what is refused") {
  Array x(DType::kFloat32, {2, 4}), out(DType::kFloat32, {2, 4});
  for (std::int64_t i = 0; i < 8; ++i) x.set(i, -INFINITY);
  Array nothing(DType::kFloat32, {0, 4});
  CHECK_NOTHROW(softmax(nothing.view(), nullptr, {}, nothing.view(), kStream));
  softmax(x.view(), nullptr, {}, out.view(), kStream);
  for (std::int64_t i = 0; i < 8; ++i) CHECK(std::isnan(out.get(i)));
  SoftmaxOptions options;
  options.causal_offset = -1;
  x.set(4, 1.0);
  softmax(x.view(), nullptr, options, out.view(), kStream);
  for (std::int64_t i = 0; i < 8; ++i) CHECK(out.get(i) == (i == 4 ? 1.0 : 0.0));
  for (const std::int64_t far : {-(std::int64_t{1} << 62), std::int64_t{1} << 62}) {
    options.causal_offset = far;
    CHECK_NOTHROW(softmax(x.view(), nullptr, options, out.view(), kStream));
    CHECK(out.get(5) == 0.0);
  }
  const ConstTensorView mask = ConstTensorView(x.view().data, DType::kInt32, Device::cpu(), {4});
  CHECK_THROWS_AS(softmax(x.view(), &mask, {}, out.view(), kStream), TypeMismatch);
  Array row(DType::kFloat32, {3});
  const ConstTensorView narrow = row.view();
  CHECK_THROWS_AS(softmax(x.view(), &narrow, {}, out.view(), kStream), InvalidArgument);
  CHECK_THROWS_AS(softmax(row.view(), nullptr, options, row.view(), kStream), InvalidArgument);
  options.causal_offset.reset();
  options.scale = INFINITY;
  CHECK_THROWS_AS(softmax(x.view(), nullptr, options, out.view(), kStream), InvalidArgument);
}

TEST_CASE("softmax, its gradient, cross entropy: every chunk of every row is of one thread") {
  using namespace membound::cuda::tuning;
  for (const auto configure : {softmax_config, softmax_backward_config, cross_entropy_config}) {
    for (const int size : {2, 4, 8}) {
      for (const std::int64_t cols :
           {1, 7, 64, 1000, 4096, 9001, 16385, 32769, 50257, 262144, 1 << 20, 1 << 24}) {
        for (const int cluster : {1, 8, 16}) {
          CAPTURE(size);
          CAPTURE(cols);
          const SoftmaxConfig config = configure(100, cols, size, cluster);
          const std::int64_t vectors = (cols * size + 15) / 16;
          CHECK(config.parts * config.lanes * config.vectors >= vectors);
          CHECK(config.threads <= kSoftmaxThreads);
          CHECK(config.threads % 32 == 0);
          CHECK(config.blocks_per_row <= cluster);
          CHECK(config.blocks * config.rows_per_block() >= 100 * config.blocks_per_row);
          CHECK(config.streamed() == (config.parts > cluster));
          // The reduction tree of a row is the same on every GPU and in every batch.
          const SoftmaxConfig other = configure(7, cols, size, 1);
          CHECK(config.parts == other.parts);
          CHECK(config.lanes == other.lanes);
          CHECK(config.vectors == other.vectors);
        }
      }
    }
  }
}

TEST_CASE("softmax, its gradient, cross entropy: a thread holds many chunks of wide rows alone") {
  using namespace membound::cuda::tuning;
  const auto vectors = [](auto configure, std::int64_t cols, int size) {
    const SoftmaxConfig config = configure(100, cols, size, 16);
    // Kernels for many 16-bit vectors have no code for several rows per block,
    if (size == 2 && config.vectors == kManyVectors) CHECK(config.lanes > 32);
    // those of cross entropy for few vectors have none for clusters.
    if (configure == cross_entropy_config && config.vectors == kFewVectors)
      CHECK(config.parts == 1);
    return config.vectors;
  };
  CHECK(vectors(softmax_config, 32768, 2) == kFewVectors);
  CHECK(vectors(softmax_config, 32769, 2) == kManyVectors);
  CHECK(vectors(cross_entropy_config, 16384, 2) == kFewVectors);
  CHECK(vectors(cross_entropy_config, 16385, 2) == kManyVectors);
  CHECK(vectors(softmax_backward_config, 1 << 24, 2) == kFewVectors);
  for (const int size : {4, 8}) {
    CHECK(vectors(softmax_config, 1, size) == kManyVectors);
    CHECK(vectors(softmax_backward_config, 1, size) == kManyVectors);
    CHECK(vectors(cross_entropy_config, 1, size) == kManyVectors);
  }
}
