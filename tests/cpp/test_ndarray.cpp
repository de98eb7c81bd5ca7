// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "membound/array/copy.hpp"
#include "membound/array/elementwise.hpp"
#include "membound/error.hpp"
#include "membound/ndarray.hpp"

using namespace membound;

namespace {

using Dims = NDArray::Dims;

NDArray counted(Dims shape, DType dtype = DType::kInt64) {
  std::int64_t size = 1;
  for (std::int64_t extent : shape) size *= extent;
  return array::arange(0, size, 1, dtype).reshape(std::move(shape));
}

// Elements in C order, read one by one through the strides.
std::vector<double> values_of(const NDArray& x) {
  std::vector<double> values;
  Dims place(x.shape().size());
  for (std::int64_t count = x.size(); count > 0; --count) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < place.size(); ++axis)
      offset += place[axis] * x.strides()[axis];
    values.push_back(static_cast<double>(x.as<std::int64_t>()[offset]));
    for (std::size_t axis = place.size(); axis-- > 0;) {
      if (++place[axis] < x.shape()[axis]) break;
      place[axis] = 0;
    }
  }
  return values;
}

using Values = std::vector<double>;

}  // namespace

TEST_CASE("views share memory and have the right elements") {
  const NDArray x = counted({2, 3, 4});
  CHECK(x.is_contiguous());
  const NDArray transposed = x.permute_dims({2, 0, 1});
  CHECK(transposed.buffer() == x.buffer());
  CHECK(transposed.shape() == Dims{4, 2, 3});
  CHECK(values_of(transposed.index({0})) == Values{0, 4, 8, 12, 16, 20});
  CHECK(values_of(x.index({kEllipsis, Slice{{}, {}, -2}}).index({1, 2})) == Values{23, 21});
  CHECK(values_of(x.index({-1, kNewAxis, Slice{1, 2}})) == Values{16, 17, 18, 19});
  CHECK(x.index({-1, kNewAxis, Slice{1, 2}}).shape() == Dims{1, 1, 4});
  CHECK(values_of(x.index({0, 0}).flip()) == Values{3, 2, 1, 0});
  CHECK(values_of(x.index({0}).diagonal(1)) == Values{1, 6, 11});
  CHECK(values_of(x.index({0}).diagonal(-1)) == Values{4, 9});
  CHECK(values_of(x.index({0, 0, Slice{0, 1}}).broadcast_to({2, 3})) == Values{0, 0, 0, 0, 0, 0});
  CHECK(x.moveaxis(0, -1).shape() == Dims{3, 4, 2});
  CHECK(x.expand_dims(-1).shape() == Dims{2, 3, 4, 1});
  CHECK(x.expand_dims(-1).squeeze({3}).shape() == x.shape());
  CHECK(values_of(x.slice(1, {2, 0, -1}).index({0, kEllipsis, 0})) == Values{8, 4});
  CHECK(x.slice(2, {10, 20}).shape() == Dims{2, 3, 0});
}

TEST_CASE("reshape is a view or refuses") {
  const NDArray x = counted({2, 3, 4});
  CHECK(x.reshape({6, -1}).buffer() == x.buffer());
  CHECK(x.permute_dims({1, 0, 2}).can_reshape({3, 2, 2, 2}));
  CHECK_FALSE(x.permute_dims({1, 0, 2}).can_reshape({6, 4}));
  CHECK_THROWS_AS(x.permute_dims({1, 0, 2}).reshape({24}), InvalidArgument);
  CHECK(values_of(array::reshape_copy(x.permute_dims({2, 0, 1}), {24}).slice(0, {0, 3})) ==
        Values{0, 4, 8});
  const NDArray rows = counted({4, 6}).slice(1, {0, 6, 2});  // strides 6 and 2
  CHECK(values_of(rows.reshape({12}).slice(0, {3, 6})) == Values{6, 8, 10});
  CHECK_THROWS_AS(x.reshape({5, 5}), InvalidArgument);
  CHECK_THROWS_AS(x.reshape({-1, -1}), InvalidArgument);
  CHECK(counted({0, 3}).reshape({3, 0, 2}).size() == 0);
  CHECK(NDArray::full({}, 3, DType::kInt64).reshape({1, 1}).shape() == Dims{1, 1});
}

