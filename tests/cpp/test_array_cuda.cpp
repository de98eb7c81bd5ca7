// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The CUDA back end of arrays by itself, against plain loops: elements, copies, reductions, scans.
#include "array_cuda.hpp"

#if MEMBOUND_WITH_CUDA

namespace membound_test {

namespace {

struct Layout {
  const char* name;
  Extents shape, strides;
  std::int64_t lead;
};
const Layout kShapes[] = {
    {"contiguous", {2000}, {1}, 0},         {"one element off", {1003}, {1}, 1},
    {"every second", {501}, {2}, 0},        {"reversed", {37, 50}, {50, -1}, 0},
    {"rows", {33, 52}, {64, 1}, 0},         {"odd rows", {33, 51}, {53, 1}, 0},
    {"repeated rows", {9, 64}, {0, 1}, 0},  {"repeated columns", {40, 33}, {1, 0}, 0},
    {"permuted", {5, 6, 7}, {1, 35, 5}, 0}, {"one", {}, {}, 0},
};

template <class F, int kOperands, class A>
auto call(const A (&x)[3]) {
  if constexpr (kOperands == 1) return F::apply(x[0]);
  if constexpr (kOperands == 2) return F::apply(x[0], x[1]);
  if constexpr (kOperands == 3) return F::apply(x[0], x[1], x[2]);
}

template <class F, int kOperands, functors::Types kTypes>
void check_function(ElementwiseOp op, DType dtype, bool predicate, const Layout& layout,
                    bool scalar, StreamView stream) {
  constexpr bool kWhere = scalar::kSameType<F, functors::Where>;
  GpuArray result(predicate ? DType::kBool : dtype, layout.shape, stream);
  std::vector<GpuArray> operands;
  for (int k = 0; k < kOperands; ++k) {
    const bool is_mask = kWhere && k == 0;
    operands.emplace_back(is_mask ? DType::kBool : dtype, layout.shape, layout.strides, layout.lead,
                          stream);
    operands.back().fill(static_cast<std::uint32_t>(k + 1));
  }
  ArrayElementwise problem;
  problem.op = op;
  problem.operand_count = kOperands;
  problem.dtype = dtype;
  problem.dims = dims_of(layout.shape);
  problem.result = result.operand();
  for (int k = 0; k < kOperands; ++k) problem.operands[k] = operands[k].operand();
  if (scalar) {
    problem.operands[kOperands - 1].data = nullptr;
    std::memcpy(problem.operands[kOperands - 1].scalar, operands[kOperands - 1].at(0),
                dtype_size(dtype));
  }
  cuda::array_elementwise(problem, stream);
  result.download();
  with_arithmetic(dtype, [&]<class A>() {
    for (std::int64_t i = 0; i < result.size(); ++i) {
      A x[3] = {};
      for (int k = 0; k < kOperands; ++k)
        x[k] = operands[k].get<A>(scalar && k + 1 == kOperands ? 0 : i);
      A wanted{};
      if constexpr (functors::takes<A>(kTypes)) wanted = static_cast<A>(call<F, kOperands>(x));
      char rounded[8];
      write_item(rounded, result.dtype(), wanted);
      const A expected = read_item<A>(rounded, result.dtype()), got = result.get<A>(i);
      const double relative = tolerance(result.dtype());
      if (is_near(got, expected, relative)) continue;
      // A logarithm near 0 has the error of its terms.
      const double terms = std::abs(double(x[0])) + std::abs(double(x[1]));
      if (op == ElementwiseOp::kLogAddExp &&
          std::abs(double(got) - double(expected)) <= relative * terms)
        continue;
      FAIL_CHECK("op " << static_cast<int>(op) << " " << name_of(dtype) << " "
                       << std::string(layout.name) << std::string(scalar ? " scalar" : "") << " ["
                       << i << "]: " << double(got) << ", not " << double(expected) << " of "
                       << double(x[0]) << " " << double(x[1]) << " " << double(x[2]));
      return;
    }
  });
}

bool takes(DType dtype, functors::Types types) {
  bool result = false;
  with_arithmetic(dtype, [&]<class A>() { result = functors::takes<A>(types); });
  return result;
}

}  // namespace

TEST_CASE("every function in every dtype and layout") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  for (const DType dtype : kArrayDTypes) {
    for (const Layout& layout : kShapes) {
      for (const bool scalar : {false, true}) {
#define MEMBOUND_CASE(Name_, operands_, types_, result_)                   \
  if (takes(dtype, functors::Types::types_) && (!scalar || operands_ > 1)) \
    check_function<functors::Name_, operands_, functors::Types::types_>(   \
        ElementwiseOp::k##Name_, dtype, std::string(#result_) == "kBool", layout, scalar, stream);
        MEMBOUND_ARRAY_FUNCTORS(MEMBOUND_CASE)
#undef MEMBOUND_CASE
      }
    }
  }
}

TEST_CASE("copies between all dtypes") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  for (const DType from : kArrayDTypes) {
    for (const DType to : kArrayDTypes) {
      for (const Layout& layout : kShapes) {
        GpuArray source(from, layout.shape, layout.strides, layout.lead, stream);
        GpuArray result(to, layout.shape, stream);
        source.fill(3);
        ArrayCopy copy;
        copy.dims = dims_of(layout.shape);
        copy.result = result.operand();
        copy.source = source.operand();
        cuda::array_copy(copy, stream);
        result.download();
        for (std::int64_t i = 0; i < result.size(); ++i) {
          // Floats become integers towards zero, and unsigned ones are not negative.
          double wanted = source.get<double>(i);
          if (!is_floating(to) && to != DType::kBool && is_floating(from)) {
            wanted = std::trunc(wanted);
            if (to == DType::kUInt8 || to == DType::kUInt16 || to == DType::kUInt32 ||
                to == DType::kUInt64)
              wanted = std::max(wanted, 0.0);
          }
          char item[8];
          if (is_floating(from) || is_floating(to) || to == DType::kBool) {
            write_item(item, to, wanted);
          } else {
            write_item(item, to, source.get<std::int64_t>(i));
          }
          const double expected = read_item<double>(item, to);
          if (result.get<double>(i) == expected) continue;
          FAIL_CHECK(name_of(from)
                     << " to " << name_of(to) << " " << std::string(layout.name) << " [" << i
                     << "]: " << result.get<double>(i) << ", not " << expected);
          break;
        }
      }
    }
  }
}

