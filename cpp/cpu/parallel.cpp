// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/float_mode.hpp"
#include "cpu/threads.hpp"
#include "membound/device.hpp"

namespace membound::cpu {

namespace {

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until value differs from old: spins first (a hot hand-over takes 0.3 us, a futex wake-up at
// least 4 us), then sleeps, so that idle workers cost no core.
std::uint32_t await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  constexpr auto kPatience = std::chrono::microseconds(20);
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() - start < kPatience);
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

struct Job {
  RangeFunction function;
  void* context;
  std::int64_t first, last;
};

// Worker threads that live as long as the process. The pool is never destroyed: its threads sleep
// at exit, and one that still computes keeps valid memory. A forked child has none of the threads,
// so it drops the pool and builds its own on demand.
class Pool {
 public:
  // Null while another thread uses the pool: the caller then works alone, which cannot deadlock.
  static Pool* acquire() noexcept;
  void release() noexcept { busy_.store(false, std::memory_order_release); }

  // Starts missing workers; returns how many there are, at most `wanted`.
  std::int64_t grow(std::int64_t wanted) noexcept;
  void start(std::int64_t worker, const Job& job) noexcept;
  void await_all() noexcept;
  void expect(std::uint32_t workers) noexcept {
    pending_.store(workers, std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Worker {
    std::atomic<std::uint32_t> ticket{0};
    Job job{};
  };
  void serve(Worker& worker) noexcept;

  static std::atomic<Pool*> current_;
  std::atomic<bool> busy_{false};
  alignas(64) std::atomic<std::uint32_t> pending_{0};
  std::vector<std::unique_ptr<Worker>> workers_;
};

std::atomic<Pool*> Pool::current_{nullptr};

Pool* Pool::acquire() noexcept {
  static const bool watching = [] {
    return pthread_atfork(nullptr, nullptr, [] {
             current_.store(nullptr);
             forget_thread_limit();
           }) == 0;
  }();
  if (!watching) return nullptr;
  Pool* pool = current_.load(std::memory_order_acquire);
  if (pool == nullptr) {
    Pool* fresh = new (std::nothrow) Pool;
    if (fresh == nullptr) return nullptr;
    if (current_.compare_exchange_strong(pool, fresh)) {
      pool = fresh;
    } else {
      delete fresh;
    }
  }
  return pool->busy_.exchange(true, std::memory_order_acquire) ? nullptr : pool;
}

std::int64_t Pool::grow(std::int64_t wanted) noexcept {
  const auto count = [&] { return static_cast<std::int64_t>(workers_.size()); };
  if (count() >= wanted) return wanted;
  // Signals stay blocked in workers: the host program's handlers run in its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    while (count() < wanted) {
      workers_.push_back(std::make_unique<Worker>());
      try {
        std::thread([this, worker = workers_.back().get()] { serve(*worker); }).detach();
      } catch (...) {
        workers_.pop_back();
        throw;
      }
    }
  } catch (...) {
    // Out of threads or memory: the existing workers do the work.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return count();
}

void Pool::start(std::int64_t worker, const Job& job) noexcept {
  Worker& chosen = *workers_[static_cast<std::size_t>(worker)];
  chosen.job = job;
  chosen.ticket.fetch_add(1, std::memory_order_release);
  chosen.ticket.notify_one();
}

void Pool::serve(Worker& worker) noexcept {
  const FloatMode ieee;  // a thread inherits the mode of its creator
  std::uint32_t seen = 0;
  for (;;) {
    seen = await_change(worker.ticket, seen);
    worker.job.function(worker.job.context, worker.job.first, worker.job.last);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void Pool::await_all() noexcept {
  for (std::uint32_t left = pending_.load(std::memory_order_acquire); left != 0;) {
    left = await_change(pending_, left);
  }
}

}  // namespace

void run_in_parts(std::int64_t count, std::int64_t parts, RangeFunction function, void* context) {
  parts = std::min<std::int64_t>(parts, cpu_threads());
  Pool* pool = parts > 1 ? Pool::acquire() : nullptr;
  if (pool == nullptr) {
    function(context, 0, count);
    return;
  }
  const std::int64_t workers = pool->grow(parts - 1);
  parts = workers + 1;
  // The first count % parts parts get one item more.
  const auto bound = [&](std::int64_t part) {
    return count / parts * part + std::min(part, count % parts);
  };
  pool->expect(static_cast<std::uint32_t>(workers));
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    pool->start(worker, {function, context, bound(worker + 1), bound(worker + 2)});
  }
  function(context, 0, bound(1));
  pool->await_all();
  pool->release();
}

}  // namespace membound::cpu