TEST_CASE("what is out of range is refused") {
  const NDArray x = counted({2, 3});
  CHECK_THROWS_AS(x.index({2}), OutOfRange);
  CHECK_THROWS_AS(x.index({0, -4}), OutOfRange);
  CHECK_THROWS_AS(x.index({0, 0, 0}), OutOfRange);
  CHECK_THROWS_AS(x.index({kEllipsis, kEllipsis}), OutOfRange);
  CHECK_THROWS_AS(x.slice(0, {0, 1, 0}), InvalidArgument);
  CHECK_THROWS_AS(x.permute_dims({0, 0}), InvalidArgument);
  CHECK_THROWS_AS(x.permute_dims({0, 2}), OutOfRange);
  CHECK_THROWS_AS(x.squeeze({0}), InvalidArgument);
  CHECK_THROWS_AS(x.broadcast_to({2, 4}), InvalidArgument);
  CHECK_THROWS_AS(x.as_strided({7}, {1}, 0), InvalidArgument);
  CHECK_THROWS_AS(x.as_strided({2}, {-1}, 0), InvalidArgument);
  CHECK(values_of(x.as_strided({2, 2}, {-3, 1}, 4)) == Values{4, 5, 1, 2});
  CHECK_THROWS_AS(NDArray::empty({1 << 30, 1 << 30, 8}, DType::kInt8), InvalidArgument);
  CHECK_THROWS_AS(NDArray::empty(Dims(65, 1), DType::kInt8), InvalidArgument);
}