TEST_CASE("fills") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  for (const DType dtype : kArrayDTypes) {
    for (const std::int64_t size : {1, 7, 64, 4099}) {
      GpuArray result(dtype, {size}, stream);
      ArrayCopy copy;
      copy.dims = dims_of({size});
      copy.result = result.operand();
      copy.source.dtype = dtype;
      write_item(reinterpret_cast<char*>(copy.source.scalar), dtype, 1);
      cuda::array_copy(copy, stream);
      result.download();
      std::int64_t right = 0;
      for (std::int64_t i = 0; i < size; ++i) right += result.get<double>(i) == 1;
      CHECK_MESSAGE(right == size, name_of(dtype) << " " << size);
    }
  }
}

TEST_CASE("permuted copies") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  const Extents shapes[] = {{64, 64},    {128, 256},  {65, 130},    {33, 1000},
                            {3, 40, 56}, {40, 3, 56}, {16, 20, 24}, {5, 300, 12, 2}};
  for (const DType dtype : {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const Extents& shape : shapes) {
      std::vector<std::size_t> order(shape.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      do {
        for (const std::int64_t lead : {0, 1}) {
          const Extents dense = Array::contiguous(shape);
          Extents permuted, strides;
          for (const std::size_t axis : order) {
            permuted.push_back(shape[axis]);
            strides.push_back(dense[axis]);
          }
          GpuArray source(dtype, permuted, strides, lead, stream), result(dtype, permuted, stream);
          source.fill(5);
          ArrayCopy copy;
          copy.dims = dims_of(permuted);
          copy.result = result.operand();
          copy.source = source.operand();
          cuda::array_copy(copy, stream);
          result.download();
          std::int64_t wrong = 0;
          for (std::int64_t i = 0; i < result.size(); ++i)
            wrong += result.get<double>(i) != source.get<double>(i);
          CHECK_MESSAGE(wrong == 0, name_of(dtype) << " lead " << lead << ": " << wrong << " of "
                                                   << result.size() << ", rank " << permuted.size()
                                                   << ", first extent " << permuted[0]);
        }
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

namespace {

struct Reduction {
  Extents kept, reduced;                  // shapes
  Extents kept_strides, reduced_strides;  // of the source
};
const Reduction kReductions[] = {
    {{}, {1}, {}, {1}},
    {{}, {1000}, {}, {1}},
    {{}, {300001}, {}, {1}},
    {{}, {70, 80}, {}, {96, 1}},
    {{}, {501}, {}, {-3}},
    {{100}, {3}, {3}, {1}},
    {{50}, {260}, {260}, {1}},
    {{3}, {100000}, {100000}, {1}},
    {{260}, {50}, {1}, {260}},
    {{7}, {20000}, {1}, {7}},
    {{130}, {33}, {1}, {131}},
    {{6, 40}, {9, 5}, {1800, 1}, {200, 40}},
    {{8}, {9, 11}, {11}, {88, 1}},
    {{4, 5}, {0}, {5, 1}, {1}},
    {{2000}, {}, {1}, {}},
};

Extents joined(Extents a, const Extents& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("reductions") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  for (const DType dtype : kArrayDTypes) {
    for (const Reduction& r : kReductions) {
      Extents shape = joined(r.kept, r.reduced),
              strides = joined(r.kept_strides, r.reduced_strides);
      std::int64_t kept = 1, reduced = 1;
      for (const std::int64_t extent : r.kept) kept *= extent;
      for (const std::int64_t extent : r.reduced) reduced *= extent;
      if (reduced == 0) strides.assign(strides.size(), 1);
      GpuArray source(dtype, shape, strides, 0, stream);
      if (reduced > 0) source.fill(7);
      for (int op = 0; op <= static_cast<int>(ReduceOp::kAll); ++op) {
        const auto kind = static_cast<ReduceOp>(op);
        const bool is_place = kind == ReduceOp::kArgMin || kind == ReduceOp::kArgMax;
        const bool is_extreme = is_place || kind == ReduceOp::kMin || kind == ReduceOp::kMax;
        const bool is_test = kind == ReduceOp::kAny || kind == ReduceOp::kAll;
        if (reduced == 0 && (is_extreme || kind == ReduceOp::kSquaredDeviations)) continue;
        if (kind == ReduceOp::kSquaredDeviations && !is_floating(dtype)) continue;
        if (kind == ReduceOp::kProd && reduced > 300) continue;
        const DType to = is_place     ? DType::kInt64
                         : is_test    ? DType::kBool
                         : is_extreme ? dtype
                         : is_floating(dtype)
                             ? accumulate_dtype(dtype)
                             : (dtype == DType::kBool ? DType::kUInt64 : DType::kInt64);
        GpuArray result(to, r.kept, stream), centre(accumulate_dtype(dtype), r.kept, stream);
        centre.fill(8);
        ArrayReduction problem;
        problem.op = kind;
        problem.kept = dims_of(r.kept);
        problem.reduced = dims_of(r.reduced);
        problem.result = result.operand();
        problem.source = source.operand();
        std::copy(r.reduced_strides.begin(), r.reduced_strides.end(), problem.reduced_strides);
        problem.centre = centre.operand();
        if (kind == ReduceOp::kSquaredDeviations) problem.divisor = 4;
        cuda::array_reduce(problem, stream);
        result.download();
        for (std::int64_t i = 0; i < kept; ++i) {
          double sum = 0, product = 1, terms = 0;
          long double best = 0;  // holds every int64 and uint64
          std::int64_t place = 0, nonzero = 0;
          const bool less = kind == ReduceOp::kMin || kind == ReduceOp::kArgMin;
          for (std::int64_t j = 0; j < reduced; ++j) {
            const std::int64_t at = i * reduced + j;
            const double x = is_floating(dtype) ? source.get<double>(at)
                                                : static_cast<double>(source.get<std::int64_t>(at));
            const long double value = dtype == DType::kUInt64
                                          ? static_cast<long double>(source.get<std::uint64_t>(at))
                                          : static_cast<long double>(x);
            sum += x, product *= x, nonzero += x != 0;
            terms += (x - centre.get<double>(i)) * (x - centre.get<double>(i)) / 4;
            if (j == 0 || (less ? value < best : value > best)) best = value, place = j;
          }
          const double wanted = kind == ReduceOp::kSum    ? sum
                                : kind == ReduceOp::kProd ? product
                                : is_place                ? static_cast<double>(place)
                                : is_extreme              ? static_cast<double>(best)
                                : kind == ReduceOp::kAny  ? nonzero > 0
                                : kind == ReduceOp::kAll  ? nonzero == reduced
                                                          : terms;
          double got = result.get<double>(i);
          // Products of integers wrap; what fits in a double is compared.
          if (kind == ReduceOp::kProd && !is_floating(dtype) && !(std::abs(wanted) < 1e15))
            continue;
          if ((kind == ReduceOp::kSum || kind == ReduceOp::kProd) && !is_floating(dtype) &&
              dtype != DType::kBool) {
            // Small unsigned numbers below zero were stored modulo 2^bits, and are read so.
            got = static_cast<double>(result.get<std::int64_t>(i));
          }
          const double slack = kind == ReduceOp::kSum && is_floating(dtype) ? 1e-4 * reduced : 0;
          const double relative = is_floating(dtype) && !is_extreme ? 1e-4 : 0;
          if (std::abs(got - wanted) <= slack + relative * std::abs(wanted)) continue;
          FAIL_CHECK("op " << op << " " << name_of(dtype) << " kept " << kept << " reduced "
                           << reduced << " [" << i << "]: " << got << ", not " << wanted);
          break;
        }
      }
    }
  }
}

TEST_CASE("reductions of NaN and signed zeros") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  for (const DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    GpuArray source(dtype, {5000}, stream);
    source.fill(1);
    source.set(3210, NAN);
    source.set(4000, NAN);
    source.upload();
    for (const ReduceOp op :
         {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kArgMin, ReduceOp::kArgMax}) {
      const bool is_place = op == ReduceOp::kArgMin || op == ReduceOp::kArgMax;
      GpuArray result(is_place ? DType::kInt64 : dtype, {}, stream);
      ArrayReduction problem;
      problem.op = op;
      problem.reduced = dims_of({5000});
      problem.reduced_strides[0] = 1;
      problem.source = source.operand();
      problem.result = result.operand();
      cuda::array_reduce(problem, stream);
      result.download();
      if (is_place) {
        CHECK(result.get<std::int64_t>(0) == 3210);
      } else {
        CHECK(std::isnan(result.get<double>(0)));
      }
    }
    GpuArray zeros(dtype, {100}, stream), any(DType::kBool, {}, stream);
    for (int i = 0; i < 100; ++i) zeros.set(i, -0.0);
    zeros.upload();
    ArrayReduction problem;
    problem.op = ReduceOp::kAny;
    problem.reduced = dims_of({100});
    problem.reduced_strides[0] = 1;
    problem.source = zeros.operand();
    problem.result = any.operand();
    cuda::array_reduce(problem, stream);
    any.download();
    CHECK(any.get<int>(0) == 0);
  }
}

TEST_CASE("cumulative sums and products") {
  if (no_gpu()) return;
  const Stream stream(Device::cuda(0));
  struct Case {
    Extents rows, strides;
    std::int64_t length, stride;
  };
  const Case cases[] = {{{}, {}, 1, 1},         {{}, {}, 1000, 1},      {{}, {}, 50001, 1},
                        {{3}, {9001}, 9001, 1}, {{300}, {1}, 500, 300}, {{7, 5}, {500, 1}, 100, 5},
                        {{4}, {-40}, 40, 1},    {{5}, {3}, 0, 1}};
  for (const DType dtype : kArrayDTypes) {
    for (const Case& c : cases) {
      for (const ScanOp op : {ScanOp::kSum, ScanOp::kProd}) {
        for (const bool initial : {false, true}) {
          if (op == ScanOp::kProd && is_floating(dtype) && c.length > 200) continue;
          const bool is_float = is_floating(dtype);
          Extents shape = c.rows, strides = c.strides, to_shape = c.rows;
          shape.push_back(c.length), strides.push_back(c.stride);
          to_shape.push_back(c.length + initial);
          if (c.length == 0 && !initial) continue;
          if (c.length == 0) shape.back() = 1;  // memory that is not read
          GpuArray source(dtype, shape, strides, 0, stream);
          const DType to = is_float ? dtype : DType::kInt64;
          GpuArray result(to, to_shape, stream);
          source.fill(11);
          ArrayScan problem;
          problem.op = op;
          problem.include_initial = initial;
          problem.rows = dims_of(c.rows);
          problem.length = c.length;
          problem.source = source.operand();
          problem.result = result.operand();
          problem.source_stride = c.stride;
          problem.result_stride = 1;
          cuda::array_scan(problem, stream);
          result.download();
          const std::int64_t rows = result.size() / (c.length + initial);
          bool right = true;
          for (std::int64_t row = 0; row < rows && right; ++row) {
            double total = op == ScanOp::kSum ? 0 : 1, size = 0;
            std::uint64_t wrapped = op == ScanOp::kSum ? 0 : 1;
            for (std::int64_t i = -initial; i < c.length && right; ++i) {
              if (i >= 0) {
                const std::int64_t at = row * c.length + i;
                const double x = source.get<double>(at);
                total = op == ScanOp::kSum ? total + x : total * x;
                size += std::abs(x);
                const auto bits = static_cast<std::uint64_t>(source.get<std::int64_t>(at));
                wrapped = op == ScanOp::kSum ? wrapped + bits : wrapped * bits;
              }
              const std::int64_t to_at = row * (c.length + initial) + i + initial;
              if (is_float) {
                const double got = result.get<double>(to_at);
                const double slack = (size + std::abs(total)) * tolerance(dtype);
                right = got == rounded(total, dtype) || std::abs(got - total) <= slack;
              } else {
                right = static_cast<std::uint64_t>(result.get<std::int64_t>(to_at)) == wrapped;
              }
              if (!right)
                FAIL_CHECK(name_of(dtype)
                           << " op " << static_cast<int>(op) << " length " << c.length
                           << " initial " << initial << " row " << row << " [" << i << "]");
            }
          }
        }
      }
    }
  }
}

}  // namespace membound_test

#endif
