// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "membound/tensor_view.hpp"

using namespace membound;

TEST_CASE("tensor_view: a contiguous view") {
  float data[24];
  const TensorView view(data, DType::kFloat32, Device::cpu(), {2, 3, 4});
  CHECK(view.rank == 3);
  CHECK(view.size() == 24);
  CHECK(view.strides[0] == 12);
  CHECK(view.strides[1] == 4);
  CHECK(view.strides[2] == 1);
  const ConstTensorView as_input = view;
  CHECK(as_input.data == data);
  CHECK(as_input.shape[2] == 4);
}

TEST_CASE("tensor_view: no axis holds one element, an empty one none") {
  CHECK(TensorView(nullptr, DType::kFloat32, Device::cpu(), {}).size() == 1);
  CHECK(TensorView(nullptr, DType::kFloat32, Device::cpu(), {3, 0}).size() == 0);
}

TEST_CASE("tensor_view: sizes beyond 2^32") {
  const TensorView view(nullptr, DType::kFloat32, Device::cpu(), {1 << 20, 1 << 20});
  CHECK(view.size() == std::int64_t{1} << 40);
}

TEST_CASE("tensor_view: copies are equal and independent") {
  TensorView view(nullptr, DType::kFloat16, Device::cuda(2), {5, 6});
  TensorView copy = view;
  view.shape[0] = 7;
  CHECK(copy.shape[0] == 5);
  CHECK(copy.dtype == DType::kFloat16);
  CHECK(copy.device == Device::cuda(2));
}