TEST_CASE("copies of every layout and pair of dtypes") {
  const DType dtypes[] = {DType::kInt8,    DType::kInt16,    DType::kInt32,   DType::kInt64,
                          DType::kUInt8,   DType::kUInt16,   DType::kUInt32,  DType::kUInt64,
                          DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
  for (const Dims& shape : {Dims{7}, Dims{3, 5}, Dims{70, 33}, Dims{2, 65, 17}, Dims{40, 3, 41}}) {
    for (DType from : dtypes) {
      for (DType to : dtypes) {
        NDArray x = counted(shape);
        // Numbers that every dtype holds.
        x = array::remainder(x, 100).astype(from);
        Dims axes;
        for (int axis = x.rank(); axis-- > 0;) axes.push_back(axis);
        const Values expected = values_of(x.astype(DType::kInt64).permute_dims(axes));
        CAPTURE(std::string(dtype_name(from)) + " to " + dtype_name(to));
        CHECK(values_of(x.permute_dims(axes).astype(to).copy().astype(DType::kInt64)) == expected);
        NDArray reversed = NDArray::empty(x.permute_dims(axes).shape(), to).flip();
        reversed.assign(x.permute_dims(axes));
        CHECK(values_of(reversed.astype(DType::kInt64)) == expected);
      }
    }
  }
}

TEST_CASE("casts at the edges") {
  const NDArray x =
      NDArray::from<double>({-1e10, -1.9, -0.0, 0.7, 300.0, 1e30, double(NAN), INFINITY});
  CHECK(values_of(x.astype(DType::kUInt8).astype(DType::kInt64)) ==
        Values{0, 0, 0, 0, 255, 255, 0, 255});
  CHECK(values_of(x.astype(DType::kInt32).astype(DType::kInt64)) ==
        Values{INT32_MIN, -1, 0, 0, 300, INT32_MAX, 0, INT32_MAX});
  CHECK(values_of(x.astype(DType::kInt64).index({5}))[0] == double(INT64_MAX));
  CHECK(values_of(x.astype(DType::kBool).astype(DType::kInt64)) == Values{1, 1, 0, 1, 1, 1, 1, 1});
  // Rounded once: by way of float32 this would be a tie, and go down.
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;
  CHECK(NDArray::full({1}, above_tie, DType::kBFloat16).item().real == 1 + 0x1p-7);
  CHECK(NDArray::full({1}, 1 + 0x1p-11 + 0x1p-40, DType::kFloat16).item().real == 1 + 0x1p-10);
  CHECK(NDArray::full({1}, 65520.0, DType::kFloat16).item().real == INFINITY);
  CHECK(NDArray::full({1}, -3, DType::kUInt8).item().integer == 253);
}

TEST_CASE("assignments read memory that they share before they write it") {
  NDArray x = counted({10});
  x.slice(0, {1, 10}).assign(x.slice(0, {0, 9}));
  CHECK(values_of(x) == Values{0, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  NDArray square = counted({3, 3});
  square.assign(square.matrix_transpose());
  CHECK(values_of(square) == Values{0, 3, 6, 1, 4, 7, 2, 5, 8});
  NDArray y = counted({6});
  const NDArray turned = y.flip();
  const array::Operand operands[] = {y, turned};
  array::elementwise_into(y, ElementwiseOp::kAdd, operands, 2);
  CHECK(values_of(y) == Values{5, 5, 5, 5, 5, 5});
  NDArray row = counted({1, 3}).broadcast_to({2, 3});
  CHECK_THROWS_AS(row.fill(1), InvalidArgument);
  CHECK_THROWS_AS(x.assign(counted({3})), InvalidArgument);
}

TEST_CASE("wrapped memory stays where it is, and its owner lives as long as a view") {
  std::atomic<int> alive{1};
  std::int64_t memory[6] = {0, 1, 2, 3, 4, 5};
  {
    NDArray last;
    {
      std::shared_ptr<void> owner(&alive,
                                  [](void* count) { --*static_cast<std::atomic<int>*>(count); });
      TensorView view(memory, DType::kInt64, Device::cpu(), {2, 3});
      view.strides[0] = -3;
      view.data = memory + 3;
      const NDArray x = NDArray::wrap(view, std::move(owner), false);
      CHECK(x.data() == memory + 3);
      CHECK(x.offset() == 3);
      CHECK(values_of(x) == Values{3, 4, 5, 0, 1, 2});
      CHECK(x.view().data == memory + 3);
      last = x.index({1, 2});
      CHECK_THROWS_AS(last.fill(1), InvalidArgument);
    }
    CHECK(alive == 1);
    CHECK(last.item().integer == 2);
  }
  CHECK(alive == 0);
  CHECK_THROWS_AS(NDArray::wrap(TensorView(reinterpret_cast<char*>(memory) + 1, DType::kInt64,
                                           Device::cpu(), {2}),
                                nullptr),
                  InvalidArgument);
}

TEST_CASE("no axes, no elements, and as many axes as there may be") {
  const NDArray scalar = NDArray::full({}, 2.5, DType::kFloat64);
  CHECK(scalar.rank() == 0);
  CHECK(array::add(scalar, 1).item().real == 3.5);
  CHECK(scalar.copy().item().real == 2.5);
  const NDArray none = NDArray::empty({0, 3}, DType::kFloat32);
  CHECK(array::add(none, none).shape() == Dims{0, 3});
  CHECK(none.copy().size() == 0);
  CHECK(NDArray().size() == 0);
  Dims many(kMaxRank, 1), axes;
  many[3] = 2;
  many[60] = 3;
  for (int axis = kMaxRank; axis-- > 0;) axes.push_back(axis);
  const NDArray x = counted(many);
  CHECK(values_of(x.permute_dims(axes).copy()) == Values{0, 3, 1, 4, 2, 5});
  CHECK_THROWS_AS(x.expand_dims(0), InvalidArgument);
  Dims deep(20, 2);
  NDArray wide = counted(deep);
  Dims order;
  for (int axis = 20; axis-- > 0;) order.push_back(axis);
  CHECK(wide.permute_dims(order).copy().permute_dims(order).copy().as<std::int64_t>()[12345] ==
        12345);
}

TEST_CASE("a hundred thousand views") {
  NDArray x = counted({100, 100});
  for (int i = 0; i < 100000; ++i) x = x.matrix_transpose();
  CHECK(x.index({3, 5}).item().integer == 305);
  CHECK(x.buffer().use_count() == 1);
}

TEST_CASE("several threads share an array") {
  const NDArray x = counted({1000, 33});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 20; ++i) {
        const NDArray y = array::add(x.matrix_transpose(), thread);
        wrong += y.index({32, 999}).item().integer != 32999 + thread;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
