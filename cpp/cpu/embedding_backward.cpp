// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding_backward.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"

namespace membound::cpu {

namespace {

std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

// A row with this many bytes of tokens is split by columns, the only way to share it among threads.
constexpr std::int64_t kLongBytes = 4 * kBytesPerThread;
// Column ranges are whole cache lines and whole vectors.
constexpr std::int64_t kColumnsOfThread = 64;

// Below this, a comparison sort is faster: a digit's table costs 1 us.
constexpr std::size_t kFewTokens = 64;

struct Token {
  std::uint32_t row, token;

  bool operator<(const Token& other) const {
    return row != other.row ? row < other.row : token < other.token;
  }
};

// Tokens that have a row, sorted by row and then by token: a radix sort, lowest digit first.
std::vector<Token> sorted_tokens(const EmbeddingBackwardProblem& p) {
  constexpr int kBits = 11;
  std::vector<Token> tokens;
  tokens.reserve(p.tokens);
  for (std::int64_t token = 0; token < p.tokens; ++token) {
    const std::uint32_t row = p.row_of(p.ids.at(p.ids.tokens.offset(token)));
    if (row < p.vocab) tokens.push_back({row, static_cast<std::uint32_t>(token)});
  }
  if (tokens.size() <= kFewTokens) {
    std::sort(tokens.begin(), tokens.end());
    return tokens;
  }
  std::vector<Token> target(tokens.size());
  for (int shift = 0; (p.vocab - 1) >> shift; shift += kBits) {
    std::uint32_t starts[(1 << kBits) + 1] = {};
    const auto digit = [&](Token one) { return one.row >> shift & ((1u << kBits) - 1); };
    for (const Token one : tokens) ++starts[digit(one) + 1];
    for (int i = 0; i < 1 << kBits; ++i) starts[i + 1] += starts[i];
    for (const Token one : tokens) target[starts[digit(one)]++] = one;
    tokens.swap(target);
  }
  return tokens;
}

class Gradient {
 public:
  explicit Gradient(const EmbeddingBackwardProblem& problem)
      : p_(problem), table_(kernels()), row_bytes_(p_.dim * size_of(p_.out_dtype)) {
    shared_.dtype = p_.dtype;
    shared_.out_dtype = p_.out_dtype;
    shared_.last = p_.dim;
    shared_.dy_col_stride = p_.dy_col_stride;
    shared_.out_col_stride = p_.col_stride;
    shared_.scale = p_.scale;
    shared_.by_frequency = p_.by_frequency;
    shared_.accumulate = p_.accumulate;
    const auto tokens = sorted_tokens(p_);
    dy_.reserve(tokens.size());
    const auto count = static_cast<std::int64_t>(tokens.size());
    for (std::int64_t i = 0; i < count; ++i) {
      dy_.push_back(static_cast<const char*>(p_.dy) +
                    p_.dy_rows.offset(tokens[i].token) * size_of(p_.dtype));
      if (i == 0 || tokens[i].row != tokens[i - 1].row) groups_.push_back({tokens[i].row, i});
    }
    row_count_ = static_cast<std::int64_t>(groups_.size());
    groups_.push_back({static_cast<std::int64_t>(p_.vocab), count});
  }

  void write() const {
    if (p_.sparse()) *p_.rows_count = row_count_;
    for (std::int64_t group = 0; group < row_count_; ++group) {
      if (is_long(group)) write_long(group);
    }
    // Threads get ranges of equal cost: bytes of rows written plus bytes of tokens read.
    parallel_for(cost(output_rows()), kBytesPerThread, [&](std::int64_t first, std::int64_t last) {
      write_output_rows(output_row_at(first), output_row_at(last));
    });
  }

 private:
  // The tokens of one row; the next group's `first` ends them.
  struct Group {
    std::int64_t row, first;
  };

