// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/rope.hpp"

namespace membound {

// Strides, in elements, of the axes of an array by meaning, in whatever order they are stored.
struct RopeStrides {
  std::int64_t batch, seq, head, dim;

  MEMBOUND_HOST_DEVICE std::int64_t at(std::int64_t b, std::int64_t s) const {
    return b * batch + s * seq;
  }
};

// q or k.
struct RopeHeads {
  const void* x;
  void* out;  // may be x: in place
  std::int64_t heads;
  RopeStrides x_strides, out_strides;
};

// An array of int32 or int64.
struct RopeIntegers {
  const void* data = nullptr;  // null: none
  bool wide = false;

  MEMBOUND_HOST_DEVICE std::int64_t at(std::int64_t index) const {
    return wide ? static_cast<const std::int64_t*>(data)[index]
                : static_cast<const std::int32_t*>(data)[index];
  }
};

// A table of cos, sin or angles. Strides in elements; those of axis and batch are for tables with a
// row for each token.
struct RopeTable {
  const void* data = nullptr;  // null: none
  std::int64_t axis_stride = 0, batch_stride = 0, row_stride = 0, col_stride = 0;
  // From the column of a pair's first element to that of its second; 0: they share it.
  std::int64_t second = 0;

  MEMBOUND_HOST_DEVICE std::int64_t at(int axis, std::int64_t b, std::int64_t row) const {
    return axis * axis_stride + b * batch_stride + row * row_stride;
  }
};

// The position of a token. Sums wrap around: ids may hold anything.
struct RopePositions {
  RopeIntegers ids, offsets, cu_seqlens;
  std::int64_t ids_axis_stride = 0, ids_batch_stride = 0, ids_seq_stride = 0;
  std::int64_t offsets_stride = 0, cu_seqlens_stride = 0;
  std::int64_t sequences = 1;  // in cu_seqlens
  std::int64_t offset = 0;

  // False: the token is in no sequence.
  MEMBOUND_HOST_DEVICE bool find(int axis, std::int64_t b, std::int64_t s,
                                 std::int64_t& position) const {
    std::uint64_t at = static_cast<std::uint64_t>(s);
    std::int64_t sequence = b;
    if (cu_seqlens.data != nullptr) {
      sequence = sequence_of(s);
      if (sequence < 0) return false;
      at -= static_cast<std::uint64_t>(cu_seqlens.at(sequence * cu_seqlens_stride));
    }
    if (ids.data != nullptr) {
      at = static_cast<std::uint64_t>(
          ids.at(axis * ids_axis_stride + b * ids_batch_stride + s * ids_seq_stride));
    }
    at += static_cast<std::uint64_t>(offset);
    if (offsets.data != nullptr) {
      at += static_cast<std::uint64_t>(offsets.at(sequence * offsets_stride));
    }
    position = static_cast<std::int64_t>(at);
    return true;
  }

