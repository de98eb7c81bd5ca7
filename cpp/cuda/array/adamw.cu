// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// AdamW for many parameters in one launch: where they are is part of the kernel's parameters, so
// that nothing is copied to the GPU before and graphs can hold the step. Compiled without
// contraction to FMA, for the CPU's bits.
#include "core/array/adamw.hpp"
#include "cuda/array/index.cuh"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

namespace {

inline constexpr int kAdamWThreads = 256;
inline constexpr int kAdamWUnits =
    2;  // of a thread, loaded from all arrays before the first is used
inline constexpr std::int64_t kAdamWStep = kAdamWUnits * kAdamWThreads * kUnitItems;
inline constexpr std::int64_t kAdamWPart = 2 * kAdamWStep;  // elements of a block

// A parameter whose arrays have their elements in one order, without gaps.
struct DenseParameter {
  char *param, *grad, *exp_avg, *exp_avg_sq;
  std::int64_t size;
  std::uint32_t first_block;
  DType param_dtype, grad_dtype;
  bool vectors;  // all arrays are aligned to their units
};

// As many as fit in the 32,764 bytes that a kernel takes.
inline constexpr int kMostParameters = 640;

template <class A>
struct DenseParams {
  AdamWStep<A> step;
  int count;
  DenseParameter parameters[kMostParameters];
};
static_assert(sizeof(DenseParams<double>) <= 32764);

template <class T>
struct alignas(sizeof(T) == 8 ? 16 : kUnitItems * sizeof(T)) Unit {
  T at[kUnitItems];
};

// The state has the arithmetic type of the parameter.
template <class P, class G>
struct Elements {
  using A = accumulate_t<P>;

  P* param;
  const G* grad;
  A *exp_avg, *exp_avg_sq;

  __device__ explicit Elements(const DenseParameter& of)
      : param(reinterpret_cast<P*>(of.param)),
        grad(reinterpret_cast<const G*>(of.grad)),
        exp_avg(reinterpret_cast<A*>(of.exp_avg)),
        exp_avg_sq(reinterpret_cast<A*>(of.exp_avg_sq)) {}
};

template <class P, class G, class A = accumulate_t<P>>
__device__ inline void update(const AdamWStep<A>& step, P& param, G grad, A& exp_avg,
                              A& exp_avg_sq) {
  const A g = to_number(grad);
  exp_avg = step.exp_avg(exp_avg, g);
  exp_avg_sq = step.exp_avg_sq(exp_avg_sq, g);
  param = from_number<P>(step.param(to_number(param), exp_avg, exp_avg_sq));
}

template <class P, class G>
__device__ inline void update_vectors(const AdamWStep<accumulate_t<P>>& step,
                                      const Elements<P, G>& of, std::int64_t first,
                                      std::int64_t end) {
  using A = accumulate_t<P>;
  Unit<P> param[kAdamWUnits];
  Unit<G> grad[kAdamWUnits];
  Unit<A> exp_avg[kAdamWUnits], exp_avg_sq[kAdamWUnits];
#pragma unroll
  for (int unit = 0; unit < kAdamWUnits; ++unit) {
    const std::int64_t at = first + unit * kAdamWThreads * kUnitItems;
    if (at >= end) continue;
    param[unit] = *reinterpret_cast<const Unit<P>*>(of.param + at);
    grad[unit] = *reinterpret_cast<const Unit<G>*>(of.grad + at);
    exp_avg[unit] = *reinterpret_cast<const Unit<A>*>(of.exp_avg + at);
    exp_avg_sq[unit] = *reinterpret_cast<const Unit<A>*>(of.exp_avg_sq + at);
  }
#pragma unroll
  for (int unit = 0; unit < kAdamWUnits; ++unit) {
    const std::int64_t at = first + unit * kAdamWThreads * kUnitItems;
    if (at >= end) continue;
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i)
      update(step, param[unit].at[i], grad[unit].at[i], exp_avg[unit].at[i],
             exp_avg_sq[unit].at[i]);
    *reinterpret_cast<Unit<P>*>(of.param + at) = param[unit];
    *reinterpret_cast<Unit<A>*>(of.exp_avg + at) = exp_avg[unit];
    *reinterpret_cast<Unit<A>*>(of.exp_avg_sq + at) = exp_avg_sq[unit];
  }
}

