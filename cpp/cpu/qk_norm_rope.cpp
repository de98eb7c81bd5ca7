// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/qk_norm_rope.hpp"

#include <cstring>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rms_norm.hpp"

namespace membound::cpu {

static_assert(kQkNormColumns == kMaxQkNormHeadDim);

QkNormHeads qk_norm_heads(const RopeProblem& rope, std::int64_t heads, const RopeStrides& x_strides,
                          const HeadWeight& weight, const HeadStatistic& rstd, double eps,
                          double weight_offset) {
  QkNormHeads made{};
  made.weight = weight.data;
  made.weight_dtype = weight.dtype;
  made.weight_head_stride = weight.head_stride;
  made.weight_stride = weight.stride;
  made.dtype = rope.dtype;
  made.interleaved = rope.interleaved;
  made.heads = heads;
  made.x_token_stride = x_strides.seq;
  made.x_head_stride = x_strides.head;
  made.x_dim_stride = x_strides.dim;
  made.rstd_token_stride = rstd.strides.seq;
  made.rstd_head_stride = rstd.strides.head;
  made.head_dim = rope.head_dim;
  made.rotary_dim = rope.rotary_dim;
  made.rotary_offset = rope.rotary_offset;
  made.prefetch_distance =
      prefetch_distance(rope.tokens() * heads * rope.head_dim * size_of(rope.dtype));
  made.weight_offset = weight_offset;
  made.eps = eps;
  set_safe_range(made, rope.dtype, eps);
  return made;
}

void seek_token(QkNormHeads& heads, const void* x, const RopeStrides& x_strides,
                const HeadStatistic& rstd, std::int64_t b, std::int64_t s) {
  heads.x = bytes_of(x) + x_strides.at(b, s) * size_of(heads.dtype);
  if (rstd.data == nullptr) return;
  heads.rstd = static_cast<char*>(rstd.data) +
               rstd.strides.at(b, s) * size_of(accumulate_dtype(heads.dtype));
}

std::int64_t qk_norm_token_bytes(const RopeProblem& rope) {
  std::int64_t heads = 0;
  for (int i = 0; i < rope.count; ++i) heads += rope.arrays[i].heads;
  return 2 * std::max<std::int64_t>(heads, 1) * rope.head_dim * size_of(rope.dtype);
}

namespace {

// The offset of a token's heads in a cache; kNoOffset if it has no slot.
std::int64_t cache_offset_of(const CacheSlots& cache, const RopeStrides& strides, std::int64_t b,
                             std::int64_t s) {
  const std::int64_t slot = cache.of_token(b, s);
  if (!cache.holds(slot)) return kNoOffset;
  return strides.at(slot / cache.block_size, slot % cache.block_size);
}

template <class Word>
void copy_words(const char* from, std::int64_t from_stride, char* to, std::int64_t to_stride,
                std::int64_t count) {
  constexpr std::int64_t kSize = sizeof(Word);
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count * kSize));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride * kSize, from + i * from_stride * kSize, kSize);
  }
}

// Copies v of some tokens of a sequence, bit for bit.
void copy_values(const QkNormRopeProblem& problem, std::int64_t b, std::int64_t s,
                 std::int64_t tokens) {
  const RopeHeads& v = problem.values;
  const std::int64_t size = size_of(problem.rope.dtype), head_dim = problem.rope.head_dim;
  const auto copy = size == 2   ? copy_words<std::uint16_t>
                    : size == 4 ? copy_words<std::uint32_t>
                                : copy_words<std::uint64_t>;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t offset = cache_offset_of(problem.cache, v.out_strides, b, s + t);
    if (offset == kNoOffset) continue;
    const char* from = bytes_of(v.x) + v.x_strides.at(b, s + t) * size;
    char* to = static_cast<char*>(v.out) + offset * size;
    for (std::int64_t head = 0; head < v.heads; ++head) {
      copy(from + head * v.x_strides.head * size, v.x_strides.dim,
           to + head * v.out_strides.head * size, v.out_strides.dim, head_dim);
    }
  }
}

// Tokens [first, last), counted over all sequences.
void run_tokens(const QkNormRopeProblem& problem, const KernelTable& table, std::int64_t first,
                std::int64_t last) {
  const RopeProblem& p = problem.rope;
  AngleTable angles(p, table);
  QkNormRopeRows rows[2] = {};
  std::int64_t offsets[AngleTable::kTokens];
  for (int i = 0; i < p.count; ++i) {
    const RopeHeads& array = p.arrays[i];
    rows[i].heads = qk_norm_heads(p, array.heads, array.x_strides, problem.weights[i],
                                  problem.rstds[i], problem.eps, problem.weight_offset);
    rows[i].heads.round_normed = problem.round_normed;
    rows[i].heads.round_weighted = problem.round_weighted;
    rows[i].out_token_stride = array.out_strides.seq;
    rows[i].out_head_stride = array.out_strides.head;
    rows[i].out_dim_stride = array.out_strides.dim;
    // Not for in-place calls: those lines are in the cache already.
    rows[i].bypass_cache = array.out != array.x && !problem.is_cached(i) &&
                           pays_to_bypass_cache(p.tokens() * qk_norm_token_bytes(p) / 2);
    angles.point(rows[i].heads);
  }
  for (std::int64_t token = first, tokens = 0; token < last; token += tokens) {
    const std::int64_t b = token / p.seq, s = token % p.seq;
    tokens = angles.tokens(s, last - token);
    angles.load_tokens(b, s, tokens);
    for (int i = 0; i < p.count; ++i) {
      const RopeHeads& array = p.arrays[i];
      seek_token(rows[i].heads, array.x, array.x_strides, problem.rstds[i], b, s);
      rows[i].heads.tokens = tokens;
      if (problem.is_cached(i)) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          offsets[t] = cache_offset_of(problem.cache, array.out_strides, b, s + t);
        }
        rows[i].out = array.out;
        rows[i].offsets = offsets;
      } else {
        rows[i].out = static_cast<char*>(array.out) + array.out_strides.at(b, s) * size_of(p.dtype);
      }
      table.qk_norm_rope(rows[i]);
    }
    if (problem.values.heads > 0) copy_values(problem, b, s, tokens);
  }
}

}  // namespace

void qk_norm_rope(const QkNormRopeProblem& problem) {
  const FloatMode ieee;
  const KernelTable& table = kernels();
  const std::int64_t grain =
      std::max<std::int64_t>(1, kBytesPerThread / qk_norm_token_bytes(problem.rope));
  parallel_for(problem.rope.tokens(), grain, [&](std::int64_t first, std::int64_t last) {
    run_tokens(problem, table, first, last);
  });
}

}  // namespace membound::cpu
