// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/rms_norm_backward.hpp"
#include "cpu/work_area.hpp"
#include "ops/rms_norm_generic.hpp"

namespace membound::cpu {

namespace {

class Backward {
  enum Slot { kDy, kX, kDsum, kGate, kNormal, kRounded, kStatistics, kSlots };

 public:
  Backward(const RmsNormBackwardProblem& problem, const KernelTable& table)
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
    sum_columns({problem_.accumulate, problem_.rows, problem_.cols, problem_.centred,
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
    // The statistics share one slot: rstd first, the means kBlockOfRows numbers later.
    of.rstd = area_.slot(task, kStatistics);
    of.rstd_row_stride = 1;
    if (problem_.centred) {
      of.mean = offset_pointer(of.rstd, kBlockOfRows, problem_.accumulate);
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
    if (problem_.centred) {
      exchange_.widen_statistic(problem_.mean, row, rows,
                                offset_pointer(statistics, kBlockOfRows, problem_.accumulate));
    }
  }

  // Gradients that need h as the forward rounded it: dweight, from rounded rows with rstd 1, and
  // the gradient of a gate after the norm, from rounded rows without a weight.
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
    const auto run = of.gate            ? table_.rms_norm_backward_gated
                     : problem_.centred ? table_.rms_norm_backward_centred
                                        : table_.rms_norm_backward;
    run(of);
    if (problem_.dx.data) exchange_.narrow(of.dx, problem_.dx, row, of.rows);
    if (problem_.dresidual.data) exchange_.narrow(of.dx, problem_.dresidual, row, of.rows);
    if (of.dgate != nullptr) exchange_.narrow(of.dgate, problem_.dgate, row, of.rows);
  }

  const RmsNormBackwardProblem& problem_;
  const KernelTable& table_;
  const bool wide_, rounds_, sums_;
  const WorkArea area_;
  const Exchange exchange_;
  const PreparedWeight weight_, ones_;
};

}  // namespace

void rms_norm_backward_generic(const RmsNormBackwardProblem& problem) {
  const FloatMode ieee;
  Backward(problem, kernels()).run();
}

}  // namespace membound::cpu
