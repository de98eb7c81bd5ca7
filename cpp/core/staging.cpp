// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/staging.hpp"

#include <algorithm>

#include "core/pipeline.hpp"
#include "core/route.hpp"
#include "core/staging_slot.hpp"
#include "core/strided_copy.hpp"

namespace membound {

namespace {

// Kernels prefer aligned rows; cudaMalloc itself aligns to 256 bytes.
constexpr std::size_t kAlignment = 256;
// Small calls get smaller chunks, so that all threads copy. Below this size, the microseconds to
// start a transfer would be a visible part of it (5 us at 55 GB/s).
constexpr std::size_t kSmallestChunkBytes = 256 << 10;
constexpr std::int64_t kChunksPerThread = 4;
// Rows longer than a slot go to the GPU in groups of about this many slots: enough for all threads.
constexpr std::size_t kSlotsPerGroup = 32;
constexpr std::int64_t kWhole = -1;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <class View>
struct Staged {
  View array;
  int row_axes;
  StridedLayout layout;
  std::int64_t row_elements = 1;
  std::size_t row_bytes = 0;
  std::size_t offset = 0;  // in the memory of a chunk

  Staged(const StagedArray<View>& from, const char* op)
      : array(from.array), row_axes(from.row_axes), layout(strided_layout(array, op, from.name)) {
    for (int axis = row_axes; axis < array.rank; ++axis) row_elements *= array.shape[axis];
    row_bytes = static_cast<std::size_t>(row_elements) * dtype_size(array.dtype);
  }

  // Contiguous rows at data + offset, with the row axes merged; a whole array (kWhole) has no row
  // axes.
  View rows_at(char* data, std::int64_t rows, Device device) const {
    View view;
    view.data = data + offset;
    view.dtype = array.dtype;
    view.device = device;
    view.rank = 0;
    if (rows != kWhole) view.shape[view.rank++] = rows;
    for (int axis = row_axes; axis < array.rank; ++axis)
      view.shape[view.rank++] = array.shape[axis];
    std::int64_t stride = 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      view.strides[axis] = stride;
      stride *= view.shape[axis];
    }
    return view;
  }
};

// The arrays that travel in one direction, one after the other in the memory of a chunk.
template <class View>
struct Direction {
  std::vector<Staged<View>> arrays;

  Direction(const std::vector<StagedArray<View>>& from, const char* op) {
    for (const StagedArray<View>& array : from) arrays.emplace_back(array, op);
  }
  std::size_t row_bytes() const {
    std::size_t sum = 0;
    for (const auto& array : arrays) sum += array.row_bytes;
    return sum;
  }
  // Sets the offsets for chunks of `rows` rows; returns the total bytes.
  std::size_t set_offsets(std::int64_t rows) {
    std::size_t end = 0;
    for (auto& array : arrays) {
      array.offset = end;
      end += aligned(static_cast<std::size_t>(rows) * array.row_bytes);
    }
    return end;
  }
  // Bytes in use when a chunk holds `rows` rows.
  std::size_t used(std::int64_t rows) const {
    if (arrays.empty()) return 0;
    return arrays.back().offset + static_cast<std::size_t>(rows) * arrays.back().row_bytes;
  }
  std::vector<View> rows_at(char* data, std::int64_t rows, Device device) const {
    std::vector<View> views;
    for (const auto& array : arrays) views.push_back(array.rows_at(data, rows, device));
    return views;
  }
};

struct Plan {
  const char* op;
  Device device;
  std::int64_t rows = 1;
  Direction<ConstTensorView> inputs;
  Direction<TensorView> outputs;
  std::vector<ConstTensorView> constants;  // on the device
  const StagedOp& run;
  StagingOptions options;
  int threads;

  Plan(const StagedCall& call, const StagedOp& run_)
      : op(call.op),
        device(call.device),
        inputs(call.inputs, call.op),
        outputs(call.outputs, call.op),
        run(run_),
        options(staging_options()),
        threads(options.threads > 0 ? options.threads : cpu_threads()) {
    const auto& first = call.inputs.front();
    for (int axis = 0; axis < first.row_axes; ++axis) rows *= first.array.shape[axis];
  }
  std::size_t row_bytes() const { return std::max(inputs.row_bytes(), outputs.row_bytes()); }

