// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <optional>

#include "cpu/array/blocks.hpp"
#include "cpu/parallel.hpp"

namespace membound::cpu {

namespace {

constexpr std::int64_t kElementsPerPart = 16 << 10;

// Walks several operands at once, run by run along the last dimension.
template <int kOperands>
class Walk {
 public:
  using Strides = const std::int64_t* const (&)[kOperands];

  Walk(const ArrayDims& dims, Strides strides) : dims_(dims) {
    std::copy_n(strides, kOperands, strides_);
  }
  // Calls body(offsets, count).
  template <class Body>
  void each_run(std::int64_t first, std::int64_t count, Body body) {
    const int last = dims_.rank - 1;
    while (count > 0) {
      std::int64_t offsets[kOperands] = {}, rest = first;
      const std::int64_t left = dims_.shape[last] - first % dims_.shape[last];
      for (int axis = last; axis >= 0; --axis) {
        const std::int64_t place = rest % dims_.shape[axis];
        rest /= dims_.shape[axis];
        for (int i = 0; i < kOperands; ++i) offsets[i] += place * strides_[i][axis];
      }
      const std::int64_t run = std::min(left, count);
      body(offsets, run);
      first += run;
      count -= run;
    }
  }

 private:
  const ArrayDims& dims_;
  const std::int64_t* strides_[kOperands];
};

template <class T>
class Gather {
 public:
  explicit Gather(const ArrayGather& problem)
      : problem_(problem), dims_(at_least_one(problem.dims)) {
    if (problem.dims.rank == 0) {
      problem_.indexed.strides[0] = problem_.other.strides[0] = problem_.offset_strides[0] = 0;
    }
    if (problem_.other.data == nullptr) problem_.other.data = problem_.other.scalar;
  }
  // Scattered elements may coincide, and the last one stays: in order, on one thread.
  void run() {
    if (problem_.is_scatter) return part(0, dims_.size());
    parallel_for(dims_.size(), kElementsPerPart,
                 [&](std::int64_t first, std::int64_t last) { part(first, last); });
  }

 private:
  void part(std::int64_t first, std::int64_t last) const {
    const int inner = dims_.rank - 1;
    const std::int64_t step = problem_.indexed.strides[inner];
    const std::int64_t offset_step = problem_.offset_strides[inner];
    const std::int64_t other_step = problem_.other.strides[inner];
    T* indexed = static_cast<T*>(problem_.indexed.data);
    T* other = static_cast<T*>(problem_.other.data);
    const std::int64_t* const strides[] = {problem_.indexed.strides, problem_.offset_strides,
                                           problem_.other.strides};
    Walk<3>(dims_, strides)
        .each_run(first, last - first, [&](const std::int64_t* at, std::int64_t count) {
          T* x = indexed + at[0];
          const std::int64_t* offset = problem_.offsets + at[1];
          T* y = other + at[2];
          if (offset_step == 0 && step == 1 && other_step == 1) {
            T* row = x + *offset;
            std::memcpy(problem_.is_scatter ? row : y, problem_.is_scatter ? y : row,
                        static_cast<std::size_t>(count) * sizeof(T));
            return;
          }
          if (step == 0 && offset_step == 1 && other_step == 1) {
            if (problem_.is_scatter) {
              for (std::int64_t i = 0; i < count; ++i) x[offset[i]] = y[i];
            } else {
              for (std::int64_t i = 0; i < count; ++i) y[i] = x[offset[i]];
            }
            return;
          }
          for (std::int64_t i = 0; i < count; ++i) {
            T& element = x[i * step + offset[i * offset_step]];
            problem_.is_scatter ? element = y[i * other_step] : y[i * other_step] = element;
          }
        });
  }

