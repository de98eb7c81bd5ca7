// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Functions of arrays against loops over their elements.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "membound/array/adamw.hpp"
#include "membound/array/copy.hpp"
#include "membound/array/elementwise.hpp"
#include "membound/array/indexing.hpp"
#include "membound/array/linear_algebra.hpp"
#include "membound/array/random.hpp"
#include "membound/array/reduction.hpp"
#include "membound/array/sorting.hpp"
#include "membound/array/stencil.hpp"
#include "membound/error.hpp"

using namespace membound;

namespace {

using Dims = NDArray::Dims;
using Values = std::vector<double>;

Values values_of(const NDArray& x) {
  const NDArray flat = x.astype(DType::kFloat64).contiguous();
  return Values(flat.as<double>(), flat.as<double>() + flat.size());
}

NDArray reals(Dims shape, DType dtype, std::uint64_t seed = 1) {
  return array::random_normal({seed, 0}, std::move(shape), dtype);
}

bool same_bits(const NDArray& a, const NDArray& b) {
  const NDArray x = a.contiguous(), y = b.contiguous();
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.bytes())) == 0;
}

// Restores the default number of threads.
struct Threads {
  explicit Threads(int count) { set_cpu_threads(count); }
  ~Threads() { set_cpu_threads(0); }
};

constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 0x1p-10;
    case DType::kBFloat16: return 0x1p-7;
    case DType::kFloat32: return 1e-6;
    default: return 1e-14;
  }
}

}  // namespace

TEST_CASE("element-wise functions of every layout") {
  for (DType dtype : kFloats) {
    const NDArray x = reals({37, 65}, dtype), y = reals({65}, dtype, 2);
    const Values a = values_of(x), b = values_of(y);
    const Values sums = values_of(array::add(x, y));
    const Values turned = values_of(array::add(x.matrix_transpose(), y.expand_dims(1)));
    const Values flipped = values_of(array::subtract(x.flip(), x));
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double sum = a[i] + b[i % 65];
      CHECK(std::abs(sums[i] - sum) <= tolerance(dtype) * std::abs(sum));
      CHECK(turned[i % 65 * 37 + i / 65] == sums[i]);
      const double difference = a[a.size() - 1 - i] - a[i];
      CHECK(std::abs(flipped[i] - difference) <= tolerance(dtype) * std::abs(difference));
    }
  }
}

TEST_CASE("integers wrap, divide down and shift everything out") {
  const NDArray x = NDArray::from<std::int8_t>({-128, -7, -1, 0, 7, 127});
  CHECK(values_of(array::add(x, x)) == Values{0, -14, -2, 0, 14, -2});
  CHECK(values_of(array::negative(x)) == Values{-128, 7, 1, 0, -7, -127});
  CHECK(values_of(array::abs(x)) == Values{-128, 7, 1, 0, 7, 127});
  CHECK(values_of(array::floor_divide(x, 2)) == Values{-64, -4, -1, 0, 3, 63});
  CHECK(values_of(array::floor_divide(x, 0)) == Values{0, 0, 0, 0, 0, 0});
  CHECK(values_of(array::floor_divide(x, -1)) == Values{-128, 7, 1, 0, -7, -127});
  CHECK(values_of(array::remainder(x, -3)) == Values{-2, -1, -1, 0, -2, -2});
  CHECK(values_of(array::bitwise_left_shift(x, 9)) == Values{0, 0, 0, 0, 0, 0});
  CHECK(values_of(array::bitwise_right_shift(x, 9)) == Values{-1, -1, -1, 0, 0, 0});
  CHECK(values_of(array::pow(x, 2)) == Values{0, 49, 1, 0, 49, 1});
  CHECK(values_of(array::less(x, 0)) == Values{1, 1, 1, 0, 0, 0});
  CHECK(values_of(array::sign(x)) == Values{-1, -1, -1, 0, 1, 1});
  CHECK_THROWS_AS(array::add(x, 128), InvalidArgument);
  CHECK(array::add(x, 0.5).dtype() == DType::kFloat64);
}

