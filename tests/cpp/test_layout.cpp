// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <random>

#include "array.hpp"
#include "core/layout.hpp"
#include "membound/error.hpp"

using namespace membound_test;

namespace {
ConstTensorView view_of(std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
                        const void* data = nullptr) {
  ConstTensorView view(data, DType::kFloat32, Device::cpu(), {});
  view.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape);
  std::copy(strides.begin(), strides.end(), view.strides);
  return view;
}
}  // namespace

TEST_CASE("layout: neighbours with one stride merge") {
  CHECK(row_layout(view_of({2, 3, 4}, {12, 4, 1}), 2, "op", "x").rank == 1);
  CHECK(row_layout(view_of({1, 1, 4}, {99, 7, 1}), 2, "op", "x").rank == 0);
  CHECK(row_layout(view_of({2, 3, 4}, {4, 8, 1}), 2, "op", "x").rank == 2);
  CHECK(row_layout(view_of({2, 3, 4}, {0, 0, 1}), 2, "op", "x").rank == 1);
}

TEST_CASE("layout: offsets equal those of the axes, for random layouts") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  std::mt19937 engine(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const int axes = static_cast<int>(engine() % 5);
    std::vector<std::int64_t> shape, strides;
    std::int64_t rows = 1;
    for (int axis = 0; axis < axes; ++axis) {
      shape.push_back(1 + engine() % 4);
      strides.push_back(static_cast<std::int64_t>(engine() % 41) - 20);
      rows *= shape.back();
    }
    const RowLayout layout = row_layout(view_of(shape, strides), axes, "op", "x");
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t expected = 0, rest = row;
      for (int axis = axes - 1; axis >= 0; --axis) {
        expected += rest % shape[axis] * strides[axis];
        rest /= shape[axis];
      }
      REQUIRE(layout.offset(row) == expected);
    }
  }
}

TEST_CASE("layout: offsets beyond 2^32 elements") {
  const std::int64_t many = std::int64_t{1} << 33;
  const RowLayout layout = row_layout(view_of({many, 3, 8}, {100, 8, 1}), 2, "op", "x");
  CHECK(layout.offset(3 * (many - 1) + 2) == (many - 1) * 100 + 16);
}

TEST_CASE("layout: too many separate axes are refused by name") {
  std::vector<std::int64_t> shape(9, 2), strides;
  for (int i = 0; i < 9; ++i) strides.push_back(1 + 3 * (i * 5 % 9));
  CHECK_THROWS_AS(row_layout(view_of(shape, strides), 9, "op", "x"), InvalidArgument);
}

TEST_CASE("layout: which views repeat an element") {
  CHECK(is_injective(view_of({2, 3}, {3, 1})));
  CHECK(is_injective(view_of({2, 3}, {1, 2})));
  CHECK(is_injective(view_of({2, 3}, {-3, -1})));
  CHECK(is_injective(view_of({1, 3}, {0, 1})));
  CHECK_FALSE(is_injective(view_of({2, 3}, {0, 1})));
  CHECK_FALSE(is_injective(view_of({2, 3}, {2, 1})));
}

TEST_CASE("layout: overlap of slices of one buffer") {
  float data[100];
  CHECK(may_overlap(view_of({4, 5}, {10, 1}, data), view_of({4, 5}, {10, 1}, data + 4)));
  CHECK_FALSE(may_overlap(view_of({4, 5}, {10, 1}, data), view_of({4, 5}, {10, 1}, data + 5)));
  CHECK_FALSE(may_overlap(view_of({4, 5}, {5, 1}, data), view_of({4, 5}, {5, 1}, data + 20)));
  CHECK(may_overlap(view_of({4, 5}, {5, 1}, data), view_of({4, 5}, {5, 1}, data + 19)));
  CHECK_FALSE(may_overlap(view_of({0, 5}, {5, 1}, data), view_of({4, 5}, {5, 1}, data)));
  CHECK(may_overlap(view_of({5}, {-1}, data + 4), view_of({1}, {1}, data)));
  // Even and odd columns, also with an odd row stride and reversed; halves of rows in two axes that
  // do not merge.
  CHECK_FALSE(may_overlap(view_of({4, 3}, {6, 2}, data), view_of({4, 3}, {6, 2}, data + 1)));
  CHECK_FALSE(may_overlap(view_of({4, 3}, {7, 2}, data), view_of({4, 3}, {7, 2}, data + 1)));
  CHECK_FALSE(may_overlap(view_of({4, 3}, {7, -2}, data + 4), view_of({4, 3}, {7, 2}, data + 1)));
  CHECK(may_overlap(view_of({4, 3}, {6, 2}, data), view_of({4, 3}, {6, 2}, data + 2)));
  CHECK(may_overlap(view_of({4, 3}, {6, 2}, data), view_of({4, 2}, {6, 3}, data + 1)));
  CHECK_FALSE(
      may_overlap(view_of({2, 3, 4}, {8, 16, 1}, data), view_of({2, 3, 4}, {8, 16, 1}, data + 4)));
  CHECK(
      may_overlap(view_of({2, 3, 4}, {8, 16, 1}, data), view_of({2, 3, 4}, {8, 16, 1}, data + 5)));
  CHECK(is_same_array(view_of({4, 5}, {5, 1}, data), view_of({4, 5}, {5, 1}, data)));
  CHECK_FALSE(is_same_array(view_of({4, 5}, {5, 1}, data), view_of({4, 5}, {10, 1}, data)));
}

TEST_CASE("layout: the span covers negative strides") {
  float data[10];
  const ByteSpan span = byte_span(view_of({3}, {-2}, data + 6));
  CHECK(span.first == reinterpret_cast<const char*>(data + 2));
  CHECK(span.last == reinterpret_cast<const char*>(data + 7));
}