  void queue(const StagedChunk& chunk) const {
    route(device, op, [&] { run(chunk); }, [&] { run(chunk); });
  }
};

// Chunks of rows: each is uploaded, processed and downloaded on the stream of its slot.
class RowStages {
 public:
  RowStages(const Plan& plan, std::int64_t chunk_rows) : plan_(plan), chunk_rows_(chunk_rows) {}

  std::int64_t chunks() const { return (plan_.rows + chunk_rows_ - 1) / chunk_rows_; }

  SlotLease acquire() const { return SlotLease(plan_.op, plan_.device, plan_.options.slot_bytes); }

  void fill(SlotLease& slot, std::int64_t chunk) const {
    for (const auto& input : plan_.inputs.arrays) {
      gather(input.layout, input.array.data, first(chunk) * input.row_elements,
             count(chunk) * input.row_elements, slot->host_in() + input.offset);
    }
  }

  void launch(SlotLease& slot, std::int64_t chunk) const {
    const std::int64_t rows = count(chunk);
    slot->upload(slot->device_in(), plan_.inputs.used(rows));
    plan_.queue({plan_.inputs.rows_at(slot->device_in(), rows, plan_.device),
                 plan_.outputs.rows_at(slot->device_out(), rows, plan_.device), plan_.constants,
                 slot->stream});
    slot->download(slot->device_out(), plan_.outputs.used(rows));
  }

  void wait(SlotLease& slot) const { slot->wait(); }

  void drain(SlotLease& slot, std::int64_t chunk) const {
    for (const auto& output : plan_.outputs.arrays) {
      scatter(output.layout, output.array.data, first(chunk) * output.row_elements,
              count(chunk) * output.row_elements, slot->host_out() + output.offset);
    }
  }

 private:
  std::int64_t first(std::int64_t chunk) const { return chunk * chunk_rows_; }
  std::int64_t count(std::int64_t chunk) const {
    return std::min(chunk_rows_, plan_.rows - first(chunk));
  }

  const Plan& plan_;
  const std::int64_t chunk_rows_;
};

// A contiguous range of an array on its way to or from device memory.
struct Transfer {
  const StridedLayout* layout;
  void* array;
  char* device;
  std::int64_t first, count;  // elements
  bool down;

  std::size_t bytes() const { return static_cast<std::size_t>(count) * layout->element_bytes; }
};

class TransferStages {
 public:
  TransferStages(const Plan& plan, const std::vector<Transfer>& transfers)
      : plan_(plan), transfers_(transfers) {}

  SlotLease acquire() const { return SlotLease(plan_.op, plan_.device, plan_.options.slot_bytes); }
  void fill(SlotLease& slot, std::int64_t chunk) const {
    const Transfer& transfer = transfers_[chunk];
    if (transfer.down) return;
    gather(*transfer.layout, transfer.array, transfer.first, transfer.count, slot->host_in());
  }
  void launch(SlotLease& slot, std::int64_t chunk) const {
    const Transfer& transfer = transfers_[chunk];
    if (transfer.down) {
      slot->download(transfer.device, transfer.bytes());
    } else {
      slot->upload(transfer.device, transfer.bytes());
    }
  }
  void wait(SlotLease& slot) const { slot->wait(); }
  void drain(SlotLease& slot, std::int64_t chunk) const {
    const Transfer& transfer = transfers_[chunk];
    if (!transfer.down) return;
    scatter(*transfer.layout, transfer.array, transfer.first, transfer.count, slot->host_out());
  }