// The elements of one block.
template <class P, class G>
__device__ void update_part(const AdamWStep<accumulate_t<P>>& step, const DenseParameter& parameter,
                            std::int64_t begin, std::int64_t end) {
  const Elements<P, G> of(parameter);
  std::int64_t rest = begin;
  if (parameter.vectors) {
    rest += (end - begin) / kUnitItems * kUnitItems;
#pragma unroll 1
    for (std::int64_t first = begin + threadIdx.x * kUnitItems; first < rest; first += kAdamWStep)
      update_vectors(step, of, first, rest);
  }
#pragma unroll 1
  for (std::int64_t at = rest + threadIdx.x; at < end; at += kAdamWThreads)
    update(step, of.param[at], of.grad[at], of.exp_avg[at], of.exp_avg_sq[at]);
}

// A block updates kAdamWPart elements of the parameter that it finds by its number. Memory-bound.
template <class A>
__global__ void __launch_bounds__(kAdamWThreads)
    adamw_kernel(const __grid_constant__ DenseParams<A> p) {
  pdl_wait_and_launch();
  int which = 0;
  for (int beyond = p.count; beyond - which > 1;) {
    const int middle = (which + beyond) / 2;
    (p.parameters[middle].first_block <= blockIdx.x ? which : beyond) = middle;
  }
  const DenseParameter& of = p.parameters[which];
  const std::int64_t begin = std::int64_t{blockIdx.x - of.first_block} * kAdamWPart;
  const std::int64_t end = min(begin + kAdamWPart, of.size);
  if constexpr (scalar::kSameType<A, double>) {
    if (of.grad_dtype == DType::kFloat64)
      update_part<double, double>(p.step, of, begin, end);
    else
      update_part<double, float>(p.step, of, begin, end);
  } else {
    const bool is_half = of.param_dtype == DType::kFloat16;
    if (of.param_dtype == DType::kFloat32) {
      update_part<float, float>(p.step, of, begin, end);
    } else if (of.grad_dtype == DType::kFloat32) {
      is_half ? update_part<Float16, float>(p.step, of, begin, end)
              : update_part<BFloat16, float>(p.step, of, begin, end);
    } else {
      is_half ? update_part<Float16, Float16>(p.step, of, begin, end)
              : update_part<BFloat16, BFloat16>(p.step, of, begin, end);
    }
  }
}

// One parameter of any layout, element by element.
template <class A>
struct StridedParams {
  AdamWStep<A> step;
  ArrayIndex index;
  std::int64_t strides[4][kMaxRank];
  char* arrays[4];  // param, grad, exp_avg, exp_avg_sq
  DType dtypes[4];
  int bytes[4];
};

template <class A>
__global__ void __launch_bounds__(kAdamWThreads)
    adamw_strided_kernel(const __grid_constant__ StridedParams<A> p) {
  pdl_wait_and_launch();
  const std::int64_t linear = std::int64_t{blockIdx.x} * kAdamWThreads + threadIdx.x;
  if (linear >= p.index.size) return;
  std::int64_t at[4];
  p.index.offsets(linear, p.strides, at);
  A values[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    values[k] = load_number<A>(p.arrays[k] + at[k] * p.bytes[k], p.dtypes[k], p.bytes[k]);
  values[2] = p.step.exp_avg(values[2], values[1]);
  values[3] = p.step.exp_avg_sq(values[3], values[1]);
  values[0] = p.step.param(values[0], values[2], values[3]);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k != 1)
      store_bits(p.arrays[k] + at[k] * p.bytes[k], p.bytes[k], bits_of(values[k], p.dtypes[k]));
  }
}

