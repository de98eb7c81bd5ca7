// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rope_angles.hpp"
#include "cpu/rows.hpp"
#include "cpu/thread_memory.hpp"

namespace membound::cpu {

namespace {

// The most pairs whose cos and sin are buffered at once, and the size of the buffer.
constexpr std::int64_t kPairs = 256;
constexpr std::int64_t kBuffered = 2048;
static_assert(2 * rope_width(kPairs, true) <= kBuffered);

// The cos and sin of some tokens, each as wide as its pairs.
struct AngleBuffer {
  double* const cos = thread_array<double, 2 * kBuffered>();
  double* const sin = cos + kBuffered;
};

// What all rows of one array share throughout a call.
RopeRows shared_part(const RopeProblem& problem, const RopeHeads& heads) {
  RopeRows rows{};
  rows.dtype = problem.dtype;
  rows.interleaved = problem.interleaved;
  const std::int64_t bytes =
      problem.tokens() * heads.heads * problem.head_dim * size_of(problem.dtype);
  rows.bypass_cache = heads.out != heads.x && pays_to_bypass_cache(bytes);
  rows.prefetch_distance = prefetch_distance(bytes);
  rows.heads = heads.heads;
  rows.x_token_stride = heads.x_strides.seq;
  rows.x_head_stride = heads.x_strides.head;
  rows.x_dim_stride = heads.x_strides.dim;
  rows.out_token_stride = heads.out_strides.seq;
  rows.out_head_stride = heads.out_strides.head;
  rows.out_dim_stride = heads.out_strides.dim;
  rows.head_dim = problem.head_dim;
  rows.rotary_dim = problem.rotary_dim;
  rows.rotary_offset = problem.rotary_offset;
  return rows;
}

class Rotator {
 public:
  explicit Rotator(const RopeProblem& problem)
      : p_(problem),
        table_(kernels()),
        angles_(problem, table_, std::min(problem.rotary_dim / 2, kPairs)) {
    for (int i = 0; i < p_.count; ++i) rows_[i] = shared_part(p_, p_.arrays[i]);
  }

  // Rotates tokens [first, last), counted over all sequences.
  void rotate(std::int64_t first, std::int64_t last) const {
    for (std::int64_t token = first; token < last;) {
      const std::int64_t b = token / p_.seq, s = token % p_.seq;
      const std::int64_t tokens = std::min({kBuffered / angles_.width(), last - token, p_.seq - s});
      for (std::int64_t pair = 0; pair < p_.rotary_dim / 2; pair += kPairs) {
        rotate_pairs(b, s, tokens, pair);
      }
      token += tokens;
    }
  }

 private:
  void rotate_pairs(std::int64_t b, std::int64_t s, std::int64_t tokens,
                    std::int64_t first_pair) const {
    const std::int64_t pairs = std::min(kPairs, p_.rotary_dim / 2 - first_pair);
    AngleBuffer buffer;
    angles_.arrange<kPairs>(b, s, tokens, first_pair, pairs, buffer.cos, buffer.sin);
    for (int i = 0; i < p_.count; ++i) {
      const RopeHeads& heads = p_.arrays[i];
      RopeRows rows = rows_[i];
      rows.x = bytes_of(heads.x) + heads.x_strides.at(b, s) * size_of(p_.dtype);
      rows.out = static_cast<char*>(heads.out) + heads.out_strides.at(b, s) * size_of(p_.dtype);
      rows.cos = buffer.cos;
      rows.sin = buffer.sin;
      rows.tokens = tokens;
      rows.table_stride = angles_.width();
      rows.table_second = angles_.second();
      rows.first_pair = first_pair;
      rows.pairs = pairs;
      rows.copy_rest = first_pair == 0 && heads.out != heads.x && p_.rotary_dim < p_.head_dim;
      table_.rope(rows);
    }
  }

  const RopeProblem& p_;
  const KernelTable& table_;
  ArrangedAngles angles_;
  RopeRows rows_[2];
};

// The sums of one part of the tokens, in float64 over heads and tokens.
void add_part(const RopeFrequenciesProblem& problem, const KernelTable& table, std::int64_t first,
              std::int64_t last, double* sums) {
  const RopeProblem& p = problem.rope;
  const std::int64_t all_pairs = p.rotary_dim / 2;
  for (std::int64_t token = first; token < last; ++token) {
    const std::int64_t b = token / p.seq, s = token % p.seq;
    for (std::int64_t pair = 0; pair < all_pairs; pair += kPairs) {
      double terms[kPairs] = {};
      const std::int64_t pairs = std::min(kPairs, all_pairs - pair);
      for (int i = 0; i < p.count; ++i) {
        const RopeHeads& heads = p.arrays[i];
        const RopeStrides& x = problem.x_strides[i];
        table.rope_angle_gradient(
            {bytes_of(problem.x[i]) + x.at(b, s) * size_of(p.dtype),
             bytes_of(heads.out) + heads.out_strides.at(b, s) * size_of(p.dtype), p.dtype,
             p.interleaved, heads.heads, x.head, x.dim, heads.out_strides.head,
             heads.out_strides.dim, p.rotary_dim, p.rotary_offset, pair, pairs, terms});
      }
      for (std::int64_t j = 0; j < pairs; ++j) {
        std::int64_t position = 0;
        if (!p.where.find(p.axis_of(pair + j), b, s, position)) continue;
        sums[pair + j] += static_cast<double>(position) * terms[j];
      }
    }
  }
}

}  // namespace

void rope(const RopeProblem& problem) {
  const FloatMode ieee;
  const Rotator rotator(problem);
  std::int64_t heads = 0;
  for (int i = 0; i < problem.count; ++i) heads += problem.arrays[i].heads;
  const std::int64_t token_bytes = 2 * heads * problem.head_dim * size_of(problem.dtype);
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / token_bytes);
  parallel_for(problem.tokens(), grain,
               [&](std::int64_t first, std::int64_t last) { rotator.rotate(first, last); });
}

void rope_frequencies(const RopeFrequenciesProblem& problem) {
  const RopeProblem& p = problem.rope;
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const std::int64_t pairs = p.rotary_dim / 2, tokens = p.tokens();
  const std::int64_t each = rope_tokens_per_part(tokens);
  double* sums = static_cast<double*>(problem.workspace);
  std::fill(sums, sums + kRopeParts * pairs, 0.0);
  parallel_for(kRopeParts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      add_part(problem, table, std::min(tokens, part * each), std::min(tokens, (part + 1) * each),
               sums + part * pairs);
    }
  });
  // The gradient rotates the other way: p.inverse means that the forward was not inverse.
  const double sign = p.inverse ? 1 : -1;
  for (std::int64_t j = 0; j < pairs; ++j) {
    double sum = 0;
    for (std::int64_t part = 0; part < kRopeParts; ++part) sum += sums[part * pairs + j];
    if (problem.dfreqs_dtype == DType::kFloat64) {
      static_cast<double*>(problem.dfreqs)[j * problem.dfreqs_stride] = sign * sum;
    } else {
      static_cast<float*>(problem.dfreqs)[j * problem.dfreqs_stride] =
          static_cast<float>(sign * sum);
    }
  }
}

}  // namespace membound::cpu
