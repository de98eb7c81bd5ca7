// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The norms over arrays of several dtypes: a few rows at a time are widened into a work area, go
// through the kernels of the accumulate dtype there, and are rounded once on their way out.
#include "ops/rms_norm_generic.hpp"

#include <algorithm>
#include <array>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rms_norm.hpp"
#include "cpu/rms_norm_backward.hpp"
#include "membound/device.hpp"

namespace membound::cpu {

namespace {

// Rows of a work area: enough of them that narrow ones are worth a call.
std::int64_t rows_at_once(std::int64_t cols) {
  constexpr std::int64_t kElements = 4096;
  return std::clamp<std::int64_t>(kElements / cols, 1, kBlockOfRows);
}

// One slot for each array of rows and thread, in the accumulate dtype.
class WorkArea {
 public:
  WorkArea(DType dtype, std::int64_t cols, int slots, std::int64_t tasks)
      : dtype_(dtype),
        rows_(rows_at_once(cols)),
        stride_((cols + kLine - 1) / kLine * kLine),
        slots_(slots),
        slot_bytes_(static_cast<std::size_t>(rows_ * stride_) * dtype_size(dtype)),
        storage_(static_cast<std::size_t>(slots * tasks) * slot_bytes_, Device::cpu()) {}

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t stride() const { return stride_; }
  void* slot(std::int64_t task, int slot) const {
    return storage_.as<char>() + static_cast<std::size_t>(task * slots_ + slot) * slot_bytes_;
  }
  RowLayout layout() const {
    RowLayout layout;
    layout.rank = 1;
    layout.shape[0] = rows_;
    layout.strides[0] = stride_;
    return layout;
  }

 private:
  static constexpr std::int64_t kLine = 16;  // elements
  DType dtype_;
  std::int64_t rows_, stride_;
  int slots_;
  std::size_t slot_bytes_;
  DeviceBuffer storage_;
};

// `rows` rows from `row` on between an array and a slot of the work area.
class Exchange {
 public:
  Exchange(const WorkArea& area, std::int64_t cols, const KernelTable& table)
      : area_(area), cols_(cols), table_(table) {}

  void widen(const InputRows& from, std::int64_t row, std::int64_t rows, void* slot) const {
    each_run(from, row, rows, [&](const void* data, std::int64_t at, std::int64_t count) {
      table_.convert_rows({data, behind(slot, at * area_.stride(), area_.dtype()), from.dtype,
                           area_.dtype(), true, count, cols_, row_stride(from.layout),
                           from.col_stride, area_.stride(), 1});
    });
  }
  void narrow(const void* slot, const OutputRows& to, std::int64_t row, std::int64_t rows) const {
    each_run(to, row, rows, [&](void* data, std::int64_t at, std::int64_t count) {
      table_.convert_rows({behind(slot, at * area_.stride(), area_.dtype()), data, area_.dtype(),
                           to.dtype, false, count, cols_, area_.stride(), 1, row_stride(to.layout),
                           to.col_stride});
    });
  }
  // One number of each row, side by side.
  void widen_statistic(const InputRows& from, std::int64_t row, std::int64_t rows, void* to) const {
    each_run(from, row, rows, [&](const void* data, std::int64_t at, std::int64_t count) {
      table_.convert_rows({data, behind(to, at, area_.dtype()), from.dtype, area_.dtype(), true,
                           count, 1, row_stride(from.layout), 1, 1, 1});
    });
  }
  // Rounds a slot to a dtype and back, by way of another slot.
  void round(void* slot, DType dtype, std::int64_t rows, void* rounded) const {
    const std::int64_t stride = area_.stride();
    table_.convert_rows(
        {slot, rounded, area_.dtype(), dtype, false, rows, cols_, stride, 1, stride, 1});
    table_.convert_rows(
        {rounded, slot, dtype, area_.dtype(), true, rows, cols_, stride, 1, stride, 1});
  }
  // slot *= silu(gate)
  void multiply_silu(void* slot, const void* gate, std::int64_t rows) const {
    const std::int64_t stride = area_.stride();
    table_.multiply_silu(
        {gate, slot, area_.dtype(), area_.dtype(), true, rows, cols_, stride, 1, stride, 1});
  }

