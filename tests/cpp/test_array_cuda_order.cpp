// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The CUDA back end of arrays by itself: sorting, indexing, matrix products.
#include <algorithm>
#include <numeric>

#include "array_cuda.hpp"

#if MEMBOUND_WITH_CUDA

namespace membound_test {

TEST_CASE("sort and argsort") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  for (const DType dtype : kArrayDTypes) {
    for (const auto& [rows, length] :
         {std::pair{1, 1}, {1, 1000}, {40, 33}, {3, 20000}, {200, 1}}) {
      for (const bool descending : {false, true}) {
        const Extents shape = {rows, length};
        GpuArray values(dtype, shape, stream), indices(DType::kInt64, shape, stream);
        values.fill(13);
        if (is_floating(dtype) && length > 10) {
          values.set(3, NAN), values.set(5, -0.0), values.set(6, 0.0), values.set(8, -INFINITY);
          values.upload();
        }
        std::vector<std::int64_t> wanted(static_cast<std::size_t>(rows * length));
        for (std::int64_t row = 0; row < rows; ++row) {
          const auto first = wanted.begin() + row * length;
          std::iota(first, first + length, 0);
          std::stable_sort(first, first + length, [&](std::int64_t i, std::int64_t j) {
            const auto number = [&](std::int64_t at) -> long double {
              if (dtype == DType::kUInt64) return values.get<std::uint64_t>(row * length + at);
              return values.get<double>(row * length + at);
            };
            const long double a = number(i), b = number(j);
            if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
            return descending ? a > b : a < b;
          });
        }
        GpuArray given(dtype, shape, stream);
        std::memcpy(given.at(0), values.at(0), wanted.size() * dtype_size(dtype));
        ArraySort sort{values.data(), nullptr, dtype, rows, length, descending};
        cuda::array_sort(sort, stream);
        values.download();
        ArraySort argsort{
            nullptr, static_cast<std::int64_t*>(indices.data()), dtype, rows, length, descending};
        given.upload();
        argsort.values = given.data();
        std::vector<char> before(given.at(0), given.at(0) + wanted.size() * dtype_size(dtype));
        cuda::array_sort(argsort, stream);
        indices.download();
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < rows * length; ++i) {
          const std::int64_t from = i / length * length + wanted[static_cast<std::size_t>(i)];
          wrong += indices.get<std::int64_t>(i) != wanted[static_cast<std::size_t>(i)];
          wrong += std::memcmp(values.at(i), before.data() + from * dtype_size(dtype),
                               dtype_size(dtype)) != 0;
        }
        CHECK_MESSAGE(wrong == 0, name_of(dtype) << " " << rows << " x " << length << " "
                                                 << descending << ": " << wrong);
      }
    }
  }
}

