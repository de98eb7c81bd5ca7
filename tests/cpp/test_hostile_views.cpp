// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Every argument of every op with invalid ranks, extents, strides, addresses and dtypes. Built with
// the sanitizers (tests/cpp/CMakeLists.txt), which detect reads before the error.
#include <doctest/doctest.h>

#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <string>

#include "hostile_calls.hpp"

namespace membound_test {

namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::vector<HostileCall> every_call() {
  std::vector<HostileCall> all;
  for (const auto& some : {norm_calls(), token_calls(), rope_calls(), row_calls()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// Corruptions that a call must refuse, and those that it may accept.
enum class Spoiled { kMust, kMay };

class Spoiler {
 public:
  explicit Spoiler(std::mt19937_64& engine) : engine_(engine) {}

  Spoiled spoil(TensorView& view) {
    switch (pick(9)) {
      case 0: return set_rank(view);
      case 1: return set_extent(view, -1 - pick(3), Spoiled::kMust);
      case 2: return set_extent(view, pick(2) ? kLeast : kLeast / 8, Spoiled::kMust);
      case 3: return overflow(view);
      case 4: return set_extent(view, pick(2) ? std::int64_t{1} << 32 : kMost / 64, Spoiled::kMay);
      case 5: return set_stride(view);
      case 6: return set_address(view);
      case 7: return set_small_geometry(view);
      default: return set_dtype(view);
    }
  }

 private:
  std::int64_t pick(std::int64_t count) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(count));
  }
  int some_axis(const TensorView& view) {
    return view.rank > 0 ? static_cast<int>(pick(view.rank)) : 0;
  }
  static void grow(TensorView& view, int rank) {
    for (int axis = view.rank; axis < rank; ++axis) view.shape[axis] = view.strides[axis] = 1;
    view.rank = rank;
  }

  Spoiled set_rank(TensorView& view) {
    constexpr std::int32_t kRanks[] = {65,
                                       66,
                                       100,
                                       1 << 20,
                                       std::numeric_limits<std::int32_t>::max(),
                                       -1,
                                       -2,
                                       std::numeric_limits<std::int32_t>::min()};
    if (pick(4) == 0) {
      grow(view, kMaxRank);
      return Spoiled::kMay;
    }
    grow(view, kMaxRank);
    view.rank = kRanks[pick(8)];
    return Spoiled::kMust;
  }
  // Large extents have a stride of 0, so that the view stays within its memory.
  Spoiled set_extent(TensorView& view, std::int64_t extent, Spoiled spoiled) {
    grow(view, std::max(view.rank, 1));
    const int axis = some_axis(view);
    view.shape[axis] = extent;
    view.strides[axis] = 0;
    return spoiled;
  }
  Spoiled overflow(TensorView& view) {
    grow(view, std::max(view.rank, 2));
    for (int axis = 0; axis < view.rank; ++axis) {
      view.shape[axis] = std::max<std::int64_t>(view.shape[axis], 1);
      view.strides[axis] = 0;
    }
    const int first = some_axis(view);
    view.shape[first] = (std::int64_t{1} << 33) + pick(2);
    view.shape[(first + 1) % view.rank] = std::int64_t{1} << (30 + pick(32));
    return Spoiled::kMust;
  }
  Spoiled set_stride(TensorView& view) {
    constexpr std::int64_t kStrides[] = {kLeast, kMost, kLeast + 1, kMost / 2, kLeast / 4};
    grow(view, std::max(view.rank, 1));
    const int axis = some_axis(view);
    view.strides[axis] = kStrides[pick(5)];
    return view.shape[axis] > 1 ? Spoiled::kMust : Spoiled::kMay;
  }
  Spoiled set_address(TensorView& view) {
    if (pick(2)) {
      view.data = static_cast<char*>(view.data) + 1;
      return Spoiled::kMay;
    }
    view.data = nullptr;
    return Spoiled::kMust;
  }
  Spoiled set_small_geometry(TensorView& view) {
    grow(view, static_cast<int>(std::max<std::int64_t>(view.rank, pick(5))));
    const int axis = some_axis(view);
    if (pick(2)) view.shape[axis] = pick(9);
    if (pick(2)) view.strides[axis] = pick(33) - 16;
    if (pick(4) == 0) view.rank = static_cast<std::int32_t>(pick(view.rank + 1));
    return Spoiled::kMay;
  }
  Spoiled set_dtype(TensorView& view) {
    view.dtype = static_cast<DType>(pick(4) ? pick(17) : pick(256));
    return Spoiled::kMay;
  }

  std::mt19937_64& engine_;
};

// The text of the error; empty if the call succeeded.
std::string refusal(const HostileCall& call, const Views& views) {
  try {
    call.run(views);
    return {};
  } catch (const Error& error) {
    REQUIRE(*error.what() != '\0');
    return error.what();
  }
}

// Not every array is required.
void leave_out_some(const HostileCall& call, Views& views, std::mt19937_64& engine) {
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (call.arguments[i].optional) views.given[i] = engine() % 4 != 0;
  }
}

// One or two corruptions.
std::set<std::size_t> some_arguments(const HostileCall& call, std::mt19937_64& engine) {
  return {engine() % call.arguments.size(), engine() % call.arguments.size()};
}

}  // namespace

TEST_CASE("the calls are valid before anything is spoiled") {
  for (const HostileCall& call : every_call()) {
    Views views(call.arguments);
    views.settle();
    INFO(std::string(call.op));
    CHECK(refusal(call, views) == "");
  }
}

TEST_CASE("every argument says that it has too many axes, and no call writes before") {
  for (const HostileCall& call : every_call()) {
    for (std::size_t i = 0; i < call.arguments.size(); ++i) {
      for (const int rank : {65, 1000, -1}) {
        Views views(call.arguments);
        views.outputs[i].rank = rank;
        views.settle();
        const std::vector<char> before = views.bytes();
        const std::string text = refusal(call, views);
        const std::string where = std::string(call.op) + " " + call.arguments[i].name + ": " + text;
        INFO(where);
        CHECK(text.find(std::string("argument '") + call.arguments[i].name + "' must have ") !=
              std::string::npos);
        CHECK(text.find(" axes, got " + std::to_string(rank)) != std::string::npos);
        CHECK(views.bytes() == before);
      }
    }
  }
}

TEST_CASE("spoiled views are refused, or read within their memory") {
  const char* wanted = std::getenv("MEMBOUND_TEST_SEED");
  const std::uint64_t seed =
      wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device{}();
  std::printf("MEMBOUND_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 engine(seed);
  Spoiler spoiler(engine);
  for (const HostileCall& call : every_call()) {
    for (int trial = 0; trial < 500; ++trial) {
      Views views(call.arguments);
      leave_out_some(call, views, engine);
      bool must = false;
      std::string what = call.op;
      for (const std::size_t at : some_arguments(call, engine)) {
        if (!views.given[at]) continue;
        must = spoiler.spoil(views.outputs[at]) == Spoiled::kMust || must;
        what += std::string(" ") + call.arguments[at].name;
      }
      views.settle();
      const std::vector<char> before = views.bytes();
      const std::string text = refusal(call, views);
      INFO("seed " << seed << ", trial " << trial << " of " << what << ": " << text);
      CHECK((!must || !text.empty()));
      if (!text.empty()) CHECK(views.bytes() == before);
    }
  }
}

}  // namespace membound_test