TEST_CASE("promotion") {
  using array::promote;
  CHECK(promote(DType::kInt8, DType::kUInt8) == DType::kInt16);
  CHECK(promote(DType::kUInt32, DType::kInt8) == DType::kInt64);
  CHECK(promote(DType::kFloat16, DType::kBFloat16) == DType::kFloat32);
  CHECK(promote(DType::kInt64, DType::kFloat32) == DType::kFloat32);
  CHECK(promote(DType::kBool, DType::kUInt16) == DType::kUInt16);
  CHECK_THROWS_AS(promote(DType::kUInt64, DType::kInt8), TypeMismatch);
  const NDArray x = NDArray::from<std::int32_t>({1, 2, 3}),
                y = NDArray::from<std::int8_t>({-1, 0, 1});
  CHECK(values_of(array::multiply(x, y)) == Values{-1, 0, 3});
  CHECK_THROWS_AS(array::add(array::less(x, 2), array::less(x, 3)), TypeMismatch);
  CHECK_THROWS_AS(array::bitwise_and(x, 1.5), TypeMismatch);
  CHECK_THROWS_AS(array::elementwise_op("nothing"), InvalidArgument);
}

TEST_CASE("special values of floats") {
  const NDArray x = NDArray::from<double>({-INFINITY, -0.0, 0.5, double(NAN)});
  CHECK(values_of(array::isnan(x)) == Values{0, 0, 0, 1});
  CHECK(values_of(array::isfinite(x)) == Values{0, 1, 1, 0});
  CHECK(values_of(array::isinf(x)) == Values{1, 0, 0, 0});
  CHECK(values_of(array::signbit(x)) == Values{1, 1, 0, 0});
  CHECK(std::isnan(array::maximum(x, 1.0).index({3}).item().real));
  CHECK(std::isnan(array::minimum(1.0, x).index({3}).item().real));
  CHECK(std::isnan(array::clip(x, 0.0, 1.0).index({3}).item().real));
  CHECK(array::floor_divide(NDArray::from<double>({INFINITY}), 2.0).item().real == INFINITY);
  CHECK(array::remainder(NDArray::from<double>({-1.0}), INFINITY).item().real == INFINITY);
  CHECK(array::logaddexp(NDArray::from<double>({-INFINITY}), -INFINITY).item().real == -INFINITY);
  CHECK(array::round(NDArray::from<double>({2.5})).item().real == 2);
  const NDArray picked = array::where(array::isnan(x), 7.0, x);
  CHECK(picked.index({3}).item().real == 7);
  CHECK(std::signbit(picked.index({1}).item().real));
}

TEST_CASE("transcendental functions against libm") {
  using Function = double (*)(double);
  const struct {
    ElementwiseOp op;
    Function exact;
  } cases[] = {
      {ElementwiseOp::kExp, std::exp},     {ElementwiseOp::kLog, std::log},
      {ElementwiseOp::kTanh, std::tanh},   {ElementwiseOp::kSin, std::sin},
      {ElementwiseOp::kCos, std::cos},     {ElementwiseOp::kSqrt, std::sqrt},
      {ElementwiseOp::kExpm1, std::expm1}, {ElementwiseOp::kLog1p, std::log1p},
      {ElementwiseOp::kAtan, std::atan},   {ElementwiseOp::kSinh, std::sinh},
  };
  for (DType dtype : kFloats) {
    const NDArray x = array::add(array::abs(reals({999}, dtype)), 0.01);
    const Values a = values_of(x);
    for (const auto& [op, exact] : cases) {
      const Values found = values_of(array::elementwise(op, {x}));
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double expected = exact(a[i]);
        CHECK(std::abs(found[i] - expected) <= tolerance(dtype) * (std::abs(expected) + 1e-3));
      }
    }
  }
}

