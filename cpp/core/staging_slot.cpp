// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/staging_slot.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/check.hpp"
#include "core/route.hpp"
#include "membound/staging.hpp"
#include "membound/stream_pool.hpp"

namespace membound {

namespace {

// Enough that the slots of 16 threads rarely share a stream, which would serialise them.
constexpr std::size_t kStreams = 32;

class SlotCache {
 public:
  // Never destroyed: at exit, the CUDA runtime may already be gone.
  static SlotCache& instance() {
    static SlotCache* cache = new SlotCache;
    return *cache;
  }

  // Returns an idle slot of exactly this size, or a new one. Pinning takes milliseconds, so it
  // happens outside the lock.
  StagingSlot take(const char* op, Device device, std::size_t bytes) {
    StreamView stream = StreamView::legacy_default();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const StagingSlot& slot) {
        return slot.bytes == bytes && slot.device == device;
      });
      if (found != idle_.end()) {
        StagingSlot slot = std::move(*found);
        idle_.erase(found);
        return slot;
      }
      if (device.is_cuda()) stream = streams(op, device).next();
    }
    const Device host{device.is_cuda() ? DeviceKind::kCudaHost : DeviceKind::kCpu, device.index};
    return {device, bytes, stream, DeviceBuffer(2 * bytes, host, stream),
            DeviceBuffer(2 * bytes, device, stream)};
  }

  void give_back(StagingSlot slot) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool fits = cached_bytes() + slot.host_memory.bytes() <= options_.cached_bytes;
    if (slot.bytes == options_.slot_bytes && fits) idle_.push_back(std::move(slot));
  }

  void release() {
    std::vector<StagingSlot> released;  // freed after the lock is released
    const std::lock_guard<std::mutex> lock(mutex_);
    released.swap(idle_);
  }

  std::size_t bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cached_bytes();
  }

  StagingOptions options() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return options_;
  }

  void set_options(const StagingOptions& options) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      options_ = options;
    }
    release();
  }

 private:
  std::size_t cached_bytes() const {
    std::size_t sum = 0;
    for (const StagingSlot& slot : idle_) sum += slot.host_memory.bytes();
    return sum;
  }

  StreamPool& streams(const char* op, Device device) {
    std::unique_ptr<StreamPool>& pool = streams_[device.index];
    if (pool) return *pool;
    const CudaStatus status = cuda_status();
    if (status.device_count == 0) throw_cuda_unavailable(op);
    MEMBOUND_CHECK(device.index >= 0 && device.index < status.device_count, InvalidArgument, op,
                   "argument 'device' must name one of the ", status.device_count,
                   " GPUs of this machine, got ", device_name(device));
    pool = std::make_unique<StreamPool>(device, kStreams);
    return *pool;
  }

  std::mutex mutex_;
  StagingOptions options_;
  std::map<int, std::unique_ptr<StreamPool>> streams_;  // by device, never destroyed
  std::vector<StagingSlot> idle_;
};

}  // namespace

SlotLease::SlotLease(const char* op, Device device, std::size_t bytes)
    : slot_(SlotCache::instance().take(op, device, bytes)),
      exceptions_(std::uncaught_exceptions()) {}

SlotLease::~SlotLease() {
  if (!owner_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    SlotCache::instance().give_back(std::move(slot_));
    return;
  }
  try {
    slot_.wait();
  } catch (const Error&) {
    // Report the exception that is unwinding, not this one.
  }
}

SlotLease::SlotLease(SlotLease&& other) noexcept
    : slot_(std::move(other.slot_)),
      owner_(std::exchange(other.owner_, false)),
      exceptions_(other.exceptions_) {}

StagingOptions staging_options() { return SlotCache::instance().options(); }

void set_staging_options(const StagingOptions& options) {
  constexpr const char* kOp = "set_staging_options";
  MEMBOUND_CHECK(options.slot_bytes >= 4096, InvalidArgument, kOp,
                 "argument 'slot_bytes' must be at least 4096, got ", options.slot_bytes);
  MEMBOUND_CHECK(options.slots_per_thread >= 1, InvalidArgument, kOp,
                 "argument 'slots_per_thread' must be at least 1, got ", options.slots_per_thread);
  MEMBOUND_CHECK(options.threads >= 0, InvalidArgument, kOp,
                 "argument 'threads' must not be negative, got ", options.threads);
  SlotCache::instance().set_options(options);
}

std::size_t cached_staging_bytes() { return SlotCache::instance().bytes(); }

void release_staging() { SlotCache::instance().release(); }

}  // namespace membound
