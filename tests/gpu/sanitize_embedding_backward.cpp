// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of embedding_backward at least once, for compute-sanitizer: each dtype, aligned
// and unaligned, dense, accumulated and sparse; half of the ids are the same (a row of many pieces)
// and some are out of range (which must be ignored).
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

constexpr std::int64_t kStart = 1000;

enum class Kind { kDense, kAdded, kSparse };

struct Case {
  const Format& format;
  std::int64_t tokens, dim, vocab;
  Layout layout;
  Kind kind;
  bool widens;

  std::string text() const {
    constexpr const char* kNames[] = {" dense", " added", " sparse"};
    return std::string(dtype_name(format.dtype)) + " " + std::to_string(tokens) + " x " +
           std::to_string(dim) + " of " + std::to_string(vocab) + " " + to_string(layout) +
           kNames[static_cast<int>(kind)] + (widens ? " as float32" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t tokens) {
  const std::int64_t dim = vectors * (16 / format.size());
  // The second needs one more sort digit than the first, and the third two more.
  const std::int64_t vocab = tokens > 10000 ? 300000 : tokens > 1000 ? 600 : 13;
  std::vector<Case> list;
  for (const Kind kind : {Kind::kDense, Kind::kAdded, Kind::kSparse}) {
    list.push_back({format, tokens, dim, vocab, {}, kind, false});
    list.push_back({format, tokens, dim, vocab, {1, 3, 1}, kind, false});
    list.push_back({format, tokens, dim, vocab, {1, 3, 2, true}, kind, false});
    if (format.size() == 2) list.push_back({format, tokens, dim, vocab, {}, kind, true});
  }
  return list;
}

// An int64 array on both sides.
struct Integers {
  Integers(std::int64_t count, const Target& target)
      : numbers(count, -1), on_target(count * sizeof(std::int64_t), target.device, target.stream) {}
  TensorView view(Side side, bool axis) {
    void* data = side == Side::kHost ? static_cast<void*>(numbers.data()) : on_target.data();
    const Device device = side == Side::kHost ? Device::cpu() : on_target.device();
    if (!axis) return TensorView(data, DType::kInt64, device, {});
    return TensorView(data, DType::kInt64, device, {std::int64_t(numbers.size())});
  }
  long wrong(const Target& target) {
    std::vector<std::int64_t> got(numbers.size());
    copy_bytes(got.data(), Device::cpu(), on_target.data(), on_target.device(),
               got.size() * sizeof(std::int64_t), target.stream);
    target.stream.synchronize();
    long wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != numbers[i];
    return wrong;
  }

  std::vector<std::int64_t> numbers;
  DeviceBuffer on_target;
};

long run(const Case& c, const Target& target) {
  const Layout one_axis{c.layout.offset, c.layout.gap, c.layout.step};
  const bool sparse = c.kind == Kind::kSparse;
  Matrix dy(c.format, c.tokens, c.dim, c.layout);
  Matrix out(c.widens ? kSingle : c.format, sparse ? c.tokens : c.vocab, c.dim, one_axis);
  dy.fill();
  if (c.kind == Kind::kAdded) out.fill();
  for (Matrix* one : {&dy, &out}) one->upload(target);
  Ids ids(c.tokens, kStart, c.vocab, target, /*skewed=*/true);
  Integers rows_ids(c.tokens, target), count(1, target);
  EmbeddingBackwardOptions options;
  options.vocab_start = kStart;
  options.padding_idx = kStart + 1;
  options.scale = 1.75;
  options.scale_grad_by_freq = c.widens;
  options.accumulate = c.kind == Kind::kAdded;
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView gradient = dy.view(side), tokens = ids.view(side, dy.split());
    if (sparse) {
      embedding_backward_sparse(gradient, tokens, c.vocab, options, rows_ids.view(side, true),
                                out.view(side), count.view(side, false), nullptr, target.stream);
    } else {
      embedding_backward(gradient, tokens, options, out.view(side), nullptr, target.stream);
    }
  }
  return out.wrong(target, 0.0) + (sparse ? rows_ids.wrong(target) + count.wrong(target) : 0);
}

// {16-byte vectors per row, tokens}: around a warp and above a block of vectors; tokens for less
// than a piece, for several pieces, and more than one block sorts.
constexpr std::int64_t kSizes[][2] = {{1, 40},   {3, 7},    {32, 100}, {129, 700},
                                      {1100, 4}, {2, 3000}, {1, 20000}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