bool is_dense(const ArrayAdamW& of) {
  bool dense = of.dims.rank <= 1;
  for (const ArrayOperand* array : {&of.param, &of.grad, &of.exp_avg, &of.exp_avg_sq})
    dense = dense && (of.dims.rank == 0 || array->strides[0] == 1);
  return dense;
}

DenseParameter dense_parameter(const ArrayAdamW& of, std::int64_t first_block) {
  DenseParameter dense;
  dense.param = static_cast<char*>(of.param.data);
  dense.grad = static_cast<char*>(of.grad.data);
  dense.exp_avg = static_cast<char*>(of.exp_avg.data);
  dense.exp_avg_sq = static_cast<char*>(of.exp_avg_sq.data);
  dense.size = of.dims.size();
  dense.first_block = static_cast<std::uint32_t>(first_block);
  dense.param_dtype = of.param.dtype;
  dense.grad_dtype = of.grad.dtype;
  dense.vectors = true;
  for (const ArrayOperand* array : {&of.param, &of.grad, &of.exp_avg, &of.exp_avg_sq})
    dense.vectors &= is_aligned(
        array->data,
        std::min<std::int64_t>(16, 4 * static_cast<std::int64_t>(dtype_size(array->dtype))));
  return dense;
}

// The dense parameters from `at` on that fit in one launch; returns the first that does not.
template <class A>
std::int64_t launch_dense(const std::vector<const ArrayAdamW*>& parameters, std::int64_t at,
                          const AdamWFactors& factors, StreamView stream) {
  DenseParams<A> p{AdamWStep<A>(factors), 0, {}};
  std::int64_t blocks = 0;
  const auto count = static_cast<std::int64_t>(parameters.size());
  for (; at < count && p.count < kMostParameters; ++at) {
    p.parameters[p.count++] = dense_parameter(*parameters[static_cast<std::size_t>(at)], blocks);
    blocks += (p.parameters[p.count - 1].size + kAdamWPart - 1) / kAdamWPart;
  }
  launch<adamw_kernel<A>>({blocks, kAdamWThreads}, stream, current_device(), p);
  return at;
}

template <class A>
void launch_strided(const ArrayAdamW& of, const AdamWFactors& factors, StreamView stream) {
  StridedParams<A> p{AdamWStep<A>(factors), array_index(of.dims), {}, {}, {}, {}};
  const ArrayOperand* const arrays[4] = {&of.param, &of.grad, &of.exp_avg, &of.exp_avg_sq};
  for (int k = 0; k < 4; ++k) {
    std::copy(arrays[k]->strides, arrays[k]->strides + of.dims.rank, p.strides[k]);
    p.arrays[k] = static_cast<char*>(arrays[k]->data);
    p.dtypes[k] = arrays[k]->dtype;
    p.bytes[k] = static_cast<int>(dtype_size(arrays[k]->dtype));
  }
  launch<adamw_strided_kernel<A>>(
      {(p.index.size + kAdamWThreads - 1) / kAdamWThreads, kAdamWThreads}, stream, current_device(),
      p);
}

template <class A>
void update_all(const std::vector<const ArrayAdamW*>& parameters, const AdamWFactors& factors,
                StreamView stream) {
  std::vector<const ArrayAdamW*> dense;
  for (const ArrayAdamW* of : parameters) {
    is_dense(*of) ? dense.push_back(of) : launch_strided<A>(*of, factors, stream);
  }
  const auto count = static_cast<std::int64_t>(dense.size());
  for (std::int64_t at = 0; at < count;) at = launch_dense<A>(dense, at, factors, stream);
}

}  // namespace

void array_adamw(const ArrayAdamW* parameters, std::int64_t count, const AdamWFactors& factors,
                 StreamView stream) {
  std::vector<const ArrayAdamW*> single, wide;
  for (std::int64_t at = 0; at < count; ++at)
    (parameters[at].param.dtype == DType::kFloat64 ? wide : single).push_back(&parameters[at]);
  update_all<float>(single, factors, stream);
  update_all<double>(wide, factors, stream);
}

}  // namespace membound::cuda
