// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "cpu/parallel.hpp"

namespace membound {

// Hands out chunk numbers to several threads.
class ChunkQueue {
 public:
  explicit ChunkQueue(std::int64_t chunks) : chunks_(chunks) {}

  // false: no chunk is left.
  bool take(std::int64_t& chunk) {
    chunk = next_.fetch_add(1, std::memory_order_relaxed);
    return chunk < chunks_;
  }
  void stop() { next_.store(chunks_, std::memory_order_relaxed); }

 private:
  const std::int64_t chunks_;
  std::atomic<std::int64_t> next_{0};
};

// One thread's part: fills one slot while work from its other slots runs, with no barrier between
// threads. All threads share `stages`: acquire() gives a Slot, whose destructor waits like wait()
// if an exception unwinds, so no queued work outlives this call; fill(slot, chunk) runs on the
// host; launch(slot, chunk) queues work on the slot; wait(slot) waits for it; drain(slot, chunk)
// runs on the host.
template <class Stages>
void run_pipeline(Stages& stages, ChunkQueue& queue, int depth) {
  struct Flight {
    decltype(stages.acquire()) slot;
    std::int64_t chunk = -1;  // -1: nothing is queued
  };
  std::vector<Flight> flights;
  flights.reserve(depth);
  const auto finish = [&](Flight& flight) {
    if (flight.chunk < 0) return;
    stages.wait(flight.slot);
    stages.drain(flight.slot, flight.chunk);
    flight.chunk = -1;
  };
  try {
    std::int64_t chunk = 0;
    std::size_t next_slot = 0;
    for (; queue.take(chunk); ++next_slot) {
      if (next_slot < flights.capacity()) flights.push_back({stages.acquire()});
      Flight& flight = flights[next_slot % flights.size()];
      finish(flight);
      stages.fill(flight.slot, chunk);
      flight.chunk = chunk;
      stages.launch(flight.slot, chunk);
    }
    for (std::size_t i = 0; i < flights.size(); ++i)
      finish(flights[(next_slot + i) % flights.size()]);
  } catch (...) {
    queue.stop();
    throw;
  }
}

// The same on up to `threads` threads. Throws the first exception, after all threads have ended.
template <class Stages>
void run_pipelines(Stages& stages, std::int64_t chunks, int threads, int depth) {
  ChunkQueue queue(chunks);
  std::mutex mutex;
  std::exception_ptr first;
  cpu::parallel_for(std::min<std::int64_t>(threads, chunks), 1, [&](std::int64_t, std::int64_t) {
    try {
      run_pipeline(stages, queue, depth);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!first) first = std::current_exception();
    }
  });
  if (first) std::rethrow_exception(first);
}

}  // namespace membound
