// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "membound/device.hpp"
#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

// Stages host arrays through a GPU. Chunks of rows go through page-locked buffers, several at once,
// so that copying in, upload, work, download and copying out of different chunks overlap.
namespace membound {

// A host array. Its first row_axes axes count the rows, of which all arrays of a call have as many.
template <class View>
struct StagedArray {
  View array;
  const char* name;
  int row_axes;
};

struct StagedCall {
  const char* op;  // op and array names are for error texts
  Device device;
  std::vector<StagedArray<ConstTensorView>> inputs;
  std::vector<StagedArray<TensorView>> outputs;
  std::vector<StagedArray<ConstTensorView>> constants;  // needed by every row: the weight
};

// The same arrays on the device, for some of the rows: contiguous, with the row axes merged.
struct StagedChunk {
  std::vector<ConstTensorView> inputs;
  std::vector<TensorView> outputs;
  std::vector<ConstTensorView> constants;
  StreamView stream;
};

// Queues the work on one chunk. Called from several threads at once, with the device current.
using StagedOp = std::function<void(const StagedChunk&)>;

// Returns when all outputs are written. An output may be an input's own array (in place); any other
// overlap is the caller's to refuse. If CUDA or op fails, the exception is thrown after all queued
// work has ended, and some rows of the outputs may have been written. On the CPU the same chunks
// are copied and run without a GPU.
MEMBOUND_API void run_staged(const StagedCall& call, const StagedOp& op);

struct StagingOptions {
  std::size_t slot_bytes = 2 << 20;      // of a chunk, per direction; at least 4096
  int slots_per_thread = 2;              // chunks that one thread keeps in flight
  int threads = 0;                       // 0, and at most: cpu_threads()
  std::size_t cached_bytes = 256 << 20;  // page-locked memory cached between calls: pinning is slow
};
MEMBOUND_API StagingOptions staging_options();
// Throws InvalidArgument. Running calls keep the options they started with.
MEMBOUND_API void set_staging_options(const StagingOptions& options);

// Page-locked bytes cached between calls, and a function that frees them (with the GPU's share).
MEMBOUND_API std::size_t cached_staging_bytes();
MEMBOUND_API void release_staging();

}  // namespace membound
