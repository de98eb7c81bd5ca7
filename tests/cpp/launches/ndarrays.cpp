// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Arrays: every kernel of the CUDA back end, at sizes from one element to 2^33.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/array/functors.hpp"
#include "ops/array/problems.hpp"
#include "sweep.hpp"

namespace membound_test {

namespace {

constexpr DType kDTypes[] = {DType::kBool,   DType::kInt8,    DType::kInt16,    DType::kInt32,
                             DType::kInt64,  DType::kUInt8,   DType::kUInt16,   DType::kUInt32,
                             DType::kUInt64, DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                             DType::kFloat64};

ArrayOperand operand(DType dtype, const std::vector<std::int64_t>& strides, std::int64_t off = 0) {
  static std::uintptr_t last = 0;
  last = (last + 1) % 4000;
  ArrayOperand operand;
  operand.data = reinterpret_cast<void*>(((last + 1) << 40) +
                                         static_cast<std::uintptr_t>(off * size_of(dtype)));
  operand.dtype = dtype;
  std::copy(strides.begin(), strides.end(), operand.strides);
  return operand;
}
ArrayDims dims(const std::vector<std::int64_t>& shape) {
  ArrayDims dims;
  dims.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.shape);
  return dims;
}
const StreamView kStream = StreamView::from_handle(stream_of_calls());

template <class Call>
void for_each_gpu_and_dtype(const char* op, Call call) {
  name_op(op);
  for (int gpu = 0; gpu < kGpuCount; ++gpu) {
    use_gpu(gpu);
    for (const DType dtype : kDTypes) {
      name_problem(dtype_name(dtype));
      call(dtype);
    }
  }
  look_for_faults();
}
constexpr std::int64_t kSizes[] = {1, 5, 1000, 1 << 20, std::int64_t{1} << 33};

}  // namespace

TEST_CASE("array_elementwise and array_copy") {
  for_each_gpu_and_dtype("array_elementwise", [](DType dtype) {
    for (const std::int64_t size : kSizes) {
      for (int operands = 1; operands <= (dtype == DType::kBool ? 2 : 3); ++operands) {
        ArrayElementwise problem;
        problem.op = ElementwiseOp::kAdd;  // kernels have all functions
        problem.operand_count = operands;
        problem.dtype = dtype;
        problem.dims = dims({size});
        problem.result = operand(dtype, {1});
        for (ArrayOperand& one : problem.operands) one = operand(dtype, {1}, 1);
        cuda::array_elementwise(problem, kStream);
      }
      for (const DType to : kDTypes) {
        ArrayCopy copy;
        copy.dims = dims({size, 3});
        copy.result = operand(to, {3, 1});
        copy.source = operand(dtype, {3, 1});
        cuda::array_copy(copy, kStream);
      }
      for (const std::int64_t off : {0, 1}) {
        ArrayCopy copy;
        copy.dims = dims({64, std::clamp<std::int64_t>(size * 8, 8, 1 << 26)});
        copy.result = operand(dtype, {copy.dims.shape[1], 1});
        copy.source = operand(dtype, {1, 64}, off);
        cuda::array_copy(copy, kStream);
      }
    }
  });
}

TEST_CASE("array_reduce and array_scan") {
  for_each_gpu_and_dtype("array_reduce", [](DType dtype) {
    for (const std::int64_t kept : kSizes) {
      for (const std::int64_t reduced : kSizes) {
        if (kept > (std::int64_t{1} << 33) / reduced) continue;
        for (const bool columns : {false, true}) {
          for (int op = 0; op <= static_cast<int>(ReduceOp::kAll); ++op) {
            ArrayReduction problem;
            problem.op = static_cast<ReduceOp>(op);
            if (problem.op == ReduceOp::kSquaredDeviations && !is_floating(dtype)) continue;
            problem.kept = dims({kept});
            problem.reduced = dims({reduced});
            problem.result = operand(DType::kInt64, {1});
            problem.source = operand(dtype, {columns ? 1 : reduced});
            problem.reduced_strides[0] = columns ? kept : 1;
            problem.centre = operand(accumulate_dtype(dtype), {1});
            cuda::array_reduce(problem, kStream);
          }
          for (const ScanOp op : {ScanOp::kSum, ScanOp::kProd}) {
            ArrayScan scan;
            scan.op = op;
            scan.include_initial = false;
            scan.rows = dims({kept});
            scan.length = reduced;
            scan.source = scan.result = operand(dtype, {columns ? 1 : reduced});
            scan.source_stride = scan.result_stride = columns ? kept : 1;
            cuda::array_scan(scan, kStream);
          }
        }
      }
    }
  });
}