TEST_CASE("offsets of indices, gather and scatter") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  // x[rows, columns] for index arrays of shape (300,), and slices of x[rows].
  GpuArray rows(DType::kInt64, {300}, stream), columns(DType::kInt64, {300}, stream);
  std::mt19937 engine(5);
  for (int i = 0; i < 300; ++i) {
    rows.set(i, static_cast<std::int64_t>(engine() % 40) - 20);
    columns.set(i, static_cast<std::int64_t>(engine() % 31));
  }
  rows.upload(), columns.upload();
  const auto row_of = [&](int i) { return (rows.get<std::int64_t>(i) + 20) % 20; };
  GpuArray offsets(DType::kInt64, {300}, stream);
  ArrayIndexOffsets problem;
  problem.dims = dims_of({300});
  problem.indexed = 2;
  problem.indices[0] = rows.operand();
  problem.indices[1] = columns.operand();
  problem.extents[0] = 20, problem.extents[1] = 31;
  problem.strides[0] = 31, problem.strides[1] = 1;
  problem.offsets = static_cast<std::int64_t*>(offsets.data());
  CHECK(cuda::array_index_offsets(problem, stream).element == -1);
  offsets.download();
  for (int i = 0; i < 300; ++i)
    CHECK(offsets.get<std::int64_t>(i) == row_of(i) * 31 + columns.get<std::int64_t>(i));
  problem.extents[1] = 5;
  GpuArray other(DType::kInt64, {300}, stream);
  problem.offsets = static_cast<std::int64_t*>(other.data());
  const BadIndex bad = cuda::array_index_offsets(problem, stream);
  const auto first = [&] {
    for (int i = 0;; ++i)
      if (columns.get<std::int64_t>(i) >= 5) return i;
  }();
  CHECK(bad.element == first);
  CHECK(bad.axis == 1);
  CHECK(bad.index == columns.get<std::int64_t>(first));
  problem.extents[1] = 31;
  problem.indexed = 1;
  GpuArray starts(DType::kInt64, {300}, stream);
  problem.offsets = static_cast<std::int64_t*>(starts.data());
  CHECK(cuda::array_index_offsets(problem, stream).element == -1);

  for (const DType dtype : kArrayDTypes) {
    GpuArray x(dtype, {20, 31}, stream), picked(dtype, {300}, stream),
        slices(dtype, {300, 31}, stream);
    x.fill(17);
    ArrayGather gather;
    gather.is_scatter = false;
    gather.dims = dims_of({300});
    gather.indexed.data = x.data();
    gather.indexed.dtype = dtype;
    gather.indexed.strides[0] = 0;
    gather.other = picked.operand();
    gather.offsets = static_cast<std::int64_t*>(offsets.data());
    gather.offset_strides[0] = 1;
    cuda::array_gather(gather, stream);
    picked.download();
    bool right = true;
    for (int i = 0; i < 300; ++i)
      right &=
          picked.get<double>(i) == x.get<double>(row_of(i) * 31 + columns.get<std::int64_t>(i));
    CHECK(right);
    // Slices: the second dimension is x's own.
    gather.dims = dims_of({300, 31});
    gather.indexed.strides[1] = 1;
    gather.other = slices.operand();
    gather.offsets = static_cast<std::int64_t*>(starts.data());
    gather.offset_strides[1] = 0;
    cuda::array_gather(gather, stream);
    slices.download();
    for (int i = 0; i < 300; ++i) {
      for (int j = 0; j < 31; ++j)
        right &= slices.get<double>(i * 31 + j) == x.get<double>(row_of(i) * 31 + j);
    }
    CHECK(right);
    // Scatter: of several values for one place the last is written.
    slices.fill(23);
    gather.is_scatter = true;
    cuda::array_gather(gather, stream);
    std::vector<double> wanted(20 * 31);
    for (int i = 0; i < 20 * 31; ++i) wanted[static_cast<std::size_t>(i)] = x.get<double>(i);
    for (int i = 0; i < 300; ++i) {
      for (int j = 0; j < 31; ++j)
        wanted[static_cast<std::size_t>(row_of(i) * 31 + j)] = slices.get<double>(i * 31 + j);
    }
    x.download();
    for (int i = 0; i < 20 * 31; ++i)
      right &= x.get<double>(i) == wanted[static_cast<std::size_t>(i)];
    CHECK_MESSAGE(right, name_of(dtype));
  }
}

TEST_CASE("places of true elements") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  for (const Extents& shape : {Extents{1}, {70000}, {30, 40, 7}}) {
    GpuArray mask(DType::kBool, shape, stream);
    std::mt19937 engine(9);
    for (std::int64_t i = 0; i < mask.size(); ++i) mask.set(i, static_cast<int>(engine() % 3 == 0));
    mask.set(0, 1);
    mask.upload();
    const auto* data = static_cast<const bool*>(mask.data());
    const std::int64_t count = cuda::array_count_true(data, mask.size(), stream);
    std::vector<std::int64_t> wanted;
    for (std::int64_t i = 0; i < mask.size(); ++i)
      if (mask.get<int>(i) != 0) wanted.push_back(i);
    REQUIRE(count == static_cast<std::int64_t>(wanted.size()));
    ArrayNonzero problem;
    problem.mask = data;
    problem.count = count;
    problem.dims = dims_of(shape);
    std::vector<GpuArray> indices;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      indices.emplace_back(DType::kInt64, Extents{count}, stream);
      problem.indices[axis] = static_cast<std::int64_t*>(indices.back().data());
    }
    cuda::array_nonzero(problem, stream);
    bool right = true;
    for (GpuArray& of_axis : indices) of_axis.download();
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t linear = 0;
      for (std::size_t axis = 0; axis < shape.size(); ++axis)
        linear = linear * shape[axis] + indices[axis].get<std::int64_t>(i);
      right &= linear == wanted[static_cast<std::size_t>(i)];
    }
    CHECK(right);
  }
}

