// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// A kernel of one's own on membound's buffers and streams: sum = a + b, on the GPU when there is
// one.
#include <cstdio>
#include <exception>
#include <vector>

#include "membound/membound.hpp"

#ifdef EXAMPLE_WITH_CUDA
// vector_add.cu
void add_on_gpu(const float* a, const float* b, float* sum, std::size_t count,
                membound::StreamView stream);
#endif

namespace {

membound::Device choose_device() {
#ifdef EXAMPLE_WITH_CUDA
  if (membound::cuda_status().device_count > 0) return membound::Device::cuda();
#endif
  return membound::Device::cpu();
}

void add(const float* a, const float* b, float* sum, std::size_t count, membound::Device device,
         membound::StreamView stream) {
#ifdef EXAMPLE_WITH_CUDA
  if (device.is_cuda()) return add_on_gpu(a, b, sum, count, stream);
#endif
  (void)device, (void)stream;
  for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

// How many elements came back wrong.
std::size_t count_wrong(std::size_t count) {
  const membound::Device host = membound::Device::cpu();
  const membound::Device device = choose_device();
  const std::size_t bytes = count * sizeof(float);
  std::vector<float> a(count), b(count), sum(count);
  for (std::size_t i = 0; i < count; ++i) {
    a[i] = static_cast<float>(i % 1000);
    b[i] = 0.5f * static_cast<float>(i % 77);
  }

  // The pool comes first: the buffers are freed on its stream, so it has to outlive them.
  membound::StreamPool pool(device, 2);
  const membound::StreamView stream = pool.next();
  membound::DeviceBuffer device_a(bytes, device, stream);
  membound::DeviceBuffer device_b(bytes, device, stream);
  membound::DeviceBuffer device_sum(bytes, device, stream);

  membound::copy_bytes(device_a.data(), device, a.data(), host, bytes, stream);
  membound::copy_bytes(device_b.data(), device, b.data(), host, bytes, stream);
  add(device_a.as<float>(), device_b.as<float>(), device_sum.as<float>(), count, device, stream);
  membound::copy_bytes(sum.data(), host, device_sum.data(), device, bytes, stream);
  pool.synchronize();

  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += sum[i] != a[i] + b[i];
  std::printf("vector_add: %zu elements on %s, %zu wrong\n", count,
              membound::device_name(device).c_str(), wrong);
  return wrong;
}

}  // namespace

int main() {
  try {
    return count_wrong(1'000'003) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vector_add: %s\n", error.what());
    return 1;
  }
}