TEST_CASE("array_sort, array_search, array_gather and array_nonzero") {
  for_each_gpu_and_dtype("array_sort", [](DType dtype) {
    const ArrayOperand values = operand(dtype, {1}), indices = operand(DType::kInt64, {1});
    auto* places = static_cast<std::int64_t*>(indices.data);
    for (const std::int64_t size : {1, 1000, 1 << 20}) {
      for (const std::int64_t rows : {1, 7}) {
        cuda::array_sort({values.data, nullptr, dtype, rows, size, false}, kStream);
        cuda::array_sort({values.data, places, dtype, rows, size, true}, kStream);
      }
      for (const bool right : {false, true})
        cuda::array_search({values.data, values.data, places, dtype, size, size, right}, kStream);
      for (const bool is_scatter : {false, true}) {
        ArrayGather gather;
        gather.is_scatter = is_scatter;
        gather.dims = dims({size, 4});
        gather.indexed = operand(dtype, {0, 1});
        gather.other = operand(dtype, {4, 1});
        gather.offsets = places;
        gather.offset_strides[0] = 1;
        gather.offset_strides[1] = 0;
        cuda::array_gather(gather, kStream);
      }
      ArrayNonzero nonzero;
      nonzero.mask = static_cast<const bool*>(values.data);
      nonzero.count = 1;
      nonzero.dims = dims({size});
      nonzero.indices[0] = places;
      cuda::array_nonzero(nonzero, kStream);
      ArrayIndexOffsets offsets;
      offsets.dims = dims({size});
      offsets.indexed = 2;
      for (int axis = 0; axis < 2; ++axis) {
        offsets.indices[axis] = operand(DType::kInt64, {1});
        offsets.indices[axis].data = axis == 0 ? nullptr : offsets.indices[axis].data;
        offsets.extents[axis] = 9;
        offsets.strides[axis] = 1;
      }
      offsets.offsets = places;
      allow_waits(true);
      cuda::array_index_offsets(offsets, kStream);
      cuda::array_count_true(nonzero.mask, size, kStream);
      allow_waits(false);
    }
  });
}

TEST_CASE("array_stencil") {
  name_op("array_stencil");
  for (int gpu = 0; gpu < kGpuCount; ++gpu) {
    use_gpu(gpu);
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const std::int64_t length : {1, 40, 1 << 20}) {
        for (const std::int64_t inner : {1, 7, 3000}) {
          for (const std::int64_t taps : {1, 7, 5001}) {
            ArrayStencil stencil;
            stencil.dtype = dtype;
            stencil.boundary = array::Boundary::kReflect;
            stencil.source = operand(dtype, {1}).data;
            stencil.weights = operand(dtype, {1}).data;
            stencil.result = operand(dtype, {1}).data;
            stencil.taps = taps;
            stencil.origin = -taps / 2;
            stencil.outer = 5;
            stencil.length = stencil.result_length = length;
            stencil.inner = inner;
            cuda::array_stencil(stencil, kStream);
            CHECK(cuda::array_stencil_blocks(stencil) <= 1024);
            cuda::array_stencil_dots(stencil, operand(dtype, {1}).data, kStream);
          }
        }
      }
    }
  }
  look_for_faults();
}

TEST_CASE("array_adamw takes one launch for hundreds of parameters") {
  name_op("array_adamw");
  const auto parameters = [](std::int64_t count, DType dtype, DType grad, std::int64_t gap) {
    std::vector<ArrayAdamW> made(static_cast<std::size_t>(count));
    for (ArrayAdamW& one : made) {
      one.dims = dims({5000});
      one.param = operand(dtype, {1});
      one.grad = operand(grad, {gap});
      one.exp_avg = one.exp_avg_sq = operand(accumulate_dtype(dtype), {1});
    }
    return made;
  };
  const AdamWFactors factors = {1, 0.9, 0.999, 1e-3, 1, 1e-8};
  for (int gpu = 0; gpu < kGpuCount; ++gpu) {
    use_gpu(gpu);
    for (const DType dtype :
         {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
      for (const DType grad : {dtype, DType::kFloat32}) {
        for (const auto& [count, launched] : {std::pair{1, 1}, {64, 1}, {640, 1}, {1300, 3}}) {
          const auto made = parameters(count, dtype, grad, 1);
          const std::int64_t before = launches();
          cuda::array_adamw(made.data(), count, factors, kStream);
          CHECK(launches() - before == launched);
        }
        const auto strided = parameters(3, dtype, grad, 2);
        const std::int64_t before = launches();
        cuda::array_adamw(strided.data(), 3, factors, kStream);
        CHECK(launches() - before == 3);
      }
    }
  }
  look_for_faults();
}

TEST_CASE("array_matmul and array_random") {
  setenv("MEMBOUND_CUBLAS", "off", 1);
  for_each_gpu_and_dtype("array_matmul", [](DType dtype) {
    for (const std::int64_t size : {1, 100, 4096}) {
      for (int layout = 0; layout < 4 && dtype != DType::kBool; ++layout) {
        ArrayMatmul matmul;
        matmul.dtype = dtype;
        matmul.batch = dims({2});
        matmul.rows = matmul.columns = matmul.inner = size;
        matmul.result = matmul.a = matmul.b = operand(dtype, {size * size});
        for (int i = 0; i < 2; ++i) {
          matmul.result_strides[i] = i == 0 ? size : 1;
          matmul.a_strides[i] = (i == 0) == ((layout & 1) == 0) ? size : 1;
          matmul.b_strides[i] = (i == 0) == ((layout & 2) == 0) ? size : 1;
        }
        cuda::array_matmul(matmul, kStream);
      }
      if (dtype == DType::kBool) continue;
      ArrayRandom random = {};
      random.kind = is_floating(dtype) ? RandomKind::kNormal : RandomKind::kIntegers;
      random.result = operand(dtype, {1}).data;
      random.dtype = dtype;
      random.count = size * size;
      cuda::array_random(random, kStream);
    }
  });
}

}  // namespace membound_test