  bool dense() const { return !p_.sparse() && !p_.accumulate; }
  // Rows that are written; in the sparse form, rows that may be.
  std::int64_t output_rows() const {
    return p_.sparse() ? p_.tokens : (p_.accumulate ? row_count_ : p_.vocab);
  }
  // The group of the first row at or after an output row.
  std::int64_t group_at(std::int64_t output_row) const {
    if (!dense()) return std::min(output_row, row_count_);
    return std::lower_bound(groups_.begin(), groups_.end(), output_row,
                            [](const Group& group, std::int64_t row) { return group.row < row; }) -
           groups_.begin();
  }
  std::int64_t tokens_of(std::int64_t group) const {
    return groups_[group + 1].first - groups_[group].first;
  }
  std::int64_t token_bytes() const { return p_.dim * size_of(p_.dtype); }
  bool is_long(std::int64_t group) const { return tokens_of(group) * token_bytes() >= kLongBytes; }

  // The cost of all output rows before this one.
  std::int64_t cost(std::int64_t output_row) const {
    return output_row * row_bytes_ + groups_[group_at(output_row)].first * token_bytes();
  }
  // The first output row with at least that cost before it.
  std::int64_t output_row_at(std::int64_t wanted) const {
    std::int64_t low = 0, high = output_rows();
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      cost(middle) < wanted ? low = middle + 1 : high = middle;
    }
    return low;
  }

  void* row_at(std::int64_t row) const {
    return static_cast<char*>(p_.rows) + row * p_.row_stride * size_of(p_.out_dtype);
  }
  EmbeddingGradientRow row_of(std::int64_t group) const {
    EmbeddingGradientRow row = shared_;
    row.dy = dy_.data() + groups_[group].first;
    row.count = tokens_of(group);
    row.following = static_cast<std::int64_t>(dy_.size()) - groups_[group + 1].first;
    row.out = row_at(p_.sparse() ? group : groups_[group].row);
    return row;
  }

  void write_long(std::int64_t group) const {
    const std::int64_t column_bytes = tokens_of(group) * size_of(p_.dtype) * kColumnsOfThread;
    const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / column_bytes);
    const std::int64_t parts = (p_.dim + kColumnsOfThread - 1) / kColumnsOfThread;
    parallel_for(parts, grain, [&](std::int64_t first, std::int64_t last) {
      EmbeddingGradientRow row = row_of(group);
      row.first = first * kColumnsOfThread;
      row.last = std::min(p_.dim, last * kColumnsOfThread);
      table_.embedding_backward(row);
    });
  }

  void write_zeros(std::int64_t first, std::int64_t last, bool is_last) const {
    if (first == last && !is_last) return;
    table_.embedding_backward_zeros({row_at(first), p_.out_dtype, last - first, p_.dim,
                                     p_.row_stride, p_.col_stride,
                                     pays_to_bypass_cache(output_rows() * row_bytes_), is_last});
  }

  // Output rows [first, last), without those that were split by columns.
  void write_output_rows(std::int64_t first, std::int64_t last) const {
    std::int64_t group = group_at(first);
    std::int64_t clean = first;  // zeros are still to be written from here on
    for (; group < row_count_; ++group) {
      const std::int64_t output_row = dense() ? groups_[group].row : group;
      if (output_row >= last) break;
      if (dense()) write_zeros(clean, output_row, false);
      clean = output_row + 1;
      if (p_.sparse()) p_.write_id(output_row, groups_[group].row);
      if (!is_long(group)) table_.embedding_backward(row_of(group));
    }
    if (p_.accumulate) return;
    write_zeros(std::min(clean, last), last, true);
    for (; p_.sparse() && clean < last; ++clean) p_.write_id(clean, p_.vocab - 1);
  }

  const EmbeddingBackwardProblem& p_;
  const KernelTable& table_;
  std::int64_t row_bytes_;
  EmbeddingGradientRow shared_{};
  std::vector<const void*> dy_;  // of the sorted tokens
  std::vector<Group> groups_;    // by row; a sentinel ends them
  std::int64_t row_count_;
};

}  // namespace

void embedding_backward(const EmbeddingBackwardProblem& problem) {
  const FloatMode ieee;
  Gradient(problem).write();
}

}  // namespace membound::cpu
