// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "array.hpp"
#include "cpu/parallel.hpp"
#include "membound/ops/rms_norm.hpp"

using namespace membound_test;

namespace {

// Checks that every item is visited once, for any split; returns the number of ranges.
int covered_ranges(std::int64_t count, std::int64_t grain) {
  std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
  std::atomic<int> ranges{0};
  cpu::parallel_for(count, grain, [&](std::int64_t first, std::int64_t last) {
    ++ranges;
    for (std::int64_t i = first; i < last; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  for (auto& visit : visits) {
    if (visit != 1) return -1;
  }
  return ranges;
}

// Large enough for three threads.
struct LargeCase {
  Array x{DType::kFloat32, {300, 1031}};
  Array expected{DType::kFloat32, {300, 1031}};

  LargeCase() {
    x.fill_normal(test_seed());
    set_cpu_threads(1);
    run(expected);
    set_cpu_threads(0);
  }
  void run(const Array& out) const {
    rms_norm(x.view(), nullptr, {}, out.view(), nullptr, StreamView::legacy_default());
  }
  bool repeats() const {
    Array out(DType::kFloat32, {300, 1031});
    run(out);
    return out.first_difference(expected) == -1;
  }
};

}  // namespace

TEST_CASE("parallel: every item once, in no more parts than threads and grain allow") {
  for (int threads : {1, 2, 3, 7}) {
    set_cpu_threads(threads);
    for (std::int64_t count : {0, 1, 2, 5, 100, 1000}) {
      for (std::int64_t grain : {1, 3, 600}) {
        CAPTURE(threads);
        CAPTURE(count);
        CAPTURE(grain);
        const int ranges = covered_ranges(count, grain);
        const std::int64_t most =
            std::min<std::int64_t>(threads, std::max<std::int64_t>(1, count / grain));
        CHECK(ranges >= (count > 0 ? 1 : 0));
        CHECK(ranges <= most);
      }
    }
  }
  set_cpu_threads(0);
}

TEST_CASE("parallel: three threads really are three") {
  set_cpu_threads(3);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  cpu::parallel_for(3, 1, [&](std::int64_t, std::int64_t) {
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  CHECK(seen.size() == 3);
  set_cpu_threads(0);
}

TEST_CASE("parallel: a call inside a call runs alone") {
  set_cpu_threads(3);
  std::atomic<std::int64_t> total{0};
  cpu::parallel_for(6, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      cpu::parallel_for(10, 1, [&](std::int64_t a, std::int64_t b) { total += b - a; });
    }
  });
  CHECK(total == 60);
  set_cpu_threads(0);
}

TEST_CASE("parallel: results do not depend on the number of threads") {
  const LargeCase large;
  for (int threads : {1, 2, 3, 16}) {
    set_cpu_threads(threads);
    CHECK(large.repeats());
  }
  set_cpu_threads(0);
}

TEST_CASE("parallel: many callers at once") {
  const LargeCase large;
  set_cpu_threads(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      for (int turn = 0; turn < 20; ++turn) wrong += large.repeats() ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
  set_cpu_threads(0);
}

TEST_CASE("parallel: a forked child builds its own pool") {
  const LargeCase large;
  set_cpu_threads(3);
  REQUIRE(large.repeats());
  // A thread keeps the pool busy during the fork: the child must not inherit its lock.
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) large.repeats();
  });
  for (int turn = 0; turn < 10; ++turn) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(60);  // a hang is a failure with a signal, not a stuck test
      _exit(large.repeats() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  stop = true;
  busy.join();
  CHECK(large.repeats());
  set_cpu_threads(0);
}