 private:
  // body(data, at, count) for each stretch of rows that share a stride; at: rows before it.
  template <class Pointer, class Body>
  static void each_run(const BasicRows<Pointer>& array, std::int64_t row, std::int64_t rows,
                       Body body) {
    for (std::int64_t at = 0; at < rows;) {
      std::int64_t count = rows - at;
      Pointer data = nullptr;
      enter_row(data, array.data, array.layout, array.dtype, row + at, count);
      body(data, at, count);
      at += count;
    }
  }

  const WorkArea& area_;
  const std::int64_t cols_;
  const KernelTable& table_;
};

// The weight, or what its offset stands for without one.
WeightSource factor_of(const InputColumns& weight, double offset, std::int64_t cols, DType dtype) {
  static constexpr float kNothing = 0;
  if (weight.data == nullptr && offset != 0.0) {
    return {&kNothing, DType::kFloat32, 0, cols, offset, dtype};
  }
  return {weight.data, weight.dtype, weight.stride, cols, offset, dtype};
}

bool rounds(Rounding rounding, DType to, DType accumulate) {
  return rounding == Rounding::kBeforeWeight && dtype_size(to) < dtype_size(accumulate);
}

// rows x cols numbers of T: each row times the factors, or times one of its own.
template <class T>
void multiply_rows(void* slot, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                   const void* factors) {
  const T* by = static_cast<const T*>(factors);
  for (std::int64_t row = 0; row < rows; ++row) {
    T* to = static_cast<T*>(slot) + row * stride;
    for (std::int64_t col = 0; col < cols; ++col) to[col] *= by[col];
  }
}
template <class T>
void scale_rows(const void* from, void* slot, std::int64_t stride, std::int64_t rows,
                std::int64_t cols, const void* of_rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* x = static_cast<const T*>(from) + row * stride;
    T* to = static_cast<T*>(slot) + row * stride;
    const T by = static_cast<const T*>(of_rows)[row];
    for (std::int64_t col = 0; col < cols; ++col) to[col] = x[col] * by;
  }
}

// Threads' shares of rows, each with its part of a work area.
std::int64_t tasks_of(std::int64_t rows, std::int64_t cols) {
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / (16 * cols));
  return std::clamp<std::int64_t>(rows / grain, 1, cpu_threads());
}
// body(task, first, last)
template <class Body>
void each_task(std::int64_t rows, std::int64_t tasks, Body body) {
  parallel_for(tasks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      body(task, rows * task / tasks, rows * (task + 1) / tasks);
    }
  });
}

class Forward {
  enum Slot { kX, kOther, kRounded, kSlots };

 public:
  Forward(const GenericNormProblem& problem, const KernelTable& table)
      : problem_(problem),
        table_(table),
        wide_(problem.accumulate == DType::kFloat64),
        rounds_(rounds(problem.rounding, problem.x.dtype, problem.accumulate)),
        gates_after_(rounds_ && problem.gate.data != nullptr && problem.norm_before_gate),
        area_(problem.accumulate, problem.cols, kSlots, tasks()),
        exchange_(area_, problem.cols, table),
        norm_(prepared()) {
    const WeightSource factor = this->factor();
    if (rounds_ && factor.data != nullptr) factor_ = prepare_weight(factor, /*widen=*/true, table);
  }

  void run() const {
    each_task(problem_.rows, tasks(),
              [&](std::int64_t task, std::int64_t first, std::int64_t last) {
                for (std::int64_t row = first; row < last;) row += run_some(task, row, last - row);
              });
  }

 private:
  std::int64_t tasks() const { return tasks_of(problem_.rows, problem_.cols); }
  WeightSource factor() const {
    return factor_of(problem_.weight, problem_.weight_offset, problem_.cols, problem_.accumulate);
  }

