// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of embedding at least once, for compute-sanitizer: each dtype, aligned and
// unaligned, with and without arithmetic, and ids and positions out of range (which must read
// nothing).
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

constexpr std::int64_t kVocab = 13, kPositions = 5, kStart = 1000;

struct Case {
  const Format& format;
  std::int64_t tokens, dim;
  Layout layout;
  bool computes, narrows;

  std::string text() const {
    return std::string(dtype_name(format.dtype)) + " " + std::to_string(tokens) + " x " +
           std::to_string(dim) + " " + to_string(layout) + (computes ? " computed" : "") +
           (narrows ? " to another dtype" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t tokens) {
  const std::int64_t dim = vectors * (16 / format.size());
  std::vector<Case> list;
  for (const bool computes : {false, true}) {
    list.push_back({format, tokens, dim, {}, computes, false});
    list.push_back({format, tokens, dim, {1, 3, 1}, computes, false});
    list.push_back({format, tokens, dim, {1, 3, 2, true}, computes, false});
    if (format.size() == 2) list.push_back({format, tokens, dim, {}, computes, true});
  }
  return list;
}

long run(const Case& c, const Target& target) {
  const Layout one_axis{c.layout.offset, c.layout.gap, c.layout.step};
  Matrix weight(c.format, kVocab, c.dim, one_axis), more(c.format, kPositions, c.dim, one_axis);
  Matrix out(c.narrows ? kSingle : c.format, c.tokens, c.dim, c.layout);
  for (Matrix* one : {&weight, &more}) one->fill();
  for (Matrix* one : {&weight, &more, &out}) one->upload(target);
  Ids ids(c.tokens, kStart, kVocab, target), places(c.tokens, 0, kPositions, target);
  EmbeddingOptions options;
  options.vocab_start = kStart;
  if (c.computes) options.scale = 1.75;
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView table = weight.view(side), added = more.view(side);
    const ConstTensorView place = places.view(side, out.split());
    embedding(ids.view(side, out.split()), table, c.computes ? &place : nullptr,
              c.computes ? &added : nullptr, options, out.view(side), target.stream);
  }
  return out.wrong(target, 0.0);
}

// {16-byte vectors per row, tokens}: around a warp and above a block of vectors; few and many
// tokens.
constexpr std::int64_t kSizes[][2] = {{1, 40}, {3, 7}, {32, 100}, {129, 30}, {1100, 4}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
