// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"

namespace membound::cpu {

namespace {

// Rows whose addresses are computed before the first is read: kernels prefetch rows ahead, and
// fence their non-temporal stores once per pass.
constexpr std::int64_t kRowsPerPass = 512;

std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

// A table as rows of bytes.
struct ByteRows {
  const char* data;
  std::int64_t rows, row_bytes;

  ByteRows(const RowTable& table, DType dtype)
      : data(static_cast<const char*>(table.data)),
        rows(table.rows),
        row_bytes(table.row_stride * size_of(dtype)) {}
  // Null for a row outside the table.
  const void* at(std::int64_t row) const {
    return row >= 0 && row < rows ? data + row * row_bytes : nullptr;
  }
};

class Lookup {
 public:
  explicit Lookup(const EmbeddingProblem& problem)
      : p_(problem),
        table_(kernels()),
        weight_(p_.weight, p_.dtype),
        positions_(p_.position_weight, p_.dtype),
        out_size_(size_of(p_.out_dtype)) {
    shared_.dtype = p_.dtype;
    shared_.out_dtype = p_.out_dtype;
    shared_.cols = p_.dim;
    shared_.weight_col_stride = p_.weight.col_stride;
    shared_.position_col_stride = p_.position_weight.col_stride;
    shared_.out_col_stride = p_.out_col_stride;
    shared_.scale = p_.scale;
    shared_.copies = p_.copies();
    shared_.bypass_cache = pays_to_bypass_cache(p_.tokens * p_.dim * size_of(p_.out_dtype));
  }

  // Looks up tokens [first, last).
  void look_up(std::int64_t first, std::int64_t last) const {
    const void *weight[kRowsPerPass], *position[kRowsPerPass];
    void* out[kRowsPerPass];
    const bool adds = p_.position_weight.data != nullptr;
    EmbeddingRows rows = shared_;
    rows.weight = weight;
    rows.position = adds ? position : nullptr;
    rows.out = out;
    for (std::int64_t token = first; token < last; token += rows.rows) {
      rows.rows = std::min(kRowsPerPass, last - token);
      find(p_.ids.tokens, token, rows.rows, [&](std::int64_t i, std::int64_t at) {
        weight[i] = weight_.at(p_.row_of(p_.ids.at(at)));
      });
      find(p_.out_rows, token, rows.rows, [&](std::int64_t i, std::int64_t at) {
        out[i] = static_cast<char*>(p_.out) + at * out_size_;
      });
      for (std::int64_t i = 0; adds && i < rows.rows; ++i)
        position[i] = positions_.at(position_of(token + i));
      table_.embedding(rows);
    }
  }

 private:
  // Calls body(i, offset) for tokens [token, token + count). Most layouts have one stride,
  // which saves a call per token.
  template <class Body>
  static void find(const RowLayout& tokens, std::int64_t token, std::int64_t count, Body body) {
    if (tokens.rank > 1) {
      for (std::int64_t i = 0; i < count; ++i) body(i, tokens.offset(token + i));
    } else {
      const std::int64_t stride = row_stride(tokens), first = token * stride;
      for (std::int64_t i = 0; i < count; ++i) body(i, first + i * stride);
    }
  }
  std::int64_t position_of(std::int64_t token) const {
    const TokenIntegers& ids = p_.position_ids;
    return ids.data != nullptr ? ids.at(ids.tokens.offset(token)) : token % p_.sequence;
  }

  const EmbeddingProblem& p_;
  const KernelTable& table_;
  ByteRows weight_, positions_;
  std::int64_t out_size_;
  EmbeddingRows shared_{};
};

}  // namespace

void embedding(const EmbeddingProblem& problem) {
  const FloatMode ieee;
  const Lookup lookup(problem);
  const std::int64_t token_bytes = 2 * problem.dim * size_of(problem.dtype);
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / token_bytes);
  parallel_for(problem.tokens, grain,
               [&](std::int64_t first, std::int64_t last) { lookup.look_up(first, last); });
}

}  // namespace membound::cpu