  // The kernels' part: all of it, or what comes before the first rounding.
  PreparedNorm prepared() const {
    const RowLayout layout = area_.layout();
    RmsNormProblem part{};
    part.dtype = problem_.accumulate;
    part.x = part.out = area_.slot(0, kX);
    if (problem_.residual.data != nullptr)
      part.residual = part.residual_out = area_.slot(0, kOther);
    if (problem_.gate.data != nullptr && !gates_after_) part.gate = area_.slot(0, kOther);
    const WeightSource factor = rounds_ ? WeightSource{} : this->factor();
    part.weight = factor.data;
    part.weight_dtype = factor.data != nullptr ? factor.dtype : part.dtype;
    part.weight_stride = factor.stride;
    part.weight_offset = factor.offset;
    part.bias = problem_.bias.data;
    part.bias_dtype = problem_.bias.data != nullptr ? problem_.bias.dtype : part.dtype;
    part.bias_stride = problem_.bias.stride;
    part.rounding = Rounding::kOnce;
    part.centred = problem_.centred;
    part.norm_before_gate = problem_.norm_before_gate;
    part.rows = area_.rows();
    part.cols = problem_.cols;
    part.x_rows = part.out_rows = part.residual_rows = part.residual_out_rows = part.gate_rows =
        layout;
    part.x_col_stride = part.out_col_stride = part.residual_col_stride =
        part.residual_out_col_stride = part.gate_col_stride = 1;
    part.mean = problem_.mean.data;
    part.rstd = problem_.rstd.data;
    part.mean_rows = problem_.mean.layout;
    part.rstd_rows = problem_.rstd.layout;
    part.heads = 1;
    part.eps = problem_.eps;
    return prepare_norm(part, table_);
  }

  std::int64_t run_some(std::int64_t task, std::int64_t row, std::int64_t most) const {
    void* const x = area_.slot(task, kX);
    void* const other = area_.slot(task, kOther);
    RmsNormRows rows = norm_.rows;
    rows.rows = std::min(most, area_.rows());
    enter_row(rows.mean, problem_.mean.data, problem_.mean.layout, problem_.accumulate, row,
              rows.rows);
    enter_row(rows.rstd, problem_.rstd.data, problem_.rstd.layout, problem_.accumulate, row,
              rows.rows);
    const InputRows& beside = problem_.gate.data != nullptr ? problem_.gate : problem_.residual;
    exchange_.widen(problem_.x, row, rows.rows, x);
    if (beside.data != nullptr) exchange_.widen(beside, row, rows.rows, other);
    rows.x = rows.out = x;
    if (problem_.residual.data != nullptr) rows.residual = rows.residual_out = other;
    if (problem_.gate.data != nullptr && !gates_after_) rows.gate = other;
    const auto run = rows.gate          ? table_.rms_norm_gated
                     : problem_.centred ? table_.rms_norm_centred
                                        : table_.rms_norm;
    run(rows);
    if (rounds_) finish(task, rows.rows);
    exchange_.narrow(x, problem_.out, row, rows.rows);
    if (problem_.residual.data != nullptr)
      exchange_.narrow(other, problem_.residual_out, row, rows.rows);
    return rows.rows;
  }

  // What follows the first rounding.
  void finish(std::int64_t task, std::int64_t rows) const {
    void* const x = area_.slot(task, kX);
    void* const rounded = area_.slot(task, kRounded);
    exchange_.round(x, problem_.x.dtype, rows, rounded);
    if (factor_.data != nullptr) {
      const auto multiply = wide_ ? multiply_rows<double> : multiply_rows<float>;
      multiply(x, area_.stride(), rows, problem_.cols, factor_.data);
    }
    if (!gates_after_) return;
    exchange_.round(x, problem_.x.dtype, rows, rounded);
    exchange_.multiply_silu(x, area_.slot(task, kOther), rows);
  }

  const GenericNormProblem& problem_;
  const KernelTable& table_;
  const bool wide_, rounds_, gates_after_;
  const WorkArea area_;
  const Exchange exchange_;
  const PreparedNorm norm_;
  PreparedWeight factor_{};
};

class Backward {
  enum Slot { kDy, kX, kDsum, kGate, kNormal, kRounded, kStatistics, kSlots };