TEST_CASE("reductions over any axes, with the same bits for any number of threads") {
  for (DType dtype : kFloats) {
    const NDArray x = reals({23, 70, 41}, dtype);
    const Values a = values_of(x);
    const double error = dtype == DType::kFloat64 ? 1e-13 : 40 * tolerance(dtype);
    for (const Dims& axes : {Dims{0}, Dims{1}, Dims{2}, Dims{0, 2}, Dims{0, 1, 2}, Dims{1, 2}}) {
      array::ReduceOptions options{axes, true, {}, 0};
      const NDArray sum = array::sum(x, options);
      const NDArray spread = sum.broadcast_to(sum.shape());
      Values expected(static_cast<std::size_t>(sum.size()));
      Dims shape = sum.shape();
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const std::int64_t place[] = {i / 2870, i / 41 % 70, i % 41};
        std::int64_t at = 0;
        for (int axis = 0; axis < 3; ++axis)
          at = at * shape[static_cast<std::size_t>(axis)] +
               (shape[static_cast<std::size_t>(axis)] == 1 ? 0 : place[axis]);
        expected[static_cast<std::size_t>(at)] += a[static_cast<std::size_t>(i)];
      }
      const Values found = values_of(spread);
      for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(std::abs(found[i] - expected[i]) <= error * (1 + std::abs(expected[i])));
      const Threads one(1);
      CHECK(same_bits(array::sum(x, options), sum));
    }
    // Along one axis bits do not depend on strides.
    const array::ReduceOptions first{Dims{0}, false, {}, 0}, last{Dims{1}, false, {}, 0};
    const NDArray y = reals({3000, 7}, dtype);
    CHECK(same_bits(array::sum(y, first), array::sum(y.matrix_transpose().copy(), last)));
    CHECK(same_bits(array::sum(y.flip({0}), first), array::sum(y.flip({0}).copy(), first)));
  }
}

TEST_CASE("long sums are shared out without a change of bits") {
  const NDArray x = reals({1000003}, DType::kFloat32);
  set_cpu_threads(3);
  const NDArray shared = array::sum(x),
                wide = array::sum(x.reshape({1000003, 1}).broadcast_to({1000003, 2}),
                                  {Dims{0}, false, {}, 0});
  set_cpu_threads(1);
  CHECK(same_bits(shared, array::sum(x)));
  CHECK(same_bits(shared, wide.index({1})));
  set_cpu_threads(0);
  const Values a = values_of(x);
  CHECK(std::abs(shared.item().real - std::accumulate(a.begin(), a.end(), 0.0)) < 0.05);
}

TEST_CASE("other reductions") {
  const NDArray x = NDArray::from<std::int32_t>({3, -1, 7, 7, -1, 0}).reshape({2, 3});
  const array::ReduceOptions rows{Dims{1}, false, {}, 0}, columns{Dims{0}, false, {}, 0};
  CHECK(array::sum(x).dtype() == DType::kInt64);
  CHECK(values_of(array::sum(x, rows)) == Values{9, 6});
  CHECK(values_of(array::reduce(array::Reduction::kProd, x, columns)) == Values{21, 1, 0});
  CHECK(values_of(array::max(x, rows)) == Values{7, 7});
  CHECK(values_of(array::reduce(array::Reduction::kArgMax, x, {})) == Values{2});
  CHECK(values_of(array::reduce(array::Reduction::kArgMin, x, columns)) == Values{0, 0, 1});
  CHECK(values_of(array::reduce(array::Reduction::kAny, x, columns)) == Values{1, 1, 1});
  CHECK(values_of(array::reduce(array::Reduction::kAll, x, columns)) == Values{1, 1, 0});
  CHECK(values_of(array::reduce(array::Reduction::kCountNonzero, x, rows)) == Values{3, 2});
  CHECK(values_of(array::mean(x, rows)) == Values{3, 2});
  CHECK(values_of(array::reduce(array::Reduction::kVar, x, rows))[0] == doctest::Approx(32.0 / 3));
  array::ReduceOptions corrected = rows;
  corrected.correction = 1;
  CHECK(values_of(array::reduce(array::Reduction::kVar, x, corrected))[0] == 16);
  const NDArray none = NDArray::empty({2, 0}, DType::kFloat32);
  CHECK(values_of(array::sum(none, rows)) == Values{0, 0});
  CHECK(values_of(array::reduce(array::Reduction::kProd, none, rows)) == Values{1, 1});
  CHECK(values_of(array::reduce(array::Reduction::kAll, none, rows)) == Values{1, 1});
  CHECK(std::isnan(values_of(array::mean(none, rows))[0]));
  CHECK_THROWS_AS(array::max(none, rows), InvalidArgument);
  const NDArray y = NDArray::from<float>({1, NAN, 3});
  CHECK(std::isnan(array::max(y).item().real));
  CHECK(array::reduce(array::Reduction::kArgMax, y).item().integer == 1);
  CHECK(values_of(array::sum(array::less(x, 1), rows)) == Values{1, 2});
}

