// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "membound/error.hpp"

namespace membound::cpu {

namespace {
constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHugeBlock = std::size_t{4} << 20;  // below, the hint saves under 1 ms

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

thread_local AllocationCache* thread_cache = nullptr;

// Aligned memory from malloc, whose own address lies before it. glibc reuses what free took back
// for a malloc of the same size; for an aligned_alloc it maps new pages each time, and their faults
// take longer than most kernels.
void* allocate_aligned(std::size_t bytes, std::size_t alignment) noexcept {
  const std::size_t all = bytes + alignment + sizeof(void*);
  if (all < bytes) return nullptr;  // wrapped around
  void* const block = std::malloc(all);
  if (block == nullptr) return nullptr;
  const auto first = reinterpret_cast<std::uintptr_t>(block) + sizeof(void*);
  void* const data = reinterpret_cast<void*>(round_up(first, alignment));
  std::memcpy(static_cast<char*>(data) - sizeof(void*), &block, sizeof(void*));
  return data;
}
void free_aligned(void* data) noexcept {
  if (data == nullptr) return;
  void* block;
  std::memcpy(&block, static_cast<char*>(data) - sizeof(void*), sizeof(void*));
  std::free(block);
}

// Advises the system on the pages that lie wholly in a block.
bool advise(void* data, std::size_t bytes, int advice) noexcept {
  static const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = round_up(reinterpret_cast<std::uintptr_t>(data), page);
  const std::uintptr_t last = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  return last > first && madvise(reinterpret_cast<void*>(first), last - first, advice) == 0;
}

// The memory of one block of that size, or null.
template <std::size_t kCount>
void* take_from(std::array<FreedBlock, kCount>& blocks, std::size_t bytes) noexcept {
  for (FreedBlock& block : blocks) {
    if (block.data != nullptr && block.bytes == bytes) return std::exchange(block.data, nullptr);
  }
  return nullptr;
}

// Freed blocks of sizes that malloc maps anew each time: clearing new pages takes the system longer
// than most kernels. It may take these back whenever it runs short of memory.
class FreedBlocks {
 public:
  void* take(std::size_t bytes) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock ? take_from(blocks_, bytes) : nullptr;
  }
  // Returns what to free instead: the oldest block, or this one.
  void* put(void* data, std::size_t bytes) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !is_kept(bytes) || !advise(data, bytes, MADV_FREE)) return data;
    FreedBlock& oldest = blocks_[next_++ % blocks_.size()];
    return std::exchange(oldest, {data, bytes}).data;
  }
  void free_all() noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    for (FreedBlock& block : blocks_) {
      if (lock) free_aligned(std::exchange(block.data, nullptr));
    }
  }

 private:
  // glibc keeps smaller blocks, which are 32 MiB at most with what aligns them.
  static constexpr std::size_t kSmallest = (std::size_t{32} << 20) - kHugePage;
  static constexpr std::size_t kLargest = std::size_t{256} << 20;
  static bool is_kept(std::size_t bytes) { return bytes >= kSmallest && bytes <= kLargest; }

  std::mutex mutex_;  // only tried: after a fork it may be held by a thread that is not there
  std::array<FreedBlock, 2> blocks_;
  std::size_t next_ = 0;
};
FreedBlocks freed_blocks;

}  // namespace

AllocationCache::AllocationCache(bool wanted) {
  if (wanted) thread_cache = this;
}
AllocationCache::~AllocationCache() {
  if (thread_cache != this) return;
  thread_cache = nullptr;
  for (const FreedBlock& block : blocks_) free_aligned(block.data);
}

void* AllocationCache::take(std::size_t bytes) noexcept { return take_from(blocks_, bytes); }

bool AllocationCache::put_back(void* data, std::size_t bytes) noexcept {
  for (FreedBlock& block : blocks_) {
    if (block.data != nullptr) continue;
    block = {data, bytes};
    return true;
  }
  return false;
}

void* allocate(std::size_t bytes) {
  if (void* const cached = thread_cache != nullptr ? thread_cache->take(bytes) : nullptr)
    return cached;
  if (void* const freed = freed_blocks.take(bytes)) return freed;
  const std::size_t alignment = bytes >= kHugeBlock ? kHugePage : kLine;
  void* data = allocate_aligned(bytes, alignment);
  if (data == nullptr) {
    freed_blocks.free_all();
    data = allocate_aligned(bytes, alignment);
  }
  if (data == nullptr) {
    throw OutOfMemory("DeviceBuffer: cannot allocate " + std::to_string(bytes) + " bytes on cpu");
  }
  advise_huge_pages(data, bytes);
  return data;
}

void deallocate(void* data, std::size_t bytes) noexcept {
  if (thread_cache == nullptr || !thread_cache->put_back(data, bytes))
    free_aligned(freed_blocks.put(data, bytes));
}

void advise_huge_pages(void* data, std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  // A hint: if the kernel refuses it, the pages stay small and nothing else changes.
  if (bytes >= kHugeBlock) advise(data, bytes, MADV_HUGEPAGE);
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

}  // namespace membound::cpu
