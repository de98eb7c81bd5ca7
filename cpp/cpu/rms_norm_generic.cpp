// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_generic.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/rms_norm.hpp"
#include "cpu/work_area.hpp"

namespace membound::cpu {

namespace {

class Forward {
  enum Slot { kX, kOther, kRounded, kSlots };

 public:
  Forward(const RmsNormProblem& problem, const KernelTable& table)
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

  // What the kernels compute: everything, or all before the first rounding.
  PreparedNorm prepared() const {
    const DType dtype = problem_.accumulate;
    const auto rows = [&](Slot slot) {
      return OutputRows{area_.slot(0, slot), dtype, area_.layout()};
    };
    const auto as_input = [](const OutputRows& rows) {
      return InputRows{rows.data, rows.dtype, rows.layout};
    };
    const WeightSource factor = rounds_ ? WeightSource{} : this->factor();
    RmsNormProblem part = problem_;
    part.out = rows(kX);
    part.x = as_input(part.out);
    if (part.residual.data != nullptr) part.residual = as_input(part.residual_out = rows(kOther));
    part.gate = part.gate.data != nullptr && !gates_after_ ? as_input(rows(kOther)) : InputRows{};
    part.weight = {factor.data, factor.data != nullptr ? factor.dtype : dtype, factor.stride};
    part.weight_offset = factor.offset;
    if (part.bias.data == nullptr) part.bias.dtype = dtype;
    part.rounding = Rounding::kOnce;
    part.rows = area_.rows();
    return prepare_norm(part, table_);
  }

  std::int64_t run_some(std::int64_t task, std::int64_t row, std::int64_t most) const {
    void* const x = area_.slot(task, kX);
    void* const other = area_.slot(task, kOther);
    RmsNormRows rows = norm_.rows;
    rows.rows = std::min(most, area_.rows());
    seek_row(rows.mean, problem_.mean, row, rows.rows);
    seek_row(rows.rstd, problem_.rstd, row, rows.rows);
    const InputRows& fused = problem_.gate.data != nullptr ? problem_.gate : problem_.residual;
    exchange_.widen(problem_.x, row, rows.rows, x);
    if (fused.data != nullptr) exchange_.widen(fused, row, rows.rows, other);
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

  // The steps after the first rounding.
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

  const RmsNormProblem& problem_;
  const KernelTable& table_;
  const bool wide_, rounds_, gates_after_;
  const WorkArea area_;
  const Exchange exchange_;
  const PreparedNorm norm_;
  PreparedWeight factor_{};
};

}  // namespace

void rms_norm_generic(const RmsNormProblem& problem) {
  const FloatMode ieee;
  Forward(problem, kernels()).run();
}

}  // namespace membound::cpu