TEST_CASE("scans") {
  for (DType dtype : {DType::kInt16, DType::kFloat32, DType::kBFloat16}) {
    const NDArray x =
        array::remainder(array::arange(0, 120, 1, DType::kInt64), 5).astype(dtype).reshape({4, 30});
    const Values a = values_of(x);
    for (int axis : {0, 1}) {
      for (bool initial : {false, true}) {
        const NDArray sums = array::cumulative_sum(x, axis, {}, initial);
        const NDArray turned =
            array::cumulative_sum(x.matrix_transpose(), 1 - axis, {}, initial).matrix_transpose();
        CHECK(same_bits(sums, turned));
        double total = 0;
        for (int i = 0; i < (axis == 0 ? 4 : 30); ++i) {
          total += a[static_cast<std::size_t>(axis == 0 ? i * 30 + 3 : 30 + i)];
          const std::int64_t at = i + initial;
          CHECK(values_of(axis == 0 ? sums.index({at, 3}) : sums.index({1, at}))[0] == total);
        }
        if (initial) CHECK(values_of(sums.index({0, 0}))[0] == 0);
      }
    }
  }
  CHECK(values_of(array::cumulative_prod(NDArray::from<std::int8_t>({2, 3, -4}), 0)) ==
        Values{2, 6, -24});
}

TEST_CASE("sorts are stable and put NaNs last") {
  const NDArray x = array::remainder(
      array::random_integers({5, 0}, {3, 1000}, DType::kInt32, Device::cpu(), -500, 1000), 50);
  for (DType dtype : {DType::kInt8, DType::kInt64, DType::kUInt16, DType::kFloat16, DType::kFloat32,
                      DType::kFloat64}) {
    for (bool descending : {false, true}) {
      const NDArray y = x.astype(dtype);
      const NDArray order = array::argsort(y, 1, descending),
                    sorted = array::sort(y, 1, descending);
      CHECK(same_bits(array::take_along_axis(y, order, 1), sorted));
      CHECK(same_bits(array::sort(y.matrix_transpose(), 0, descending).matrix_transpose(), sorted));
      const Values a = values_of(sorted.index({2})), at = values_of(order.index({2}));
      for (std::size_t i = 1; i < a.size(); ++i) {
        CHECK((descending ? a[i - 1] >= a[i] : a[i - 1] <= a[i]));
        if (a[i - 1] == a[i]) CHECK(at[i - 1] < at[i]);
      }
    }
  }
  const NDArray special = NDArray::from<float>({NAN, 0.0f, -INFINITY, -0.0f, 1.0f, -1.0f});
  CHECK(values_of(array::argsort(special)) == Values{2, 5, 1, 3, 4, 0});
  CHECK(values_of(array::argsort(special, 0, true)) == Values{4, 1, 3, 5, 2, 0});
  CHECK(std::isnan(array::sort(special, 0, true).index({5}).item().real));
}

