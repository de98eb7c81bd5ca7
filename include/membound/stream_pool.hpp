// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "membound/stream.hpp"

namespace membound {

// A fixed set of streams on one device, handed out round-robin. Thread-safe; the pool must outlive
// the work queued on its streams.
class MEMBOUND_API StreamPool {
 public:
  // size: at least 1, else InvalidArgument.
  explicit StreamPool(Device device, std::size_t size = 4);
  StreamPool(const StreamPool&) = delete;
  StreamPool& operator=(const StreamPool&) = delete;

  StreamView next() noexcept {
    return streams_[turn_.fetch_add(1, std::memory_order_relaxed) % streams_.size()];
  }
  StreamView at(std::size_t index) const { return streams_.at(index); }
  std::size_t size() const noexcept { return streams_.size(); }
  void synchronize() const;

 private:
  std::vector<Stream> streams_;
  std::atomic<std::size_t> turn_{0};
};

}  // namespace membound
