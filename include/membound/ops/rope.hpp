// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

// The axes of q and k: batch, sequence, head, element of a head. kThd packs the tokens of all
// sequences one after the other and has three axes.
enum class RopeLayout { kBshd, kSbhd, kBhsd, kThd };

// The most axes of positions (time, height, width and one more).
inline constexpr int kMaxRopeSections = 4;

struct RopeOptions {
  RopeLayout layout = RopeLayout::kBshd;
  bool interleaved = false;     // pairs are adjacent (GPT-J), else rotary_dim / 2 apart (GPT-NeoX)
  bool inverse = false;         // the transpose, which rotates back
  std::int64_t rotary_dim = 0;  // rotated elements of a head; 0: as RopeAngles says
  std::int64_t rotary_offset = 0;    // the first of them
  std::int64_t position_offset = 0;  // added to every position
  double attention_scaling = 1.0;    // multiplies cos and sin made from freqs
  // Multimodal: pairs per axis of position_ids, adding up to rotary_dim / 2.
  int section_count = 0;
  std::int64_t sections[kMaxRopeSections] = {};
  bool interleaved_sections = false;  // pair j takes axis j % section_count while its section lasts
  bool validate = false;  // check positions on the CPU, and throw if one is out of range
};

// The source of the angles. Absent arrays are null; either freqs or cos is given.
struct RopeAngles {
  // (positions, rotary_dim / 2) each, a column for each pair, or (positions, rotary_dim), a column
  // for each element. Without sin: (positions, rotary_dim), all cos and then all sin. Or for each
  // token its own: (batch or 1, seq, ...), with sections (axes, batch or 1, seq, ...).
  const ConstTensorView* cos = nullptr;
  const ConstTensorView* sin = nullptr;
  // (rotary_dim / 2,), float32 or float64: frequencies, the angle is position * freqs. Or the
  // angles themselves, in any shape that cos may have with sin, of any floating dtype. cos and sin
  // are computed in the kernel, for the rows that are used.
  const ConstTensorView* freqs = nullptr;
  // (batch or 1, seq) or (seq,), int32 or int64; with sections one more axis in front. Otherwise
  // the position is the token's index in its sequence.
  const ConstTensorView* position_ids = nullptr;
  // (sequences,), int32 or int64: where each sequence starts; added to position_ids.
  const ConstTensorView* seqlen_offsets = nullptr;
  // kThd: (sequences + 1,), int32 or int64: sequence i is tokens [cu_seqlens[i], cu_seqlens[i+1]).
  // Otherwise kThd has one sequence.
  const ConstTensorView* cu_seqlens = nullptr;
};

// Rotary position embedding (Su et al. 2021, arXiv:2104.09864): each pair of elements of a head is
// rotated by the angle of its token's position,
//
//   out1 = x1 * cos1 - x2 * sin1,   out2 = x2 * cos2 + x1 * sin2
//
// where cos1 is cos2 and sin1 is sin2 unless the table has a column for each element. The inverse
// is the transpose: x1 * cos1 + x2 * sin2 and x2 * cos2 - x1 * sin1.
//
// q      4 axes, kThd 3, in any strides
// k      q's dtype, device and axes, but for heads; or nullptr
// out    q's shape, dtype and device; may be q itself. k_out likewise, there with k alone
// stream where arrays are on a GPU; see rms_norm
//
// Products and their sum are each rounded to float32 (float64), and the result to the dtype, in
// that order: for float32 the bits of t * cos + rotate_half(t) * sin. Angles made from freqs are
// within 2e-7 of the exact ones up to position 2^24, and in float64 better than that.
//
// A position that a table does not have gives NaN, and a token outside of all sequences is not
// rotated; nothing is read out of bounds, whatever ids and cu_seqlens hold. With validate the call
// throws instead, before it writes; the arrays must then be on the CPU.
//
// Throws InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void rope(const ConstTensorView& q, const ConstTensorView* k, const RopeAngles& angles,
                       const RopeOptions& options, const TensorView& out, const TensorView* k_out,
                       StreamView stream);

}  // namespace membound