  ArrayGather problem_;
  const ArrayDims dims_;
};

}  // namespace

void array_gather(const ArrayGather& problem) {
  with_bytes(size_in_bytes(problem.indexed.dtype), [&]<class T>(T) { Gather<T>(problem).run(); });
}

// Whether all indices are at least 0 and below the extent.
bool array_are_below(const std::int64_t* indices, std::int64_t count, std::int64_t extent) {
  std::atomic<bool> are_below{true};
  parallel_for(count, kElementsPerPart, [&](std::int64_t first, std::int64_t last) {
    constexpr std::int64_t kBlock = 1024;
    for (std::int64_t at = first; at < last && are_below; at += kBlock) {
      std::uint64_t outside = 0;  // in its highest bit: negative, or not made so by the extent
      for (std::int64_t i = at, end = std::min(at + kBlock, last); i < end; ++i) {
        const auto index = static_cast<std::uint64_t>(indices[i]);
        outside |= index | ~(index - static_cast<std::uint64_t>(extent));
      }
      if (outside >> 63 != 0) are_below = false;
    }
  });
  return are_below;
}

BadIndex array_index_offsets(const ArrayIndexOffsets& problem) {
  const KernelTable& table = kernels();
  const ArrayDims dims = at_least_one(problem.dims);
  const std::int64_t block = block_elements(DType::kInt64);
  std::atomic<std::int64_t> first_bad{dims.size()};
  const auto place_of = [](std::int64_t index, std::int64_t extent) {
    return index < 0 ? index + extent : index;
  };
  const auto is_bad = [&](std::int64_t index, std::int64_t extent) {
    const std::int64_t place = place_of(index, extent);
    return place < 0 || place >= extent;
  };
  parallel_for(dims.size(), kElementsPerPart, [&](std::int64_t first, std::int64_t last) {
    for (int axis = 0; axis < problem.indexed; ++axis) {
      BlockReader reader(dims, problem.indices[axis], DType::kInt64, block, table);
      const std::int64_t extent = problem.extents[axis], stride = problem.strides[axis];
      each_block(dims, first, last, block, true, [&](std::int64_t at, std::int64_t count) {
        const auto* indices = static_cast<const std::int64_t*>(reader.read(at, count));
        std::int64_t* to = problem.offsets + at;
        bool any_bad = false;
        for (std::int64_t i = 0; i < count; ++i) {
          any_bad |= is_bad(indices[i], extent);
          // Offsets of bad indices, which nobody reads, wrap.
          const auto place = static_cast<std::uint64_t>(place_of(indices[i], extent));
          const auto before = static_cast<std::uint64_t>(axis == 0 ? 0 : to[i]);
          to[i] = static_cast<std::int64_t>(before + place * static_cast<std::uint64_t>(stride));
        }
        for (std::int64_t i = 0; any_bad && i < count; ++i) {
          std::int64_t known = first_bad.load(std::memory_order_relaxed);
          while (is_bad(indices[i], extent) && at + i < known &&
                 !first_bad.compare_exchange_weak(known, at + i)) {
          }
        }
      });
    }
  });
  BadIndex bad;
  if (first_bad == dims.size()) return bad;
  bad.element = first_bad;
  for (int axis = 0; axis < problem.indexed; ++axis) {
    BlockReader reader(dims, problem.indices[axis], DType::kInt64, block, table);
    const auto index = *static_cast<const std::int64_t*>(reader.read(bad.element, 1));
    if (!is_bad(index, problem.extents[axis])) continue;
    bad.axis = axis;
    bad.index = index;
    break;
  }
  return bad;
}

std::int64_t array_count_true(const bool* mask, std::int64_t count) {
  std::atomic<std::int64_t> total{0};
  parallel_for(count, 8 * kElementsPerPart, [&](std::int64_t first, std::int64_t last) {
    total += std::count(mask + first, mask + last, true);
  });
  return total;
}

namespace {

// Writes every place, the next one over it unless the element is true: a jump for each would be
// mispredicted. Eight that are false are left out at once. Returns `found` and those of the row.
std::int64_t places_in_row(const bool* mask, std::int64_t row, std::int64_t count,
                           std::int64_t found, std::int64_t* places) {
  for (std::int64_t first = 0; first < row; first += 8) {
    const std::int64_t end = std::min<std::int64_t>(first + 8, row);
    std::uint64_t any = 1;
    if (end - first == 8) std::memcpy(&any, mask + first, 8);
    if (any == 0) continue;
    for (std::int64_t i = first; i < end && found < count; ++i) {
      places[found] = i;
      found += mask[i] ? 1 : 0;
    }
  }
  return found;
}

}  // namespace

void array_nonzero(const ArrayNonzero& problem) {
  const ArrayDims& dims = problem.dims;
  const int last = dims.rank - 1;
  const std::int64_t row = dims.rank > 0 ? dims.shape[last] : 1, rows = dims.size() / row;
  std::int64_t place[kMaxRank] = {}, found = 0;
  for (std::int64_t at = 0; at < rows; ++at) {
    const std::int64_t before = found;
    found = places_in_row(problem.mask + at * row, row, problem.count, found,
                          last < 0 ? nullptr : problem.indices[last]);
    for (int axis = 0; axis < last; ++axis)
      std::fill(problem.indices[axis] + before, problem.indices[axis] + found, place[axis]);
    for (int axis = last - 1; axis >= 0; --axis) {
      if (++place[axis] < dims.shape[axis]) break;
      place[axis] = 0;
    }
  }
}

}  // namespace membound::cpu