 private:
  const Plan& plan_;
  const std::vector<Transfer>& transfers_;
};

template <class View>
void add_transfers(const Direction<View>& direction, char* device, std::int64_t first_row,
                   std::int64_t rows, std::size_t slot_bytes, bool down,
                   std::vector<Transfer>& transfers) {
  for (const auto& array : direction.arrays) {
    const std::int64_t end = (first_row + rows) * array.row_elements;
    const auto size = static_cast<std::int64_t>(array.layout.element_bytes);
    const std::int64_t step = static_cast<std::int64_t>(slot_bytes) / size;
    char* at = device + array.offset;
    for (std::int64_t i = first_row * array.row_elements; i < end; i += step) {
      const std::int64_t count = std::min(step, end - i);
      transfers.push_back({&array.layout,
                           const_cast<void*>(static_cast<const void*>(array.array.data)), at, i,
                           count, down});
      at += count * size;
    }
  }
}

// Alternates both directions, so that the bus is busy both ways.
std::vector<Transfer> interleaved(const std::vector<Transfer>& up,
                                  const std::vector<Transfer>& down) {
  std::vector<Transfer> both;
  for (std::size_t i = 0; i < std::max(up.size(), down.size()); ++i) {
    if (i < up.size()) both.push_back(up[i]);
    if (i < down.size()) both.push_back(down[i]);
  }
  return both;
}

// Rows longer than a slot: groups of them in device memory, each transferred slot by slot. While
// one group is uploaded, the previous one is downloaded.
void run_long_rows(Plan& plan) {
  const auto fitting =
      static_cast<std::int64_t>(kSlotsPerGroup * plan.options.slot_bytes / plan.row_bytes());
  const std::int64_t group_rows = std::clamp<std::int64_t>(fitting, 1, plan.rows);
  const std::int64_t groups = (plan.rows + group_rows - 1) / group_rows;
  const std::size_t in_bytes = plan.inputs.set_offsets(group_rows);
  const std::size_t out_bytes = plan.outputs.set_offsets(group_rows);

  const SlotLease lease(plan.op, plan.device, plan.options.slot_bytes);  // for its stream
  DeviceBuffer memory[2];
  for (std::int64_t i = 0; i < std::min<std::int64_t>(groups, 2); ++i) {
    memory[i] = DeviceBuffer(in_bytes + out_bytes, plan.device, lease->stream);
  }
  lease->wait();  // the transfers run on other streams
  for (std::int64_t group = 0; group <= groups; ++group) {
    std::vector<Transfer> up, down;
    const std::int64_t first = group * group_rows;
    const std::int64_t rows = std::min(group_rows, plan.rows - first);
    char* in = memory[group % 2].as<char>();
    char* previous_out = memory[(group + 1) % 2].as<char>() + in_bytes;
    if (group < groups) {
      add_transfers(plan.inputs, in, first, rows, plan.options.slot_bytes, false, up);
    }
    if (group > 0) {
      const std::int64_t previous_rows = std::min(group_rows, plan.rows - (first - group_rows));
      add_transfers(plan.outputs, previous_out, first - group_rows, previous_rows,
                    plan.options.slot_bytes, true, down);
    }
    const std::vector<Transfer> transfers = interleaved(up, down);
    TransferStages stages(plan, transfers);
    run_pipelines(stages, static_cast<std::int64_t>(transfers.size()), plan.threads,
                  plan.options.slots_per_thread);
    if (group == groups) break;
    plan.queue({plan.inputs.rows_at(in, rows, plan.device),
                plan.outputs.rows_at(in + in_bytes, rows, plan.device), plan.constants,
                lease->stream});
    lease->wait();
  }
}

void run_rows(Plan& plan, std::int64_t most_rows) {
  const std::int64_t chunks = kChunksPerThread * plan.threads;
  const std::int64_t even_rows = (plan.rows + chunks - 1) / chunks;
  const auto fewest_rows = static_cast<std::int64_t>(kSmallestChunkBytes / plan.row_bytes());
  const std::int64_t rows = std::min(most_rows, std::max(even_rows, fewest_rows));
  plan.inputs.set_offsets(rows);
  plan.outputs.set_offsets(rows);
  RowStages stages(plan, rows);
  run_pipelines(stages, stages.chunks(), plan.threads, plan.options.slots_per_thread);
}

}  // namespace

void run_staged(const StagedCall& call, const StagedOp& run) {
  Plan plan(call, run);
  if (plan.rows == 0 || plan.row_bytes() == 0) return;

  // The constants stay in the device half of one slot throughout the call.
  Direction<ConstTensorView> constants(call.constants, call.op);
  const std::size_t constant_bytes = constants.set_offsets(1);
  const SlotLease lease(call.op, call.device, std::max(constant_bytes, plan.options.slot_bytes));
  for (const auto& constant : constants.arrays) {
    gather(constant.layout, constant.array.data, 0, constant.row_elements,
           lease->host_in() + constant.offset);
  }
  plan.constants = constants.rows_at(lease->device_in(), kWhole, call.device);
  lease->upload(lease->device_in(), constants.used(1));
  lease->wait();

  const std::size_t padding = kAlignment * std::max(call.inputs.size(), call.outputs.size());
  const std::size_t room = plan.options.slot_bytes - std::min(padding, plan.options.slot_bytes);
  const auto most_rows = static_cast<std::int64_t>(room / plan.row_bytes());
  if (most_rows >= 1) {
    run_rows(plan, most_rows);
  } else {
    run_long_rows(plan);
  }
}

}  // namespace membound
