// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/memory.hpp"
#include "membound/device_buffer.hpp"
#include "membound/error.hpp"

using namespace membound;

static_assert(!std::is_copy_constructible_v<DeviceBuffer>);
static_assert(std::is_nothrow_move_constructible_v<DeviceBuffer>);

TEST_CASE("device_buffer: host memory is aligned and writable to its last byte") {
  for (std::size_t bytes :
       {std::size_t{1}, std::size_t{100}, std::size_t{4096}, std::size_t{5} << 20}) {
    DeviceBuffer buffer(bytes, Device::cpu());
    CHECK(buffer.bytes() == bytes);
    const std::uintptr_t alignment = bytes >= (std::size_t{4} << 20) ? 2u << 20 : 64;
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment == 0);
    std::memset(buffer.data(), 7, bytes);
    CHECK(buffer.as<char>()[bytes - 1] == 7);
  }
}

#if defined(__linux__)
TEST_CASE("device_buffer: the last two large host blocks are allocated again") {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  DeviceBuffer first(kBytes, Device::cpu()), second(2 * kBytes, Device::cpu());
  std::memset(first.data(), 1, kBytes);
  void *const first_data = first.data(), *const second_data = second.data();
  first = {};
  second = {};
  first = DeviceBuffer(kBytes, Device::cpu());
  CHECK(first.data() == first_data);
  std::memset(first.data(), 2, kBytes);
  CHECK(first.as<char>()[kBytes - 1] == 2);
  second = DeviceBuffer(2 * kBytes, Device::cpu());
  CHECK(second.data() == second_data);
  CHECK(DeviceBuffer(kBytes, Device::cpu()).data() != first_data);
}
#endif

TEST_CASE("device_buffer: empty is legal, too large is OutOfMemory") {
  CHECK(DeviceBuffer(0, Device::cpu()).data() == nullptr);
  CHECK_THROWS_AS(DeviceBuffer(std::numeric_limits<std::size_t>::max(), Device::cpu()),
                  OutOfMemory);
  CHECK_THROWS_AS(DeviceBuffer(std::size_t{1} << 62, Device::cpu()), OutOfMemory);
}

TEST_CASE("device_buffer: moving hands the memory over") {
  DeviceBuffer first(64, Device::cpu());
  void* data = first.data();
  DeviceBuffer second(std::move(first));
  CHECK(second.data() == data);
  CHECK(first.data() == nullptr);
  DeviceBuffer third(32, Device::cpu());
  third = std::move(second);
  CHECK(third.data() == data);
  CHECK(third.bytes() == 64);
}

TEST_CASE("device_buffer: copy_bytes within the host") {
  DeviceBuffer from(300, Device::cpu()), to(300, Device::cpu());
  for (int i = 0; i < 300; ++i) from.as<char>()[i] = static_cast<char>(i);
  copy_bytes(to.data(), Device::cpu(), from.data(), Device::cpu(), 300,
             StreamView::legacy_default());
  CHECK(std::memcmp(from.data(), to.data(), 300) == 0);
}

TEST_CASE("device_buffer: the huge-page hint takes any range and changes no byte") {
  std::vector<char> bytes(std::size_t{6} << 20, 3);
  cpu::advise_huge_pages(bytes.data() + 1, bytes.size() - 1);
  cpu::advise_huge_pages(bytes.data(), 10);
  cpu::advise_huge_pages(nullptr, 0);
  CHECK(bytes.front() == 3);
  CHECK(bytes.back() == 3);
}

TEST_CASE("device_buffer: there and back on a GPU") {
  if (cuda_status().device_count == 0) {
    MESSAGE("skipped on a GPU: " << cuda_status().message);
    CHECK_THROWS_AS(DeviceBuffer(16, Device::cuda()), CudaError);
    return;
  }
  Stream stream(Device::cuda());
  std::vector<float> sent(1000), received(1000);
  for (int i = 0; i < 1000; ++i) sent[i] = static_cast<float>(i);
  DeviceBuffer buffer(4000, Device::cuda(), stream);
  copy_bytes(buffer.data(), Device::cuda(), sent.data(), Device::cpu(), 4000, stream);
  copy_bytes(received.data(), Device::cpu(), buffer.data(), Device::cuda(), 4000, stream);
  stream.synchronize();
  CHECK(sent == received);
}