TEST_CASE("matrix products") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  struct Case {
    std::int64_t rows, inner, columns;
  };
  const Case cases[] = {{1, 1, 1},      {3, 70, 5},     {64, 64, 64},
                        {130, 33, 257}, {200, 136, 72}, {1, 512, 300}};
  for (const DType dtype : kArrayDTypes) {
    if (dtype == DType::kBool) continue;
    for (const Case& c : cases) {
      for (int layout = 0; layout < 8; ++layout) {
        // Bit 0: a transposed, bit 1: b transposed, bit 2: batches, b's the same for all, and lines
        // that start at no 16-byte boundary.
        const bool batched = (layout & 4) != 0;
        const std::int64_t batch = batched ? 3 : 1, odd = batched ? 1 : 0;
        const auto matrix = [&](std::int64_t rows, std::int64_t cols, bool turned, bool repeats) {
          const std::int64_t leading = (turned ? rows : cols) + odd;
          const std::int64_t size = leading * (turned ? cols : rows);
          Extents strides = {repeats ? 0 : size, turned ? 1 : leading, turned ? leading : 1};
          return GpuArray(dtype, {batch, rows, cols}, strides, odd, stream);
        };
        GpuArray a = matrix(c.rows, c.inner, (layout & 1) != 0, false);
        GpuArray b = matrix(c.inner, c.columns, (layout & 2) != 0, batched);
        GpuArray result(dtype, {batch, c.rows, c.columns}, stream);
        a.fill(31), b.fill(37);
        ArrayMatmul problem;
        problem.dtype = dtype;
        problem.batch = dims_of({batch});
        problem.rows = c.rows, problem.inner = c.inner, problem.columns = c.columns;
        problem.result = result.operand(), problem.a = a.operand(), problem.b = b.operand();
        for (int i = 0; i < 2; ++i) {
          problem.result_strides[i] = problem.result.strides[i + 1];
          problem.a_strides[i] = problem.a.strides[i + 1];
          problem.b_strides[i] = problem.b.strides[i + 1];
        }
        cuda::array_matmul(problem, stream);
        result.download();
        bool right = true;
        for (std::int64_t n = 0; n < batch && right; ++n) {
          for (std::int64_t i = 0; i < c.rows && right; i += 1 + c.rows / 9) {
            for (std::int64_t j = 0; j < c.columns && right; j += 1 + c.columns / 9) {
              double sum = 0, size = 0;
              std::uint64_t wrapped = 0;
              for (std::int64_t k = 0; k < c.inner; ++k) {
                const std::int64_t at_a = (n * c.rows + i) * c.inner + k;
                const std::int64_t at_b = (n * c.inner + k) * c.columns + j;
                const double product = a.get<double>(at_a) * b.get<double>(at_b);
                sum += product, size += std::abs(product);
                wrapped += static_cast<std::uint64_t>(a.get<std::int64_t>(at_a)) *
                           static_cast<std::uint64_t>(b.get<std::int64_t>(at_b));
              }
              const std::int64_t at = (n * c.rows + i) * c.columns + j;
              if (is_floating(dtype)) {
                right = std::abs(result.get<double>(at) - sum) <=
                        tolerance(dtype) * std::abs(sum) + 1e-6 * size;
              } else {
                char item[8];
                write_item(item, dtype, wrapped);
                right = std::memcmp(item, result.at(at), dtype_size(dtype)) == 0;
              }
              if (!right)
                FAIL_CHECK(name_of(dtype)
                           << " " << c.rows << " x " << c.inner << " x " << c.columns << " layout "
                           << layout << " [" << n << ", " << i << ", " << j
                           << "]: " << result.get<double>(at) << ", not " << sum);
            }
          }
        }
      }
    }
  }
}

}  // namespace membound_test

#endif
