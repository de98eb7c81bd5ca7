// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>

#include "cpu/isa.hpp"
#include "ops/rope.hpp"

// What CPU ops that rotate heads share.
namespace membound::cpu {

inline const char* bytes_of(const void* data) { return static_cast<const char*>(data); }

inline std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

// Where cos and sin of some pairs go, contiguously: [0] for the first elements, [1] for the second.
// Both point to the same memory unless the table has one column per element.
struct RopePairRotations {
  void* cos[2];
  void* sin[2];
};

// Computes cos and sin of pairs [first, first + pairs) of one token.
class RopeTokenAngles {
 public:
  RopeTokenAngles(const RopeProblem& problem, const KernelTable& table)
      : p_(problem), table_(table) {}

  void of_token(std::int64_t b, std::int64_t s, std::int64_t first, std::int64_t pairs,
                const RopePairRotations& to) const {
    const std::int64_t offset = first * size_of(accumulate_dtype(p_.dtype));
    const auto of_pair_0 = [&](void* at) { return static_cast<char*>(at) - offset; };
    of_elements(b, s, first, first + pairs, 0, of_pair_0(to.cos[0]),
                of_pair_0(to.sin[p_.inverse ? 1 : 0]));
    if (to.cos[0] == to.cos[1]) return;
    of_elements(b, s, first, first + pairs, 1, of_pair_0(to.cos[1]),
                of_pair_0(to.sin[p_.inverse ? 0 : 1]));
  }

 private:
  // element: 0 for the first of each pair, 1 for the second. The transpose takes the other's sine.
  void of_elements(std::int64_t b, std::int64_t s, std::int64_t first, std::int64_t last,
                   int element, void* cos, void* sin) const {
    const auto run = [&](int axis, std::int64_t from, std::int64_t end, std::int64_t step) {
      if (from < end) of_axis(axis, b, s, element, {from, end, step}, cos, sin);
    };
    if (!p_.interleaved_sections) {
      std::int64_t from = first;
      for (int axis = 0; axis < p_.axes; ++axis) {
        const std::int64_t end = p_.axes == 1 ? last : std::min(last, p_.section_bounds[axis]);
        run(axis, from, end, 1);
        from = std::max(from, end);
      }
      return;
    }
    run(0, first, last, 1);
    for (int axis = 1; axis < p_.axes; ++axis) {
      std::int64_t from = first / p_.axes * p_.axes + axis;
      if (from < first) from += p_.axes;
      run(axis, from, std::min(last, p_.section_bounds[axis] * p_.axes), p_.axes);
    }
  }

  struct Pairs {
    std::int64_t first, last, step;
  };
  void of_axis(int axis, std::int64_t b, std::int64_t s, int element, const Pairs& pairs,
               void* cos_out, void* sin_out) const {
    static constexpr double kOne = 1, kNone = 0;
    static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    RopeAngleRun run{};
    run.dtype = p_.dtype;
    run.inverse = p_.inverse;
    run.first = pairs.first;
    run.last = pairs.last;
    run.step = pairs.step;
    run.cos_out = cos_out;
    run.sin_out = sin_out;
    run.table_dtype = p_.table_dtype;
    std::int64_t position = 0;
    const bool found = p_.own_rows || p_.where.find(axis, b, s, position);
    const bool lost = p_.has_rows_by_position() && (position < 0 || position >= p_.positions);
    const auto row_of = [&](const RopeTable& table) {
      const std::int64_t row = table.at(axis, b, p_.own_rows ? s : position);
      return bytes_of(table.data) + size_of(p_.table_dtype) * (row + element * table.second);
    };
    if (!found || lost) {  // without a position: no rotation; outside the table: NaN
      run.cos = found ? &kNan : &kOne;
      run.sin = found ? &kNan : &kNone;
      run.table_dtype = DType::kFloat64;
    } else if (p_.cos.data != nullptr) {
      run.cos = row_of(p_.cos);
      run.sin = row_of(p_.sin);
      run.cos_col_stride = p_.cos.col_stride;
      run.sin_col_stride = p_.sin.col_stride;
    } else {
      run.freqs = row_of(p_.freqs);
      run.freqs_stride = p_.freqs.col_stride;
      run.position = p_.freqs_are_angles ? 1.0 : static_cast<double>(position);
      run.scaling = p_.scaling;
    }
    table_.rope_angles(run);
  }

  const RopeProblem& p_;
  const KernelTable& table_;
};

// cos and sin of several tokens, in the order that kernels take. A token takes width() numbers.
class ArrangedAngles {
 public:
  // pairs: the most per token.
  ArrangedAngles(const RopeProblem& problem, const KernelTable& table, std::int64_t pairs)
      : p_(problem),
        table_(table),
        angles_(problem, table),
        each_(problem.has_column_each()),
        part_(rope_width(pairs, problem.interleaved)) {}

  std::int64_t width() const { return each_ ? 2 * part_ : part_; }
  // The distance from the numbers of the first elements to those of the second.
  std::int64_t second() const { return each_ ? part_ : 0; }

  template <std::int64_t kPairs>
  void arrange(std::int64_t b, std::int64_t s, std::int64_t tokens, std::int64_t first,
               std::int64_t pairs, void* cos, void* sin) const {
    const std::int64_t size = size_of(accumulate_dtype(p_.dtype));
    double found[4][kPairs];
    const int other = each_ ? 2 : 0;
    const RopePairRotations rotations{{found[0], found[other]}, {found[1], found[other + 1]}};
    for (std::int64_t t = 0; t < tokens; ++t) {
      angles_.of_token(b, s + t, first, pairs, rotations);
      const std::int64_t at = t * width() * size;
      table_.rope_arrange({p_.dtype,
                           p_.interleaved,
                           pairs,
                           {rotations.cos[0], rotations.cos[1]},
                           {rotations.sin[0], rotations.sin[1]},
                           static_cast<char*>(cos) + at,
                           static_cast<char*>(sin) + at,
                           second()});
    }
  }

 private:
  const RopeProblem& p_;
  const KernelTable& table_;
  RopeTokenAngles angles_;
  bool each_;
  std::int64_t part_;
};

}  // namespace membound::cpu
