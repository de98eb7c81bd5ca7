// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <utility>

#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/stream.hpp"

using namespace membound;

TEST_CASE("stream: on the CPU it is empty and does nothing") {
  Stream stream(Device::cpu());
  CHECK(stream.view().handle() == nullptr);
  CHECK_NOTHROW(stream.synchronize());
  Stream moved(std::move(stream));
  CHECK(moved.device() == Device::cpu());
}

TEST_CASE("stream: a view keeps its handle") {
  int target = 0;
  CHECK(StreamView::from_handle(&target).handle() == &target);
  CHECK(StreamView::legacy_default().handle() == nullptr);
}

TEST_CASE("stream: a GPU's own stream, or why there is none") {
  if (cuda_status().device_count == 0) {
    MESSAGE("skipped on a GPU: " << cuda_status().message);
    CHECK_THROWS_AS(Stream(Device::cuda()), CudaError);
    return;
  }
  Stream stream(Device::cuda());
  CHECK(stream.view().handle() != nullptr);
  void* handle = stream.view().handle();
  Stream moved(std::move(stream));
  CHECK(moved.view().handle() == handle);
  CHECK_NOTHROW(moved.synchronize());
}
