// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// A matrix product on arrays, whose views need no copies: c = a b, and its transpose as b^T a^T.
#include <cmath>
#include <cstdio>
#include <exception>

#include "membound/array/elementwise.hpp"
#include "membound/array/linear_algebra.hpp"
#include "membound/array/random.hpp"
#include "membound/array/reduction.hpp"

namespace {

namespace array = membound::array;
using membound::NDArray;

// One element by its definition.
double element(const NDArray& a, const NDArray& b, std::int64_t row, std::int64_t column) {
  const NDArray products = array::multiply(a.index({row}), b.index({membound::Slice{}, column}));
  return array::sum(products).item().real;
}

bool is_right(std::int64_t rows, std::int64_t inner, std::int64_t columns) {
  const array::RandomState state{/*seed=*/7};
  const NDArray a = array::random_normal(state, {rows, inner}, membound::DType::kFloat64);
  const NDArray b = array::random_normal(state, {inner, columns}, membound::DType::kFloat64);
  const NDArray c = array::matmul(a, b);
  const NDArray transposed = array::matmul(b.matrix_transpose(), a.matrix_transpose());
  const NDArray distance = array::abs(array::subtract(c, transposed.matrix_transpose()));
  const double apart = array::max(distance).item().real;
  const double last = c.index({rows - 1, columns - 1}).item().real;
  std::printf("matmul: %s, last element %.6f, transposed product differs by %.1e\n",
              rows == columns ? "square" : "rectangular", last, apart);
  return apart < 1e-12 && std::abs(last - element(a, b, rows - 1, columns - 1)) < 1e-12;
}

}  // namespace

int main() {
  try {
    return is_right(64, 64, 64) && is_right(100, 37, 250) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "matmul: %s\n", error.what());
    return 1;
  }
}
