// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "membound/dtype.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"
#include "recorder.hpp"

// Arrays at unmapped addresses, for calls on simulated GPUs.
namespace membound_test {

using namespace membound;

enum class Layout {
  kContiguous,
  kOffByOne,  // one element after a boundary
  kOddRows,   // one element between rows
  kSpaced,    // sixteen elements between rows
  kApart,     // every second element
  kSplit,     // rows in two axes
  kHeads,     // part of the rows of eight heads, with parameters per head
};
inline constexpr std::pair<Layout, const char*> kLayouts[] = {
    {Layout::kContiguous, "contiguous"}, {Layout::kOffByOne, "off by one"},
    {Layout::kOddRows, "odd rows"},      {Layout::kSpaced, "spaced"},
    {Layout::kApart, "apart"},           {Layout::kSplit, "split"},
    {Layout::kHeads, "heads"},
};
inline constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                    DType::kFloat64};

inline std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

struct Problem {
  std::int64_t rows, cols;
  DType dtype;
  Layout layout;
  int gpu;

  std::int64_t heads() const { return layout == Layout::kHeads && rows % 8 == 0 ? 8 : 1; }
  bool two_axes() const {
    return (layout == Layout::kSplit || layout == Layout::kHeads) && rows % 8 == 0;
  }
  TensorView array(DType of, std::initializer_list<std::int64_t> shape) const {
    static std::uintptr_t last = 0;
    last = (last + 1) % 32767;  // more arrays than one problem has
    return {reinterpret_cast<void*>((last + 1) << 40), of, Device::cuda(gpu), shape};
  }
  // x, and arrays of its shape. of: their dtype, if it differs.
  TensorView matrix(std::optional<DType> of = std::nullopt, std::int64_t columns = 0) const {
    const DType type = of.value_or(dtype);
    const std::int64_t c = columns == 0 ? cols : columns;
    TensorView view = two_axes() ? array(type, {rows / 8, 8, c}) : array(type, {rows, c});
    if (layout == Layout::kOffByOne) view.data = static_cast<char*>(view.data) + size_of(type);
    if (layout == Layout::kOddRows) view.strides[0] = c + 1;
    if (layout == Layout::kSpaced) view.strides[0] = c + 16;
    if (layout == Layout::kApart) view.strides[0] = 2 * c, view.strides[1] = 2;
    if (two_axes()) view.strides[0] = layout == Layout::kHeads ? 12 * c : 8 * c + 16;
    return view;
  }
  // One value per row, or `groups` values per row.
  TensorView statistic(DType of, std::int64_t groups = 0) const {
    if (groups > 0) {
      return two_axes() ? array(of, {rows / 8, 8, groups}) : array(of, {rows, groups});
    }
    return two_axes() ? array(of, {rows / 8, 8}) : array(of, {rows});
  }
  TensorView statistic() const { return statistic(accumulate_dtype(dtype)); }
  TensorView columns(DType of) const {
    return heads() > 1 ? array(of, {heads(), cols}) : array(of, {cols});
  }
  StreamView stream() const { return StreamView::from_handle(stream_of_calls()); }
  std::string text() const {
    return std::string(dtype_name(dtype)) + " " + std::to_string(rows) + " x " +
           std::to_string(cols) + " " + kLayouts[static_cast<int>(layout)].second;
  }
};

inline const ConstTensorView* pointer(const std::optional<ConstTensorView>& view) {
  return view ? &*view : nullptr;
}
inline const TensorView* pointer(const std::optional<TensorView>& view) {
  return view ? &*view : nullptr;
}
// An optional array.
inline std::optional<TensorView> when(bool wanted, const TensorView& view) {
  return wanted ? std::optional(view) : std::nullopt;
}
inline std::optional<ConstTensorView> given(bool wanted, const TensorView& view) {
  return wanted ? std::optional<ConstTensorView>(view) : std::nullopt;
}

// Calls with every shape up to 2^35 bytes, on every GPU.
template <class Rows, class Cols, class Call>
void for_each_problem(const Rows& rows, const Cols& cols, Call one) {
  for (int gpu = 0; gpu < kGpuCount; ++gpu) {
    use_gpu(gpu);
    for (DType dtype : kFloats) {
      for (const auto& layout : kLayouts) {
        for (std::int64_t r : rows) {
          for (std::int64_t c : cols) {
            if (r > (std::int64_t{1} << 35) / c / size_of(dtype)) continue;
            const Problem problem{r, c, dtype, layout.first, gpu};
            name_problem(problem.text());
            one(problem);
          }
        }
      }
    }
  }
}

}  // namespace membound_test
