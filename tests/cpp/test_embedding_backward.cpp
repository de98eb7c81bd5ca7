// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "array.hpp"
#include "cuda/embedding/embedding_backward_config.hpp"
#include "membound/error.hpp"
#include "membound/ops/embedding_backward.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();
constexpr std::int64_t kVocab = 11, kStart = 100;

// Half of the ids are one row, and some are outside of the table.
std::vector<std::int32_t> some_ids(std::int64_t tokens) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t row = i % 2 ? 4 : i * 5 % (kVocab + 2) - 1;
    ids.push_back(static_cast<std::int32_t>(kStart + row));
  }
  return ids;
}
ConstTensorView view_of(const std::vector<std::int32_t>& ids, std::int64_t rows) {
  return ConstTensorView(ids.data(), DType::kInt32, Device::cpu(),
                         {rows, static_cast<std::int64_t>(ids.size()) / rows});
}

// The reduction tree of a row's sum for one column, in the accumulator's dtype.
double tree(const std::vector<double>& values, DType wide) {
  std::vector<double> sums(1 + (values.size() > 32 ? 15 : 0), -0.0);
  for (std::size_t first = 0; first < values.size(); first += 32) {
    double piece = -0.0;
    for (std::size_t i = first; i < std::min(first + 32, values.size()); ++i) {
      piece = rounded(piece + values[i], wide);
    }
    double& sum = sums[first / 32 % sums.size()];
    sum = rounded(sum + piece, wide);
  }
  double total = -0.0;
  for (const double sum : sums) total = rounded(total + sum, wide);
  return total;
}

}  // namespace

TEST_CASE("embedding_backward: every dtype, width and form against the tree") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  const std::int64_t tokens = 2 * 700;
  const auto ids = some_ids(tokens);
  for (DType dtype : kFloating) {
    for (std::int64_t dim : {1, 7, 64, 1100}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(dim);
      Array dy(dtype, {2, tokens / 2, dim}), out(dtype, {kVocab, dim}), sum(dtype, {kVocab, dim});
      dy.fill_normal(seed);
      sum.fill_normal(seed + 1);
      Array before(dtype, {kVocab, dim});
      before.copy_from(sum);
      EmbeddingBackwardOptions options;
      options.vocab_start = kStart;
      options.padding_idx = kStart + 2;
      embedding_backward(dy.view(), view_of(ids, 2), options, out.view(), nullptr, kStream);
      options.accumulate = true;
      embedding_backward(dy.view(), view_of(ids, 2), options, sum.view(), nullptr, kStream);
      const DType wide = accumulate_dtype(dtype);
      for (std::int64_t row = 0; row < kVocab; ++row) {
        for (std::int64_t col = 0; col < dim; col += 1 + dim / 40) {
          std::vector<double> values;
          for (std::int64_t token = 0; token < tokens; ++token) {
            const bool its = row != 2 && ids[static_cast<std::size_t>(token)] == kStart + row;
            if (its) values.push_back(dy.get(token * dim + col));
          }
          const double total = values.empty() ? 0.0 : tree(values, wide);
          const std::int64_t at = row * dim + col;
          REQUIRE(out.get(at) == rounded(total, dtype));
          REQUIRE(sum.get(at) == rounded(rounded(before.get(at) + total, wide), dtype));
        }
      }
    }
  }
}

TEST_CASE("embedding_backward: the sparse form, any strides and dtypes of the result") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  const auto ids = some_ids(60);
  EmbeddingBackwardOptions options;
  options.vocab_start = kStart;
  options.scale = 0.3;
  options.scale_grad_by_freq = true;
  for (DType dtype : kFloating) {
    for (DType out_dtype : kFloating) {
      if ((dtype == DType::kFloat64) != (out_dtype == DType::kFloat64)) continue;
      Array dy(dtype, {2, 30, 70}), apart(dtype, {2, 30, 70}, {70, 140, -1}, 69);
      dy.fill_normal(seed);
      apart.copy_from(dy);
      Array right(out_dtype, {kVocab, 70}), out(out_dtype, {kVocab, 70}, {-150, 2}, 1501);
      Array rows(out_dtype, {60, 70});
      embedding_backward(dy.view(), view_of(ids, 2), options, right.view(), nullptr, kStream);
      embedding_backward(apart.view(), view_of(ids, 2), options, out.view(), nullptr, kStream);
      CHECK(out.first_difference(right) == -1);
      std::vector<std::int32_t> found(60, -1);
      std::int64_t count = -1;
      embedding_backward_sparse(dy.view(), view_of(ids, 2), kVocab, options,
                                {found.data(), DType::kInt32, Device::cpu(), {60}}, rows.view(),
                                {&count, DType::kInt64, Device::cpu(), {}}, nullptr, kStream);
      CHECK(count == kVocab);
      for (std::int64_t place = 0; place < 60; ++place) {
        const std::int64_t row = std::min(place, kVocab - 1);
        REQUIRE(found[static_cast<std::size_t>(place)] == kStart + row);
        REQUIRE(rows.get(place * 70 + 5) == (place < kVocab ? right.get(row * 70 + 5) : 0.0));
      }
    }
  }
}

