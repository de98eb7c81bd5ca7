// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/stream_pool.hpp"

using namespace membound;

TEST_CASE("stream_pool: needs a stream") {
  CHECK_THROWS_AS(StreamPool(Device::cpu(), 0), InvalidArgument);
}

TEST_CASE("stream_pool: hands out its streams in turn") {
  const bool has_gpu = cuda_status().device_count > 0;
  if (!has_gpu) MESSAGE("skipped on a GPU: " << cuda_status().message);
  StreamPool pool(has_gpu ? Device::cuda() : Device::cpu(), 3);
  CHECK(pool.size() == 3);
  for (std::size_t i = 0; i < 7; ++i) CHECK(pool.next().handle() == pool.at(i % 3).handle());
  if (has_gpu) CHECK(pool.at(0).handle() != pool.at(1).handle());
  CHECK_NOTHROW(pool.synchronize());
  CHECK_THROWS(pool.at(3));
}