 public:
  Backward(const GenericNormBackwardProblem& problem, const KernelTable& table)
      : problem_(problem),
        table_(table),
        wide_(problem.accumulate == DType::kFloat64),
        rounds_(rounds(problem.rounding, problem.rounded_to, problem.accumulate)),
        sums_(problem.dweight.data != nullptr || problem.dbias.data != nullptr),
        area_(problem.accumulate, problem.cols, kSlots, tasks()),
        exchange_(area_, problem.cols, table),
        weight_(prepared_weight(problem.weight, problem.weight_offset)),
        ones_(rounds_gate() ? prepared_weight({}, 0.0) : PreparedWeight{}) {}

  void run() const {
    if (!sums_) {
      each_task(problem_.rows, tasks(),
                [&](std::int64_t task, std::int64_t first, std::int64_t last) {
                  run_rows(task, nullptr, nullptr, first, last);
                });
      return;
    }
    const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / (16 * problem_.cols));
    sum_columns({problem_.accumulate, problem_.rows, problem_.cols, problem_.centred(),
                 problem_.accumulate_sums, problem_.dweight, problem_.dbias},
                table_, grain,
                [&](std::int64_t task, void* weight_sum, void* bias_sum, std::int64_t first,
                    std::int64_t last,
                    std::int64_t) { run_rows(task, weight_sum, bias_sum, first, last); });
  }

 private:
  std::int64_t tasks() const {
    return sums_ ? chunks_of(problem_.rows).count : tasks_of(problem_.rows, problem_.cols);
  }
  PreparedWeight prepared_weight(const InputColumns& weight, double offset) const {
    WeightSource source = factor_of(weight, offset, problem_.cols, problem_.accumulate);
    if (source.data == nullptr) source = ones(source);
    return prepare_weight(source, /*widen=*/problem_.gate.data != nullptr, table_);
  }

  RmsNormBackwardRows rows_of(std::int64_t task, std::int64_t rows) const {
    RmsNormBackwardRows of{};
    of.dtype = problem_.accumulate;
    of.rows = rows;
    of.cols = problem_.cols;
    of.norm_before_gate = problem_.norm_before_gate;
    of.weight = weight_.data;
    of.dy = area_.slot(task, kDy);
    of.x = area_.slot(task, kX);
    of.dy_row_stride = of.x_row_stride = area_.stride();
    of.dy_col_stride = of.x_col_stride = 1;
    // Statistics lie in the rows of one slot: means, reciprocals of deviations, ones.
    of.rstd = area_.slot(task, kStatistics);
    of.rstd_row_stride = 1;
    if (problem_.centred()) {
      of.mean = behind(of.rstd, kBlockOfRows, problem_.accumulate);
      of.mean_row_stride = 1;
    }
    if (problem_.gate.data != nullptr) {
      of.gate = area_.slot(task, kGate);
      of.gate_row_stride = area_.stride();
      of.gate_col_stride = 1;
    }
    return of;
  }

  void run_rows(std::int64_t task, void* weight_sum, void* bias_sum, std::int64_t first,
                std::int64_t last) const {
    for (std::int64_t row = first; row < last; row += area_.rows()) {
      const std::int64_t rows = std::min(area_.rows(), last - row);
      widen(task, row, rows);
      RmsNormBackwardRows of = rows_of(task, rows);
      of.weight_sum = weight_sum;
      of.bias_sum = bias_sum;
      if (rounds_ && (weight_sum != nullptr || rounds_gate())) {
        of.weight_sum = nullptr;
        use_rounded(task, of, weight_sum, row);
      }
      write_gradients(task, of, row);
    }
  }

  void widen(std::int64_t task, std::int64_t row, std::int64_t rows) const {
    exchange_.widen(problem_.dy, row, rows, area_.slot(task, kDy));
    exchange_.widen(problem_.x, row, rows, area_.slot(task, kX));
    if (problem_.dsum.data) exchange_.widen(problem_.dsum, row, rows, area_.slot(task, kDsum));
    if (problem_.gate.data) exchange_.widen(problem_.gate, row, rows, area_.slot(task, kGate));
    void* const statistics = area_.slot(task, kStatistics);
    exchange_.widen_statistic(problem_.rstd, row, rows, statistics);
    if (problem_.centred()) {
      exchange_.widen_statistic(problem_.mean, row, rows,
                                behind(statistics, kBlockOfRows, problem_.accumulate));
    }
  }

  // What takes normal rows as the forward rounded them: dweight's sums, those of rows whose rstd is
  // 1, and the gradient of a gate after the norm, that of such rows without a weight.
  void use_rounded(std::int64_t task, RmsNormBackwardRows of, void* weight_sum,
                   std::int64_t row) const {
    void* const normal = area_.slot(task, kNormal);
    const auto scale = wide_ ? scale_rows<double> : scale_rows<float>;
    scale(of.x, normal, area_.stride(), of.rows, of.cols, of.rstd);
    if (of.gate != nullptr && !of.norm_before_gate) {
      exchange_.multiply_silu(normal, of.gate, of.rows);
      of.gate = nullptr;
    }
    exchange_.round(normal, problem_.rounded_to, of.rows, area_.slot(task, kRounded));
    static constexpr double kOne = 1;
    static constexpr float kOneFloat = 1;
    of.x = normal;
    of.rstd = wide_ ? static_cast<const void*>(&kOne) : &kOneFloat;
    of.rstd_row_stride = 0;
    of.weight_sum = weight_sum;
    if (weight_sum != nullptr)
      (of.gate ? table_.rms_norm_backward_gated : table_.rms_norm_backward)(of);
    if (!rounds_gate()) return;
    (wide_ ? multiply_rows<double> : multiply_rows<float>)(normal, area_.stride(), of.rows, of.cols,
                                                           weight_.data);
    exchange_.round(normal, problem_.rounded_to, of.rows, area_.slot(task, kRounded));
    of.weight = ones_.data;
    of.weight_sum = nullptr;
    of.dgate = normal;
    of.dgate_row_stride = area_.stride();
    of.dgate_col_stride = 1;
    table_.rms_norm_backward_gated(of);
    exchange_.narrow(normal, problem_.dgate, row, of.rows);
  }
  bool rounds_gate() const {
    return rounds_ && problem_.dgate.data != nullptr && problem_.norm_before_gate;
  }

  void write_gradients(std::int64_t task, RmsNormBackwardRows& of, std::int64_t row) const {
    const bool wants_dx = problem_.dx.data != nullptr || problem_.dresidual.data != nullptr;
    if (problem_.dsum.data != nullptr) {
      of.dsum = area_.slot(task, kDsum);
      of.dsum_row_stride = area_.stride();
      of.dsum_col_stride = 1;
    }
    if (wants_dx) {
      of.dx = area_.slot(task, kDy);
      of.dx_row_stride = area_.stride();
      of.dx_col_stride = 1;
    }
    if (problem_.dgate.data != nullptr && !rounds_gate()) {
      of.dgate = area_.slot(task, kGate);
      of.dgate_row_stride = area_.stride();
      of.dgate_col_stride = 1;
    }
    if (of.dx == nullptr && of.dgate == nullptr && of.weight_sum == nullptr) return;
    const auto run = of.gate              ? table_.rms_norm_backward_gated
                     : problem_.centred() ? table_.rms_norm_backward_centred
                                          : table_.rms_norm_backward;
    run(of);
    if (problem_.dx.data) exchange_.narrow(of.dx, problem_.dx, row, of.rows);
    if (problem_.dresidual.data) exchange_.narrow(of.dx, problem_.dresidual, row, of.rows);
    if (of.dgate != nullptr) exchange_.narrow(of.dgate, problem_.dgate, row, of.rows);
  }

  const GenericNormBackwardProblem& problem_;
  const KernelTable& table_;
  const bool wide_, rounds_, sums_;
  const WorkArea area_;
  const Exchange exchange_;
  const PreparedWeight weight_, ones_;
};

}  // namespace

void rms_norm_generic(const GenericNormProblem& problem) {
  const FloatMode ieee;
  Forward(problem, kernels()).run();
}

void rms_norm_backward_generic(const GenericNormBackwardProblem& problem) {
  const FloatMode ieee;
  Backward(problem, kernels()).run();
}

}  // namespace membound::cpu