 private:
  // Binary search, which stays within the array whatever it holds; -1: none.
  MEMBOUND_HOST_DEVICE std::int64_t sequence_of(std::int64_t token) const {
    std::int64_t low = 0, high = sequences;
    while (low < high) {  // the first entry after `low` that is above token
      const std::int64_t middle = low + (high - low) / 2;
      if (cu_seqlens.at((middle + 1) * cu_seqlens_stride) <= token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < sequences && cu_seqlens.at(low * cu_seqlens_stride) <= token ? low : -1;
  }
};

// What both back ends receive: checked, no tensors, no user errors.
struct RopeProblem {
  RopeHeads arrays[2];
  int count;    // of them
  DType dtype;  // of both
  std::int64_t batch, seq;
  std::int64_t head_dim, rotary_dim, rotary_offset;  // rotary_dim: below 2^32
  bool interleaved;
  bool inverse;
  RopeTable cos, sin;      // or freqs alone
  RopeTable freqs;         // angles, or one row of frequencies to be multiplied by the position
  bool freqs_are_angles;   // else kFloat32 or kFloat64
  double scaling;          // of cos and sin from freqs
  DType table_dtype;       // of the tables in use
  bool own_rows;           // a table row for each token, not for each position
  std::int64_t positions;  // rows of a table that is indexed by position
  RopePositions where;
  int axes;  // of position_ids; 1 without sections
  bool interleaved_sections;
  // The end of each axis in pairs or, interleaved, its number of pairs.
  std::int64_t section_bounds[kMaxRopeSections];

  std::int64_t tokens() const { return batch * seq; }
  // True if table rows are looked up by position, which may be out of range.
  MEMBOUND_HOST_DEVICE bool has_rows_by_position() const {
    return !own_rows && (freqs.data == nullptr || freqs_are_angles);
  }
  // True if the two elements of a pair have separate columns.
  MEMBOUND_HOST_DEVICE bool has_column_each() const {
    return (cos.second | sin.second | freqs.second) != 0;
  }
  MEMBOUND_HOST_DEVICE int axis_of(std::int64_t pair) const {
    int axis = 0;
    if (interleaved_sections) {
      axis = static_cast<int>(static_cast<std::uint32_t>(pair) % static_cast<unsigned>(axes));
      return pair < section_bounds[axis] * axes ? axis : 0;
    }
    while (axis + 1 < axes && pair >= section_bounds[axis]) ++axis;
    return axis;
  }
};

// The gradient of the frequencies, from rope's inputs and their gradients.
struct RopeFrequenciesProblem {
  RopeProblem rope;  // out: the gradients of q and k
  const void* x[2];  // q and k
  RopeStrides x_strides[2];
  void* dfreqs;
  DType dfreqs_dtype;  // kFloat32 or kFloat64
  std::int64_t dfreqs_stride;
  void* workspace;  // kRopeParts * rotary_dim / 2 doubles
};

// The number of parts of the tokens, whose sums are added in order: the reduction tree of dfreqs.
inline constexpr std::int64_t kRopeParts = 256;
MEMBOUND_HOST_DEVICE inline std::int64_t rope_tokens_per_part(std::int64_t tokens) {
  return (tokens + kRopeParts - 1) / kRopeParts;
}

// The arguments of the user's call; op and the array names are for errors.
struct RopeCall {
  const char* op;
  const char* q_name;
  const char* k_name;
  const char* out_name;
  const char* k_out_name;
  const ConstTensorView& q;
  const ConstTensorView* k;
  const RopeAngles& angles;
  RopeOptions options;
  const TensorView& out;
  const TensorView* k_out;
  bool k_cached = false;  // k is written to a cache by the caller, without a k_out
};
// Performs all checks of a call. The bindings use it too, before outputs are allocated.
MEMBOUND_API RopeProblem rope_problem(const RopeCall& call);
// The parts of rope_problem for positions and angles, and the check of position values.
void set_rope_angles(RopeProblem& problem, const RopeCall& call);
void check_rope_values(const RopeProblem& problem, const RopeCall& call);
// The strides of an array with q's axes.
RopeStrides rope_strides(const ConstTensorView& view, RopeLayout layout);
// Two arrays, one of them written, must share no memory or, with in_place, be exactly the same.
// Compares axes in memory order, so that slices of a transposed array are recognised as disjoint.
void check_rope_overlap(const ConstTensorView& written, const char* written_name,
                        const ConstTensorView& other, const char* other_name, const char* op,
                        bool in_place);
void run_rope(const RopeProblem& problem, Device device, const char* op, StreamView stream);

namespace cpu {
void rope(const RopeProblem& problem);
void rope_frequencies(const RopeFrequenciesProblem& problem);
}  // namespace cpu
namespace cuda {
void rope(const RopeProblem& problem, StreamView stream);
void rope_frequencies(const RopeFrequenciesProblem& problem, StreamView stream);
}  // namespace cuda

}  // namespace membound
