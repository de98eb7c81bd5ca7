// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "hostile_calls.hpp"

// Every allocation of every op fails once: the call must throw, and must not have written anything.
namespace {

std::atomic<std::int64_t> allocations_left = -1;  // below 0: unlimited
bool runs_out() { return allocations_left.load() >= 0 && allocations_left.fetch_sub(1) == 0; }
// Only the allocation after this many fails.
struct Failing {
  explicit Failing(std::int64_t after) { allocations_left = after; }
  ~Failing() { allocations_left = -1; }
  bool happened() const { return allocations_left < 0; }
};

}  // namespace

extern "C" void* __real_malloc(std::size_t bytes);
extern "C" void* __wrap_malloc(std::size_t bytes) {
  return runs_out() ? nullptr : __real_malloc(bytes);
}
void* operator new(std::size_t bytes) {
  void* data = std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }

namespace membound_test {

namespace {

bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; }

// Numbers from 0.1 to 4 in any dtype of floats; integers stay 0.
void fill(Views& views) {
  std::uint32_t state = 1;
  for (const TensorView& view : views.outputs) {
    if (!is_float(view.dtype) && view.dtype != DType::kInt8) continue;
    char* const bytes = static_cast<char*>(view.data);
    for (std::int64_t i = 0; i < Views::kBytes / 2; ++i) {
      state = state * 1664525u + 1013904223u;
      bytes[i] = static_cast<char>(0x3d + (state >> 30) % 4);
    }
  }
}

enum class Dtypes { kFloat32, kBFloat16, kSeveral };

// The views of a call in these dtypes; statistics and tables stay float32.
Views views_of(const HostileCall& call, Dtypes dtypes) {
  Views views(call.arguments);
  for (std::size_t i = 0; i < views.outputs.size(); ++i) {
    const std::string name = call.arguments[i].name;
    const bool is_matrix = call.arguments[i].shape.size() >= 2 &&
                           name.find("rstd") == std::string::npos && name != "scale_out" &&
                           name != "mean" && name != "lse" && name != "cos" && name != "sin";
    if (views.outputs[i].dtype != DType::kFloat32 || !is_matrix) continue;
    const bool is_first = i == 0;
    if (dtypes == Dtypes::kBFloat16 || (dtypes == Dtypes::kSeveral && is_first))
      views.outputs[i].dtype = DType::kBFloat16;
  }
  fill(views);
  views.settle();
  return views;
}

// The number of allocations that failed in turn; 0 if the call is refused in these dtypes.
std::int64_t exhaust(const HostileCall& call, Dtypes dtypes) {
  try {
    call.run(views_of(call, dtypes));
  } catch (const Error&) {
    return 0;
  }
  for (std::int64_t after = 0;; ++after) {
    const Views views = views_of(call, dtypes);
    const std::vector<char> before = views.bytes();
    bool threw = false, reached = false;
    {
      const Failing failing(after);
      try {
        call.run(views);
      } catch (const std::bad_alloc&) {
        threw = true;
      } catch (const OutOfMemory&) {
        threw = true;
      }
      reached = failing.happened();
    }
    if (!reached) return after;
    CAPTURE(after);
    if (threw) CHECK(views.bytes() == before);
  }
}

// least: a lower bound of that number, so that the test cannot pass without a failure.
void exhaust_all(const std::vector<HostileCall>& calls, std::int64_t least) {
  std::int64_t failed = 0;
  for (const HostileCall& call : calls) {
    for (const Dtypes dtypes : {Dtypes::kFloat32, Dtypes::kBFloat16, Dtypes::kSeveral}) {
      CAPTURE(std::string(call.op));
      CAPTURE(static_cast<int>(dtypes));
      failed += exhaust(call, dtypes);
    }
  }
  CHECK(failed >= least);
}

}  // namespace

TEST_CASE("norms write nothing where memory runs out") { exhaust_all(norm_calls(), 50); }
TEST_CASE("embeddings and cross entropy write nothing where memory runs out") {
  exhaust_all(token_calls(), 20);
}
TEST_CASE("rotary embeddings write nothing where memory runs out") { exhaust_all(rope_calls(), 2); }
TEST_CASE("activations and softmax write nothing where memory runs out") {
  exhaust_all(row_calls(), 2);
}

}  // namespace membound_test