TEST_CASE("elements enter a sorted vector before or after equal ones, NaNs last") {
  const NDArray vector = NDArray::from<float>({-INFINITY, -0.0f, 0.0f, 2.0f, 2.0f, NAN, NAN}),
                wanted = NDArray::from<float>({NAN, 2.0f, -1.0f, 0.0f, 9.0f}).reshape({5, 1});
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    const NDArray sorted = vector.astype(dtype);
    const NDArray left = array::searchsorted(sorted, wanted.astype(dtype));
    CHECK(left.shape() == Dims{5, 1});
    CHECK(values_of(left) == Values{5, 3, 1, 1, 5});
    CHECK(values_of(array::searchsorted(sorted, wanted.astype(dtype), true)) ==
          Values{7, 5, 1, 3, 5});
  }
  const NDArray few = NDArray::from<std::int8_t>({7, -3}).flip({0});
  CHECK(values_of(array::searchsorted(few, NDArray::from<std::int8_t>({-4, 7, 8}))) ==
        Values{0, 1, 2});
  CHECK(values_of(array::searchsorted(few.slice(0, {0, 0, 1}), few)) == Values{0, 0});
  CHECK_THROWS_AS(array::searchsorted(few, wanted), TypeMismatch);
  CHECK_THROWS_AS(array::searchsorted(wanted, wanted), InvalidArgument);
}

TEST_CASE("index arrays read and write, within their range") {
  NDArray x = array::arange(0, 60, 1, DType::kFloat32).reshape({3, 4, 5});
  const NDArray i = NDArray::from<std::int64_t>({2, -1, 0}),
                j = NDArray::from<std::int8_t>({1, 0, -4});
  const NDArray picked = array::gather(x, {i, j}, 0);
  CHECK(picked.shape() == Dims{3, 5});
  CHECK(values_of(picked.index({kEllipsis, 0})) == Values{45, 40, 0});
  const NDArray grid = array::gather(x.matrix_transpose(), {i.reshape({3, 1}), j}, 1);
  CHECK(grid.shape() == Dims{3, 3, 3});
  CHECK(values_of(grid.index({1, 0})) == Values{20 + 5 + 2, 20 + 2, 20 + 2});
  CHECK(values_of(array::take(x, NDArray::from<std::int32_t>({4, 0}), 2).index({2, 3})) ==
        Values{59, 55});
  CHECK_THROWS_AS(array::take(x, NDArray::from<std::int32_t>({5}), 2), OutOfRange);
  CHECK_THROWS_AS(array::take(x, NDArray::from<std::int32_t>({-6}), 2), OutOfRange);
  CHECK_THROWS_AS(array::take(x, NDArray::from<float>({0}), 2), TypeMismatch);
  array::scatter(x, {NDArray::from<std::int64_t>({1, 1})}, 1,
                 NDArray::from<double>({-1, -2}).reshape({2, 1}));
  CHECK(values_of(x.index({2, 1})) == Values{-2, -2, -2, -2, -2});
  const std::vector<NDArray> places = array::nonzero(array::less(x, 0));
  CHECK(places.size() == 3);
  CHECK(values_of(places[0]) == Values{0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2});
  CHECK(values_of(places[2].slice(0, {3, 6})) == Values{3, 4, 0});
}

