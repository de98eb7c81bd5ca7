// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a thread loads, sums and stores its part of a row.
#include "cuda/embedding/token_groups.cuh"
#include "cuda/launch/cache_hint.cuh"
#include "cuda/row/element.cuh"

namespace membound::cuda {

struct EmbeddingBackwardParams {
  EmbeddingBackwardProblem problem;
  TokenGroups groups;
  void* sums;               // of pieces, in the accumulation type
  std::int64_t sum_stride;  // whole 16-byte vectors
  std::int64_t units;       // of a row
  bool pieces;              // the launch computes sums of pieces, not rows
  int rows_per_block;       // rows or pieces that a block processes sequentially
  std::int64_t slots;       // upper bound of rows or pieces
  std::int64_t zeroed;      // rows of the table that are zeroed already
  ZeroVectors zeros;        // for the extra blocks after those of config
  tuning::GatedActivationConfig config;
};

// A thread's part of a row: kUnits units of kWidth numbers, `lanes` units apart. Aligned rows use
// 16-byte vectors; the result has dy's dtype or is float32.
template <class T>
struct VectorForm {
  using A = accumulate_t<T>;
  static constexpr int kUnits = tuning::kGradientVectors, kWidth = kPack<T>, kTokens = 2;
  struct Sums {
    Numbers<T> at[kUnits];
  };
  struct Loaded {
    uint4 at[kUnits];
  };

  // dy has one token stride: multi-axis layouts need a call, which would take registers.
  static __device__ Loaded load(const EmbeddingBackwardParams& p, const GatePosition& position,
                                std::uint32_t token) {
    const T* row = static_cast<const T*>(p.problem.dy) + token * p.problem.dy_rows.strides[0];
    const auto* dy = with_evict_last(reinterpret_cast<const uint4*>(row));
    Loaded loaded = {};
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t unit = position.first + i * position.lanes;
      if (unit < p.units) loaded.at[i] = dy[unit];
    }
    return loaded;
  }
  static __device__ void add(const Loaded& loaded, Sums& sums) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const Numbers<T> numbers = unpack<T>(loaded.at[i]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sums.at[i].at[j] += numbers.at[j];
    }
  }

  // float32 numbers, in a region of whole 16-byte vectors.
  static __device__ Numbers<T> read_wide(const void* from, std::int64_t unit) {
    const auto* vectors = static_cast<const uint4*>(from) + unit * (kWidth / 4);
    Numbers<T> numbers;
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      const Numbers<float> some = unpack<float>(vectors[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) numbers.at[4 * i + j] = some.at[j];
    }
    return numbers;
  }
  static __device__ void write_wide(void* to, std::int64_t unit, const Numbers<T>& numbers) {
    auto* vectors = static_cast<uint4*>(to) + unit * (kWidth / 4);
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      vectors[i] = pack<float>(
          {numbers.at[4 * i], numbers.at[4 * i + 1], numbers.at[4 * i + 2], numbers.at[4 * i + 3]});
    }
  }

  static __device__ void read_sums(const EmbeddingBackwardParams& p, const GatePosition& position,
                                   std::int64_t slot, Sums& sums) {
    const A* from = static_cast<const A*>(p.sums) + slot * p.sum_stride;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t unit = position.first + i * position.lanes;
      if (unit < p.units) sums.at[i] = read_wide(from, unit);
    }
  }
  static __device__ void write_sums(const EmbeddingBackwardParams& p, const GatePosition& position,
                                    std::int64_t slot, const Sums& sums) {
    A* to = static_cast<A*>(p.sums) + slot * p.sum_stride;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t unit = position.first + i * position.lanes;
      if (unit < p.units) write_wide(to, unit, sums.at[i]);
    }
  }

  static __device__ void write_row(const EmbeddingBackwardParams& p, const GatePosition& position,
                                   std::int64_t row, const Sums& sums) {
    const std::int64_t start = row * p.problem.row_stride;
    const bool wide = sizeof(T) == 2 && p.problem.out_dtype == DType::kFloat32;
    auto* const floats = static_cast<float*>(p.problem.rows) + start;
    auto* const vectors = reinterpret_cast<uint4*>(static_cast<T*>(p.problem.rows) + start);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t unit = position.first + i * position.lanes;
      if (unit >= p.units) continue;
      Numbers<T> numbers = sums.at[i];
      if (p.problem.accumulate) {
        const Numbers<T> before = wide ? read_wide(floats, unit) : unpack<T>(vectors[unit]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) numbers.at[j] = before.at[j] + numbers.at[j];
      }
      if (wide) {
        write_wide(floats, unit, numbers);
      } else {
        vectors[unit] = pack<T>(numbers);
      }
    }
  }
};

// Any strides and dtypes, element by element.
template <class Number>
struct ElementForm {
  using A = Number;
  static constexpr int kUnits = tuning::kGradientElements, kWidth = 1, kTokens = 1;
  struct One {
    A at[1];
  };
  struct Sums {
    One at[kUnits];
  };
  struct Loaded {
    A at[kUnits];
  };

  // float64 is combined only with float64, so that no code for mixed dtypes is generated.
  static __device__ DType known(DType dtype) {
    if (sizeof(A) == 8) return DType::kFloat64;
    if (dtype == DType::kFloat64) __builtin_unreachable();
    return dtype;
  }
  static __device__ A read(const void* from, DType dtype, std::int64_t index) {
    return read_number<A>(from, known(dtype), index);
  }

  static __device__ Loaded load(const EmbeddingBackwardParams& p, const GatePosition& position,
                                std::uint32_t token) {
    const std::int64_t offset = token_offset(p.problem.dy_rows, token);
    Loaded loaded = {};
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t col = position.first + i * position.lanes;
      if (col < p.problem.dim) {
        loaded.at[i] = read(p.problem.dy, p.problem.dtype, offset + col * p.problem.dy_col_stride);
      }
    }
    return loaded;
  }
  static __device__ void add(const Loaded& loaded, Sums& sums) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) sums.at[i].at[0] += loaded.at[i];
  }
  // Up to sum_stride instead of dim, because the totals kernel reads whole vectors.
  static __device__ void read_sums(const EmbeddingBackwardParams& p, const GatePosition& position,
                                   std::int64_t slot, Sums& sums) {
    const A* from = static_cast<const A*>(p.sums) + slot * p.sum_stride;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t col = position.first + i * position.lanes;
      if (col < p.sum_stride) sums.at[i].at[0] = from[col];
    }
  }
  static __device__ void write_sums(const EmbeddingBackwardParams& p, const GatePosition& position,
                                    std::int64_t slot, const Sums& sums) {
    A* to = static_cast<A*>(p.sums) + slot * p.sum_stride;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t col = position.first + i * position.lanes;
      if (col < p.sum_stride) to[col] = sums.at[i].at[0];
    }
  }
  static __device__ void write_row(const EmbeddingBackwardParams& p, const GatePosition& position,
                                   std::int64_t row, const Sums& sums) {
    const EmbeddingBackwardProblem& problem = p.problem;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t col = position.first + i * position.lanes;
      if (col >= problem.dim) continue;
      const std::int64_t at = row * problem.row_stride + col * problem.col_stride;
      A value = sums.at[i].at[0];
      if (problem.accumulate) {
        value = read(problem.rows, problem.out_dtype, at) + value;
      }
      write_number(problem.rows, known(problem.out_dtype), at, value);
    }
  }
};

}  // namespace membound::cuda
