// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "core/validate.hpp"

using namespace membound;

namespace {
float data[64];
ConstTensorView view(DType dtype, std::initializer_list<std::int64_t> shape, void* at = data) {
  return ConstTensorView(TensorView(at, dtype, Device::cpu(), shape));
}
}  // namespace

TEST_CASE("validate: dtype and alignment of the pointer") {
  CHECK_NOTHROW(check_floating(view(DType::kBFloat16, {4}), "op", "x"));
  CHECK_THROWS_WITH_AS(check_floating(view(DType::kInt32, {4}), "op", "x"),
                       "op: argument 'x' must be float16, bfloat16, float32 or float64, got int32",
                       TypeMismatch);
  char* odd = reinterpret_cast<char*>(data) + 1;
  CHECK_THROWS_AS(check_floating(view(DType::kFloat16, {4}, odd), "op", "x"), InvalidArgument);
  CHECK_NOTHROW(check_floating(view(DType::kFloat16, {4}, odd + 1), "op", "x"));
}

TEST_CASE("validate: what no array has") {
  ConstTensorView x = view(DType::kFloat32, {2, 3});
  CHECK_NOTHROW(check_view(x, "op", "x"));
  CHECK_NOTHROW(check_view(view(DType::kFloat32, {2, 0, 3}, nullptr), "op", "x"));
  CHECK_THROWS_WITH_AS(check_view(view(DType::kFloat32, {2, 3}, nullptr), "op", "x"),
                       "op: argument 'x' must have memory for its elements, got a null pointer and "
                       "shape (2, 3)",
                       InvalidArgument);
  x.shape[1] = -3;
  CHECK_THROWS_WITH_AS(check_view(x, "op", "x"),
                       "op: argument 'x' must not have a negative extent, got shape (2, -3)",
                       InvalidArgument);
  x.shape[1] = std::int64_t{1} << 58;
  CHECK_THROWS_AS(check_view(x, "op", "x"), InvalidArgument);
  x.shape[1] = 3;
  x.strides[1] = std::numeric_limits<std::int64_t>::min();
  CHECK_THROWS_AS(check_view(x, "op", "x"), InvalidArgument);
  x.rank = 65;
  CHECK_THROWS_WITH_AS(check_view(x, "op", "x"),
                       "op: argument 'x' must have at most 64 axes, got 65", InvalidArgument);
}

TEST_CASE("validate: rows have an axis with elements") {
  CHECK_NOTHROW(check_rows(view(DType::kFloat32, {0, 4}), "op", "x"));
  CHECK_THROWS_AS(check_rows(view(DType::kFloat32, {}), "op", "x"), InvalidArgument);
  CHECK_THROWS_AS(check_rows(view(DType::kFloat32, {4, 0}), "op", "x"), InvalidArgument);
}

TEST_CASE("validate: shapes and devices beside a reference") {
  const ConstTensorView x = view(DType::kFloat32, {2, 3});
  CHECK_NOTHROW(check_leading_shape(view(DType::kFloat32, {2}), x, 1, "op", "rstd"));
  CHECK_THROWS_WITH_AS(check_leading_shape(view(DType::kFloat32, {3}), x, 1, "op", "rstd"),
                       "op: argument 'rstd' must have shape (2,), got (3,)", InvalidArgument);
  ConstTensorView elsewhere = x;
  elsewhere.device = Device::cuda(1);
  CHECK_THROWS_WITH_AS(check_same_device(elsewhere, x, "op", "out", "x"),
                       "op: argument 'out' must be on cpu like 'x', got cuda:1", InvalidArgument);
  CHECK(shape_text(x) == "(2, 3)");
  CHECK(shape_text(view(DType::kFloat32, {})) == "()");
}

TEST_CASE("validate: overlap") {
  const ConstTensorView x = view(DType::kFloat32, {8});
  const ConstTensorView shifted = view(DType::kFloat32, {8}, data + 4);
  const ConstTensorView apart = view(DType::kFloat32, {8}, data + 8);
  CHECK_NOTHROW(check_overlap(apart, "out", x, "x", "op", false));
  CHECK_NOTHROW(check_overlap(x, "out", x, "x", "op", true));
  CHECK_THROWS_AS(check_overlap(x, "out", x, "x", "op", false), InvalidArgument);
  CHECK_THROWS_AS(check_overlap(shifted, "out", x, "x", "op", true), InvalidArgument);
}

TEST_CASE("validate: an output has every element once") {
  ConstTensorView x = view(DType::kFloat32, {3, 4});
  CHECK_NOTHROW(check_writable(x, "op", "out"));
  x.strides[0] = 0;
  CHECK_THROWS_AS(check_writable(x, "op", "out"), InvalidArgument);
}

