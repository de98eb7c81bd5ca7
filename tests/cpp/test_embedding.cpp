// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "array.hpp"
#include "cuda/embedding/embedding_config.hpp"
#include "membound/error.hpp"
#include "membound/ops/embedding.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();
constexpr std::int64_t kVocab = 11, kStart = 100;

// Ids of all rows in turn, and some outside of the table.
std::vector<std::int32_t> some_ids(std::int64_t tokens) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<std::int32_t>(kStart - 1 + i * 5 % (kVocab + 2)));
  }
  return ids;
}
ConstTensorView view_of(const std::vector<std::int32_t>& ids, std::int64_t rows) {
  return ConstTensorView(ids.data(), DType::kInt32, Device::cpu(),
                         {rows, static_cast<std::int64_t>(ids.size()) / rows});
}

}  // namespace

TEST_CASE("embedding: every dtype and width against the definition") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  const auto ids = some_ids(2 * 13);
  for (DType dtype : kFloating) {
    for (std::int64_t dim : {1, 7, 64, 260, 1100}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(dim);
      Array weight(dtype, {kVocab, dim}), positions(dtype, {12, dim});
      Array copy(dtype, {2, 13, dim}), out(dtype, {2, 13, dim});
      weight.fill_normal(seed);
      positions.fill_normal(seed + 1);
      EmbeddingOptions options;
      options.vocab_start = kStart;
      embedding(view_of(ids, 2), weight.view(), nullptr, nullptr, options, copy.view(), kStream);
      options.scale = 2.0;  // exact, so that only one rounding remains
      const ConstTensorView more = positions.view();
      embedding(view_of(ids, 2), weight.view(), nullptr, &more, options, out.view(), kStream);
      const DType wide = accumulate_dtype(dtype);
      for (std::int64_t i = 0; i < out.size(); ++i) {
        const std::int64_t token = i / dim, col = i % dim, place = token % 13;
        const std::int64_t row = ids[static_cast<std::size_t>(token)] - kStart;
        const bool inside = row >= 0 && row < kVocab;
        const double value = inside ? weight.get(row * dim + col) : 0.0;
        const double added = inside && place < 12 ? positions.get(place * dim + col) : 0.0;
        REQUIRE(copy.get(i) == value);
        REQUIRE(out.get(i) == rounded(rounded(2 * value + added, wide), dtype));
      }
    }
  }
}

TEST_CASE("embedding: any strides and dtypes of the result") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  const auto ids = some_ids(6);
  EmbeddingOptions options;
  options.vocab_start = kStart;
  for (DType dtype : kFloating) {
    for (DType out_dtype : kFloating) {
      if ((dtype == DType::kFloat64) != (out_dtype == DType::kFloat64)) continue;
      Array plain(dtype, {kVocab, 70}), transposed(dtype, {kVocab, 70}, {1, kVocab}, 1);
      plain.fill_normal(seed);
      transposed.copy_from(plain);
      Array right(out_dtype, {2, 3, 70}), out(out_dtype, {2, 3, 70}, {3 * 150, -150, 2}, 301);
      embedding(view_of(ids, 2), plain.view(), nullptr, nullptr, options, right.view(), kStream);
      embedding(view_of(ids, 2), transposed.view(), nullptr, nullptr, options, out.view(), kStream);
      CHECK(out.first_difference(right) == -1);
      for (std::int64_t i = 0; i < 70; ++i) {
        const std::int64_t row = ids[1] - kStart;
        REQUIRE(right.get(70 + i) == rounded(plain.get(row * 70 + i), out_dtype));
      }
    }
  }
}

TEST_CASE("embedding: no tokens, and what is refused") {
  const std::vector<std::int32_t> ids(4, 0);
  Array weight(DType::kFloat32, {3, 4}), out(DType::kFloat32, {2, 2, 4});
  const auto call = [&](const ConstTensorView& tokens, EmbeddingOptions options = {}) {
    embedding(tokens, weight.view(), nullptr, nullptr, options, out.view(), kStream);
  };
  Array nothing(DType::kFloat32, {0, 2, 4});
  embedding(ConstTensorView(nullptr, DType::kInt64, Device::cpu(), {0, 2}), weight.view(), nullptr,
            nullptr, {}, nothing.view(), kStream);
  CHECK_NOTHROW(call(view_of(ids, 2)));
  CHECK_THROWS_AS(call(view_of(ids, 1)), InvalidArgument);
  EmbeddingOptions options;
  options.vocab_start = 1;
  CHECK_NOTHROW(call(view_of(ids, 2), options));
  options.validate = true;
  CHECK_THROWS_AS(call(view_of(ids, 2), options), InvalidArgument);
  CHECK_THROWS_AS(call(ConstTensorView(weight.view())), TypeMismatch);
}

TEST_CASE("embedding: every unit of every row belongs to one thread") {
  using namespace membound::cuda::tuning;
  for (const std::int64_t tokens : {1, 7, 8192, 1 << 24}) {
    for (const std::int64_t units : {1, 3, 96, 512, 5000}) {
      const GatedActivationConfig config = gated_activation_config(tokens, units, kEmbeddingUnits);
      const std::int64_t rows_per_block = config.threads / config.lanes;
      CHECK(config.per_thread <= kEmbeddingUnits);
      CHECK(config.tile_units == config.lanes * config.per_thread);
      CHECK(std::int64_t{config.tiles} * config.tile_units >= units);
      CHECK((config.tiles == 1 || rows_per_block == 1));
      CHECK(config.blocks / config.tiles * rows_per_block >= tokens);
    }
  }
}