TEST_CASE("embedding_backward: no tokens, and what is refused") {
  const std::vector<std::int32_t> ids(4, 0);
  Array dy(DType::kFloat32, {2, 2, 4}), out(DType::kFloat32, {3, 4});
  const auto call = [&](const ConstTensorView& tokens, EmbeddingBackwardOptions options = {},
                        const TensorView* workspace = nullptr) {
    embedding_backward(dy.view(), tokens, options, out.view(), workspace, kStream);
  };
  Array nothing(DType::kFloat32, {0, 2, 4});
  out.fill_normal(1);
  embedding_backward(nothing.view(), ConstTensorView(nullptr, DType::kInt64, Device::cpu(), {0, 2}),
                     {}, out.view(), nullptr, kStream);
  for (std::int64_t i = 0; i < out.size(); ++i) CHECK(out.get(i) == 0.0);
  CHECK_NOTHROW(call(view_of(ids, 2)));
  CHECK_THROWS_AS(call(view_of(ids, 1)), InvalidArgument);
  EmbeddingBackwardOptions options;
  options.vocab_start = 1;
  CHECK_NOTHROW(call(view_of(ids, 2), options));
  options.validate = true;
  CHECK_THROWS_AS(call(view_of(ids, 2), options), InvalidArgument);
  CHECK_THROWS_AS(call(ConstTensorView(dy.view())), TypeMismatch);
  const TensorView floats = dy.view();
  CHECK_THROWS_AS(call(view_of(ids, 2), {}, &floats), InvalidArgument);
  CHECK(embedding_backward_workspace(dy.view(), 3) == 0);
}

TEST_CASE("embedding_backward: every token belongs to one block, and parts of memory to one use") {
  using namespace membound::cuda::tuning;
  for (const std::int64_t tokens : {1, 32, 33, 8192, 8193, 100000, 1 << 24, (1 << 30) + 7}) {
    for (const std::int64_t vocab : {1, 511, 512, 128256, 1 << 18, 2147483645}) {
      const SortConfig sort = sort_config(tokens, vocab);
      CHECK(sort.tile_tokens * sort.tiles >= tokens);
      CHECK(sort.tile_tokens * (sort.tiles - 1) < tokens);
      CHECK(sort.tiles <= kMaxTiles);
      CHECK((sort.tiles > 1 || tokens <= kSortRound));
      CHECK(sort.digit_bits <= kDigitBits);
      CHECK((vocab >> (sort.passes * sort.digit_bits)) == 0);  // which is not the id of a row
      const GradientWorkspace layout = gradient_workspace(tokens, 65, vocab, 4);
      CHECK(layout.rows[1] - layout.rows[0] >= tokens * 4);
      CHECK(layout.tokens[0] - layout.rows[1] >= tokens * 4);
      CHECK(layout.tokens[1] - layout.tokens[0] >= tokens * 4);
      CHECK(layout.first - layout.tokens[1] >= tokens * 4);
      CHECK(layout.counts - layout.first >= (vocab + 1) * 4);
      CHECK(layout.sums - layout.counts >= (sort.tiles > 1 ? sort.tiles * kDigits * 4 : 0));
      CHECK(layout.sum_stride == 68);
      CHECK(layout.bytes - layout.sums >= (tokens > 32 ? (tokens + 31) / 32 * 2 * 68 * 4 : 0));
      const ZeroRows zero = zero_rows(tokens, vocab, 8192, tokens * 4096);
      CHECK(zero.during_sort + zero.during_pieces <= vocab);
      CHECK((zero.during_pieces == 0 || tokens > 32));
    }
  }
  CHECK(sequential_rows(64, 512, kGradientVectors) == 1);
  CHECK(sequential_rows(8192, 512, kGradientVectors) == kSequentialRows);
  CHECK(sort_config(0, 5).tiles == 1);
  CHECK(gradient_workspace(0, 65, 1000, 4).bytes == 0);
}
