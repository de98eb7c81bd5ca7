// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// GPUs that are not there: the library's objects are linked to a CUDA runtime (recorder.cpp) that
// launches nothing, but looks at every launch as the GPU it stands for would.
#include <cstdint>
#include <string>
#include <vector>

namespace membound_test {

struct Gpu {
  const char* name;
  int compute;  // capability, as in 90 for 9.0
  int multiprocessors;
  int shared_bytes;  // that a block can have
};

// Device i is the i-th.
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
// Where all calls are to be queued; nothing is at this address either.
inline void* stream_of_calls() { return reinterpret_cast<void*>(64); }
// What is called there, for messages.
void name_problem(std::string problem);
void name_op(const char* op);

// Launches that no GPU, or not this one, would take: one message for each kind of fault of a
// kernel on a GPU, with the first call that had it.
std::vector<std::string> take_faults();
std::int64_t launches();
std::string last_launched();  // the kernel's name

// Kernels of the library that no call has launched.
std::vector<std::string> never_launched();

}  // namespace membound_test
