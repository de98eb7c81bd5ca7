// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/pipeline.hpp"

namespace membound {

namespace {

// A mock device that runs queued work only when it is waited for, and detects any wrong order.
class FakeDevice {
 public:
  struct State {
    std::int64_t filled = -1, queued = -1, done = -1;
  };

  // Owns its state; its destructor waits for queued work, as the contract requires.
  class Slot {
   public:
    Slot(FakeDevice& device, std::int64_t id) : device_(&device), id_(id) {}
    Slot(Slot&& other) noexcept : device_(other.device_), id_(other.id_), state(other.state) {
      other.device_ = nullptr;
    }
    ~Slot() {
      if (device_ == nullptr) return;
      if (state.queued >= 0) --device_->in_flight;
      ++device_->destroyed;
    }

   private:
    FakeDevice* device_;
    std::int64_t id_;

   public:
    State state;
  };

  Slot acquire() {
    fail_at("acquire", acquired);
    return Slot(*this, acquired++);
  }
  void fill(Slot& slot, std::int64_t chunk) {
    expect(slot.state.queued < 0 && slot.state.done < 0, "fill of a slot in use");
    fail_at("fill", chunk);
    overlapped += in_flight.load();
    slot.state.filled = chunk;
  }
  void launch(Slot& slot, std::int64_t chunk) {
    expect(slot.state.filled == chunk, "launch of what was not filled");
    slot.state.queued = chunk;
    most_in_flight = std::max<std::int64_t>(most_in_flight, ++in_flight);
    fail_at("launch", chunk);
  }
  void wait(Slot& slot) {
    expect(slot.state.queued >= 0, "wait for nothing");
    fail_at("wait", slot.state.queued);
    slot.state.done = slot.state.queued;
    slot.state.queued = -1;
    --in_flight;
  }
  void drain(Slot& slot, std::int64_t chunk) {
    expect(slot.state.done == chunk, "drain of what has not ended");
    fail_at("drain", chunk);
    slot.state = {};
    const std::lock_guard<std::mutex> lock(mutex_);
    expect(drained.insert(chunk).second, "chunk drained twice");
  }

  std::string failing_stage;
  std::int64_t failing_chunk = -1;

  std::atomic<std::int64_t> acquired{0}, destroyed{0}, in_flight{0}, overlapped{0};
  std::int64_t most_in_flight = 0;
  std::set<std::int64_t> drained;

 private:
  static void expect(bool condition, const char* what) {
    if (!condition) throw std::logic_error(what);
  }
  void fail_at(const char* stage, std::int64_t chunk) const {
    if (failing_stage == stage && chunk == failing_chunk) throw std::runtime_error(stage);
  }

  std::mutex mutex_;
};

}  // namespace

TEST_CASE("each chunk passes all stages once, in as many slots as are allowed") {
  for (std::int64_t chunks : {0, 1, 2, 3, 4, 17}) {
    for (int depth : {1, 2, 3}) {
      CAPTURE(chunks);
      CAPTURE(depth);
      FakeDevice device;
      ChunkQueue queue(chunks);
      run_pipeline(device, queue, depth);
      CHECK(device.drained.size() == static_cast<std::size_t>(chunks));
      CHECK(device.in_flight == 0);
      CHECK(device.acquired == std::min<std::int64_t>(depth, chunks));
      CHECK(device.most_in_flight == std::min<std::int64_t>(depth, chunks));
      CHECK(device.destroyed == device.acquired);
    }
  }
}

TEST_CASE("the host fills one slot while the others run") {
  FakeDevice device;
  ChunkQueue queue(100);
  run_pipeline(device, queue, 3);
  CHECK(device.overlapped == 0 + 1 + 98 * 2);
}

TEST_CASE("threads share the chunks") {
  FakeDevice device;
  ChunkQueue queue(1000);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      try {
        run_pipeline(device, queue, 2);
      } catch (...) {
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK(device.drained.size() == 1000);
  CHECK(device.acquired <= 8);
  CHECK(device.in_flight == 0);
}

TEST_CASE("a failure in any stage comes out, after the queued work, and stops the others") {
  for (const char* stage : {"acquire", "fill", "launch", "wait", "drain"}) {
    for (std::int64_t chunk : {0, 1, 5, 9}) {
      if (std::string(stage) == "acquire" && chunk > 2) continue;  // slots, not chunks
      CAPTURE(stage);
      CAPTURE(chunk);
      FakeDevice device;
      device.failing_stage = stage;
      device.failing_chunk = chunk;
      ChunkQueue queue(10);
      CHECK_THROWS_WITH_AS(run_pipeline(device, queue, 3), stage, std::runtime_error);
      CHECK(device.in_flight == 0);
      CHECK(device.destroyed == device.acquired);
      CHECK(device.drained.count(chunk) == 0);
      std::int64_t left = 0;
      CHECK_FALSE(queue.take(left));
    }
  }
}

}  // namespace membound
