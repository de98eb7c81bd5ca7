// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
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

}  // namespace

AllocationCache::AllocationCache(bool wanted) {
  if (wanted) thread_cache = this;
}
AllocationCache::~AllocationCache() {
  if (thread_cache != this) return;
  thread_cache = nullptr;
  for (const Block& block : blocks_) free_aligned(block.data);
}

void* AllocationCache::take(std::size_t bytes) noexcept {
  for (Block& block : blocks_) {
    if (block.data != nullptr && block.bytes == bytes) return std::exchange(block.data, nullptr);
  }
  return nullptr;
}

bool AllocationCache::put_back(void* data, std::size_t bytes) noexcept {
  for (Block& block : blocks_) {
    if (block.data != nullptr) continue;
    block = {data, bytes};
    return true;
  }
  return false;
}

void* allocate(std::size_t bytes) {
  if (void* const cached = thread_cache != nullptr ? thread_cache->take(bytes) : nullptr)
    return cached;
  const std::size_t alignment = bytes >= kHugeBlock ? kHugePage : kLine;
  void* const data = allocate_aligned(bytes, alignment);
  if (data == nullptr) {
    throw OutOfMemory("DeviceBuffer: cannot allocate " + std::to_string(bytes) + " bytes on cpu");
  }
  advise_huge_pages(data, bytes);
  return data;
}

void deallocate(void* data, std::size_t bytes) noexcept {
  if (thread_cache == nullptr || !thread_cache->put_back(data, bytes)) free_aligned(data);
}

void advise_huge_pages(void* data, std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  if (bytes < kHugeBlock) return;
  static const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = round_up(reinterpret_cast<std::uintptr_t>(data), page);
  const std::uintptr_t last = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  // A hint: if the kernel refuses it, the pages stay small and nothing else changes.
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

}  // namespace membound::cpu