TEST_CASE("validate: eps") {
  for (DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    CHECK_NOTHROW(check_eps(0.0, dtype, "op"));
    for (double eps : {-1e-6, double{NAN}, double{INFINITY}}) {
      CHECK_THROWS_AS(check_eps(eps, dtype, "op"), InvalidArgument);
    }
  }
  for (double eps : {1e-300, 1e300}) {
    CHECK_NOTHROW(check_eps(eps, DType::kFloat64, "op"));
    CHECK_THROWS_AS(check_eps(eps, DType::kBFloat16, "op"), InvalidArgument);
  }
}

TEST_CASE("validate: options that float32 holds") {
  CHECK_NOTHROW(check_finite(-1e300, DType::kFloat64, "op", "scale"));
  CHECK_NOTHROW(check_finite(1e-300, DType::kFloat32, "op", "scale"));
  CHECK_THROWS_WITH_AS(check_finite(-1e300, DType::kFloat16, "op", "scale"),
                       "op: argument 'scale' must be finite in float32, got -1e+300",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(check_finite(double{INFINITY}, DType::kFloat64, "op", "scale"),
                       "op: argument 'scale' must be finite, got inf", InvalidArgument);
}

TEST_CASE("validate: an array like another") {
  const ConstTensorView x = view(DType::kFloat32, {2, 3});
  CHECK_NOTHROW(check_like(view(DType::kFloat32, {2, 3}), "dy", x, "x", "op"));
  CHECK_THROWS_WITH_AS(check_like(view(DType::kFloat32, {3, 2}), "dy", x, "x", "op"),
                       "op: argument 'dy' must have shape (2, 3), got (3, 2)", InvalidArgument);
  CHECK_THROWS_AS(check_like(view(DType::kFloat64, {2, 3}), "dy", x, "x", "op"), TypeMismatch);
  ConstTensorView elsewhere = x;
  elsewhere.device = Device::cuda(0);
  CHECK_THROWS_AS(check_like(elsewhere, "dy", x, "x", "op"), InvalidArgument);
}

TEST_CASE("validate: one number per row") {
  const ConstTensorView x = view(DType::kBFloat16, {2, 3});
  CHECK_NOTHROW(check_row_statistic(view(DType::kFloat32, {2}), "rstd", x, "x", "op"));
  CHECK_THROWS_AS(check_row_statistic(view(DType::kBFloat16, {2}), "rstd", x, "x", "op"),
                  TypeMismatch);
  CHECK_THROWS_WITH_AS(check_row_statistic(view(DType::kFloat32, {3}), "rstd", x, "x", "op"),
                       "op: argument 'rstd' must have shape (2,), got (3,)", InvalidArgument);
  const ConstTensorView wide = view(DType::kFloat64, {2, 3});
  CHECK_THROWS_AS(check_row_statistic(view(DType::kFloat32, {2}), "rstd", wide, "x", "op"),
                  TypeMismatch);
}

TEST_CASE("validate: weight and its offset") {
  const ConstTensorView x = view(DType::kFloat32, {2, 3});
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    CHECK_NOTHROW(check_weight(view(dtype, {3}), "bias", x, "op", "x"));
  }
  CHECK_THROWS_AS(check_weight(view(DType::kInt32, {3}), "weight", x, "op", "x"), TypeMismatch);
  CHECK_THROWS_WITH_AS(check_weight(view(DType::kFloat32, {2}), "weight", x, "op", "rows"),
                       "op: argument 'weight' must have shape (3,), the last axis of 'rows', or "
                       "with three axes and more that "
                       "of its last two, got (2,)",
                       InvalidArgument);
  CHECK_THROWS_AS(check_weight(view(DType::kFloat32, {1, 3}), "weight", x, "op", "x"),
                  InvalidArgument);
  CHECK_NOTHROW(check_weight_offset(1.0, DType::kFloat32, true, "op"));
  CHECK_NOTHROW(check_weight_offset(0.0, DType::kFloat32, false, "op"));
  CHECK_THROWS_AS(check_weight_offset(1.0, DType::kFloat32, false, "op"), InvalidArgument);
  CHECK_THROWS_AS(check_weight_offset(double{NAN}, DType::kFloat32, true, "op"), InvalidArgument);
}

TEST_CASE("validate: only host arrays are carried through a GPU") {
  ConstTensorView x = view(DType::kFloat32, {2, 3});
  CHECK_NOTHROW(check_staged(x, Device::cuda(0), "op", "x"));
  x.device = Device::cuda(0);
  CHECK_THROWS_WITH_AS(
      check_staged(x, Device::cuda(0), "op", "x"),
      "op: argument 'x' must be on the CPU to be carried to cuda:0 and back, got cuda:0",
      InvalidArgument);
}
