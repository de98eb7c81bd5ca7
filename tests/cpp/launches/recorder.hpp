// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Simulated GPUs: the library is linked to a CUDA runtime (recorder.cpp) that launches nothing, but
// checks every launch against the limits of the GPU that it simulates.
#include <cstdint>
#include <string>
#include <vector>

namespace membound_test {

struct Gpu {
  const char* name;
  int compute;  // compute capability, 90 for 9.0
  int multiprocessors;
  int shared_bytes;  // maximum per block
};

// Device i is element i.
inline constexpr Gpu kGpus[] = {
    {"T4", 75, 40, 64 << 10},
    {"A100", 80, 108, 163 << 10},
    {"RTX 3050 laptop", 86, 16, 99 << 10},
    {"RTX 4090", 89, 128, 99 << 10},
    {"H100", 90, 132, 227 << 10},
    {"H100, a seventh", 90, 16, 227 << 10},
    {"B200", 100, 148, 227 << 10},
    {"RTX 5090", 120, 170, 99 << 10},
};
inline constexpr int kGpuCount = sizeof(kGpus) / sizeof(kGpus[0]);

// Makes a GPU the current device.
void use_gpu(int gpu);
// The stream of all calls; its address is not mapped either.
inline void* stream_of_calls() { return reinterpret_cast<void*>(64); }
// The current call, for messages.
void name_problem(std::string problem);
void name_op(const std::string& op);

// Whether the current call may copy to the host and wait for the stream.
void allow_waits(bool allowed);

// Launches that no GPU, or not this one, would accept: one message per kind of fault, kernel and
// GPU, with the first call that caused it.
std::vector<std::string> take_faults();
std::int64_t launches();
std::string last_launched();  // the kernel's name

// The library's kernels that no call has launched.
std::vector<std::string> never_launched();

}  // namespace membound_test