TEST_CASE("matrix products of every dtype and layout") {
  for (DType dtype : {DType::kInt8, DType::kInt32, DType::kUInt64, DType::kFloat16,
                      DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const auto& [rows, inner, columns] :
         std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
             {1, 1, 1}, {5, 7, 3}, {33, 300, 65}, {97, 2, 130}, {6, 513, 16}}) {
      const auto small = [&](Dims shape, std::uint64_t seed) {
        return array::random_integers({seed, 0}, std::move(shape), DType::kInt32, Device::cpu(), 0,
                                      4)
            .astype(dtype);
      };
      const NDArray a = small({rows, inner}, 3), b = small({columns, inner}, 4).matrix_transpose();
      const NDArray c = array::matmul(a, b);
      CHECK(c.dtype() == dtype);
      for (std::int64_t i = 0; i < rows; i += 7) {
        for (std::int64_t j = 0; j < columns; j += 5) {
          double sum = 0;
          const Values x = values_of(a.index({i})), y = values_of(b.index({Slice{}, j}));
          for (std::size_t p = 0; p < x.size(); ++p) sum += x[p] * y[p];
          const NDArray expected = NDArray::full({1}, static_cast<std::int64_t>(sum), dtype);
          CHECK(values_of(c.index({i, j})) == values_of(expected));
        }
      }
      const NDArray batched = array::matmul(a.expand_dims(0).broadcast_to({2, rows, inner}), b);
      CHECK(same_bits(batched.index({1}), c));
      CHECK(same_bits(array::matmul(a.index({0}), b), c.index({0})));
      const Threads one(1);
      CHECK(same_bits(array::matmul(a, b), c));
    }
  }
  CHECK_THROWS_AS(array::matmul(NDArray::zeros({2, 3}, DType::kFloat32),
                                NDArray::zeros({2, 3}, DType::kFloat32)),
                  InvalidArgument);
  CHECK(values_of(array::matmul(NDArray::zeros({2, 0}, DType::kFloat32),
                                NDArray::zeros({0, 1}, DType::kFloat32))) == Values{0, 0});
}

TEST_CASE("random numbers depend on seed, counter and place alone") {
  // Known answers of the authors of Philox: counter and key all zero.
  const NDArray bits = array::random_bits({0, 0}, {2});
  CHECK(bits.index({0}).item().natural == 0xe169c58d6627e8d5);
  CHECK(bits.index({1}).item().natural == 0x9b00dbd8bc57ac4c);
  const NDArray x = array::random_uniform({7, 100}, {1000}, DType::kFloat32);
  CHECK(same_bits(array::random_uniform({7, 101}, {996}, DType::kFloat32), x.slice(0, {4, 1000})));
  for (double value : values_of(x)) CHECK((value >= 0 && value < 1));
  const NDArray normal = array::random_normal({7, 0}, {100000}, DType::kFloat64);
  CHECK(std::abs(array::mean(normal).item().real) < 0.02);
  CHECK(std::abs(array::reduce(array::Reduction::kVar, normal).item().real - 1) < 0.02);
  const NDArray dice = array::random_integers({1, 0}, {6000}, DType::kInt8, Device::cpu(), 1, 6);
  CHECK(array::min(dice).item().integer == 1);
  CHECK(array::max(dice).item().integer == 6);
  const Threads one(1);
  CHECK(same_bits(array::random_normal({7, 0}, {100000}, DType::kFloat64), normal));
}

