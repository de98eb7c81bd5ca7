// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>

#include "membound/ndarray.hpp"

namespace membound {

StreamView array_stream(Device device) {
  if (!device.is_cuda()) return StreamView::from_handle(nullptr);
  // Never destroyed: buffers that outlive static objects are freed on their stream.
  static auto& mutex = *new std::mutex;
  static auto& streams = *new std::map<std::int32_t, Stream>;
  const std::lock_guard<std::mutex> guard(mutex);
  const auto found = streams.find(device.index);
  return found != streams.end() ? found->second
                                : streams.emplace(device.index, Stream(device)).first->second;
}

}  // namespace membound