TEST_CASE("adamw follows its formula, in place, for any number of threads") {
  const array::AdamWOptions options{0.1, 0.9, 0.99, 1e-3, 0.5, 2};
  const auto fresh = [](std::int64_t size) {
    return array::AdamWParameter{
        reals({size}, DType::kFloat32, 1), reals({size}, DType::kFloat32, 2),
        reals({size}, DType::kFloat32, 3), array::square(reals({size}, DType::kFloat32, 4))};
  };
  std::vector<array::AdamWParameter> all{fresh(5), fresh(100001)}, before, other;
  for (const array::AdamWParameter& of : all) {
    before.push_back({of.param.copy(), of.grad, of.exp_avg.copy(), of.exp_avg_sq.copy()});
    other.push_back({of.param.copy(), of.grad, of.exp_avg.copy(), of.exp_avg_sq.copy()});
  }
  array::adamw(all, options);
  const Values p = values_of(before[1].param), g = values_of(before[1].grad);
  const Values m = values_of(before[1].exp_avg), v = values_of(before[1].exp_avg_sq);
  const Values result = values_of(all[1].param), mean = values_of(all[1].exp_avg);
  for (std::size_t i = 0; i < p.size(); i += 997) {
    const double exp_avg = 0.9 * m[i] + 0.1 * g[i], square = 0.99 * v[i] + 0.01 * g[i] * g[i];
    const double step = 0.1 / (1 - 0.81) * exp_avg / (std::sqrt(square / (1 - 0.9801)) + 1e-3);
    CHECK(mean[i] == doctest::Approx(exp_avg).epsilon(1e-6));
    CHECK(result[i] == doctest::Approx(0.95 * p[i] - step).epsilon(1e-5));
  }
  const Threads one(1);
  array::adamw(other, options);
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_bits(all[i].param, other[i].param));
  other[0].exp_avg = other[0].param;
  CHECK_THROWS_AS(array::adamw(other, options), InvalidArgument);
}

TEST_CASE("stencil_1d and its gradients against loops") {
  using array::Boundary;
  constexpr Boundary kBoundaries[] = {Boundary::kValid, Boundary::kZero, Boundary::kNearest,
                                      Boundary::kReflect, Boundary::kWrap};
  constexpr std::int64_t kLength = 300, kInner = 5, kRadius = 2, kTaps = 2 * kRadius + 1;
  const NDArray x = reals({kLength, kInner}, DType::kFloat64, 1);
  const NDArray w = reals({kTaps}, DType::kFloat64, 2);
  const Values values = values_of(x), weights = values_of(w);
  for (Boundary boundary : kBoundaries) {
    const bool valid = boundary == Boundary::kValid;
    const std::int64_t length = valid ? kLength - 2 * kRadius : kLength;
    const NDArray dy = reals({length, kInner}, DType::kFloat64, 3);
    const Values gradient = values_of(dy);
    Values y(gradient.size()), dx(values.size()), dw(kTaps);
    for (std::int64_t i = 0; i < length; ++i) {
      for (std::int64_t k = 0; k < kTaps; ++k) {
        std::int64_t j = i + k - (valid ? 0 : kRadius);
        if (boundary == Boundary::kZero && (j < 0 || j >= kLength)) continue;
        if (boundary == Boundary::kNearest) j = std::clamp<std::int64_t>(j, 0, kLength - 1);
        if (boundary == Boundary::kReflect)
          j = j < 0 ? -1 - j : j < kLength ? j : 2 * kLength - 1 - j;
        if (boundary == Boundary::kWrap) j = (j + kLength) % kLength;
        for (std::int64_t c = 0; c < kInner; ++c) {
          const auto to = static_cast<std::size_t>(i * kInner + c);
          const auto from = static_cast<std::size_t>(j * kInner + c);
          const auto tap = static_cast<std::size_t>(k);
          y[to] += weights[tap] * values[from];
          dx[from] += weights[tap] * gradient[to];
          dw[tap] += gradient[to] * values[from];
        }
      }
    }
    const auto check = [](const NDArray& found, const Values& expected) {
      const Values own = values_of(found);
      REQUIRE(own.size() == expected.size());
      for (std::size_t i = 0; i < own.size(); ++i)
        CHECK(own[i] == doctest::Approx(expected[i]).epsilon(1e-12));
    };
    const array::StencilOptions options{0, boundary};
    check(array::stencil_1d(x, w, options), y);
    const array::StencilGradients gradients = array::stencil_1d_backward(dy, x, w, options);
    check(gradients.dx, dx);
    check(gradients.dweights, dw);
    const Threads one(1);
    CHECK(same_bits(array::stencil_1d_backward(dy, x, w, options).dweights, gradients.dweights));
  }
  CHECK_THROWS_AS(array::stencil_1d(x, reals({4}, DType::kFloat64)), InvalidArgument);
}
