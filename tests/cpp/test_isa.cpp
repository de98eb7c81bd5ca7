// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "array.hpp"
#include "core/safe_scale.hpp"
#include "cpu/isa.hpp"
#include "membound/error.hpp"

using namespace membound_test;

namespace {

int exponent_for_float(double largest, double eps) {
  return safe_exponent(largest, eps, kSafeExponentLimitFloat);
}

void run(const cpu::KernelTable& table, const Array& x, const Array& weight, Array& out,
         Array& rstd, bool bypass_cache = false, const Array* residual = nullptr,
         const Array* sum = nullptr) {
  const std::int64_t cols = x.shape()[1];
  cpu::RmsNormRows rows{};
  rows.x = x.at(0);
  rows.weight = weight.at(0);
  rows.out = out.at(0);
  rows.rstd = rstd.at(0);
  rows.dtype = x.dtype();
  // A weight of the accumulator's type counts as prepared.
  rows.weight_form =
      weight.dtype() == x.dtype() ? cpu::WeightForm::kNative : cpu::WeightForm::kPrepared;
  rows.bypass_cache = bypass_cache;
  rows.rows = x.shape()[0];
  rows.cols = cols;
  rows.x_row_stride = rows.out_row_stride = cols;
  rows.x_col_stride = rows.out_col_stride = rows.rstd_row_stride = 1;
  rows.eps = 1e-6;
  rows.safe_high = 1e30;
  rows.safe_exponent = exponent_for_float;
  if (residual != nullptr) {
    rows.residual = residual->at(0);
    rows.residual_out = sum->at(0);
    rows.residual_row_stride = rows.residual_out_row_stride = cols;
    rows.residual_col_stride = rows.residual_out_col_stride = 1;
  }
  table.rms_norm(rows);
}

}  // namespace

// All sets but baseline use a fused multiply-add; baseline rounds the product, so its rstd may
// differ by a few ulp.
TEST_CASE("isa: sets with a fused multiply-add give the same bits, baseline the same numbers") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  const cpu::KernelTables tables = cpu::supported_kernels();
  REQUIRE(tables.count >= 1);
  if (tables.count == 1) MESSAGE("skipped: one instruction set only");
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {1, 63, 64, 100, 128, 1000, 4096, 4099, 20000}) {
      const Array::Extents shape{3, cols};
      Array x(dtype, shape), weight(dtype, {cols});
      x.fill_normal(seed);
      weight.fill_normal(seed + 1);
      Array model(dtype, shape), model_rstd(accumulate_dtype(dtype), {3});
      run(*tables.tables[0], x, weight, model, model_rstd);
      for (int i = 1; i < tables.count; ++i) {
        CAPTURE(std::string(tables.tables[i]->isa));
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(cols);
        Array out(dtype, shape), rstd(accumulate_dtype(dtype), {3});
        run(*tables.tables[i], x, weight, out, rstd);
        if (std::string(tables.tables[i]->isa) != "baseline") {
          CHECK(out.first_difference(model) == -1);
          CHECK(rstd.first_difference(model_rstd) == -1);
          continue;
        }
        for (std::int64_t row = 0; row < 3; ++row) {
          REQUIRE(std::abs(rstd.get(row) - model_rstd.get(row)) <=
                  2 * ulp(model_rstd.get(row), rstd.dtype()));
        }
        for (std::int64_t at = 0; at < out.size(); ++at) {
          REQUIRE(std::abs(out.get(at) - model.get(at)) <= 4 * ulp(model.get(at), dtype));
        }
      }
    }
  }
}

namespace {

// The results of one call of the backward kernel: dx and the sum for dweight.
struct Gradients {
  Gradients(DType dtype, const Array::Extents& shape)
      : dx(dtype, shape), dweight(DType::kFloat64, {shape[1]}) {}
  Array dx, dweight;
};

void run_backward(const cpu::KernelTable& table, const Array& dy, const Array& x,
                  const Array& weight, bool bypass_cache, Gradients& to) {
  const std::int64_t cols = x.shape()[1];
  const DType accumulate = accumulate_dtype(x.dtype());
  // Kernels read a prepared weight, and write sums, in whole vector steps.
  Array prepared(accumulate, {cols + cpu::kPreparedPadding});
  Array sums(accumulate, {cols + cpu::kPreparedPadding}), rstd(accumulate, {1}),
      total(DType::kFloat64, {cols + cpu::kPreparedPadding});
  table.rms_norm_weight({weight.at(0), weight.dtype(), 1, cols, 0.0, x.dtype(), prepared.at(0)});
  for (std::int64_t i = 0; i < sums.size(); ++i) sums.set(i, 0.0);
  rstd.set(0, 0.75);
  cpu::RmsNormBackwardRows rows{};
  rows.dy = dy.at(0);
  rows.x = x.at(0);
  rows.weight = prepared.at(0);
  rows.rstd = rstd.at(0);
  rows.dx = to.dx.at(0);
  rows.weight_sum = sums.at(0);
  rows.dtype = x.dtype();
  rows.bypass_cache = rows.prefetch_ahead = bypass_cache;
  rows.rows = x.shape()[0];
  rows.cols = cols;
  rows.dy_row_stride = rows.x_row_stride = rows.dx_row_stride = cols;
  rows.dy_col_stride = rows.x_col_stride = rows.dx_col_stride = 1;
  table.rms_norm_backward(rows);
  auto* totals = reinterpret_cast<double*>(total.at(0));
  table.rms_norm_backward_block({sums.at(0), totals, true, x.dtype(), cols});
  table.rms_norm_backward_weight(
      {totals, 1, cols, x.dtype(), to.dweight.at(0), DType::kFloat64, 1, false});
}

}  // namespace

TEST_CASE("isa: gradients have the same bits too, past the cache as well") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  const cpu::KernelTables tables = cpu::supported_kernels();
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {1, 63, 64, 100, 128, 200, 250, 256, 1000, 4096, 4099, 20000}) {
      const Array::Extents shape{7, cols};
      Array dy(dtype, shape), x(dtype, shape), weight(dtype, {cols});
      dy.fill_normal(seed);
      x.fill_normal(seed + 1);
      weight.fill_normal(seed + 2);
      Gradients model(dtype, shape);
      run_backward(*tables.tables[0], dy, x, weight, false, model);
      for (int i = 0; i < tables.count; ++i) {
        CAPTURE(std::string(tables.tables[i]->isa));
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(cols);
        Gradients plain(dtype, shape), bypass(dtype, shape);
        run_backward(*tables.tables[i], dy, x, weight, false, plain);
        run_backward(*tables.tables[i], dy, x, weight, true, bypass);
        CHECK(bypass.dx.first_difference(plain.dx) == -1);
        CHECK(bypass.dweight.first_difference(plain.dweight) == -1);
        if (std::string(tables.tables[i]->isa) != "baseline") {
          CHECK(plain.dx.first_difference(model.dx) == -1);
          CHECK(plain.dweight.first_difference(model.dweight) == -1);
          continue;
        }
        const double unit = ulp(8.0, dtype);
        for (std::int64_t at = 0; at < x.size(); ++at)
          REQUIRE(std::abs(plain.dx.get(at) - model.dx.get(at)) <= unit);
      }
    }
  }
}

namespace {

// The results of rows with a gate, forward and backward.
struct Gated {
  Gated(DType dtype, const Array::Extents& shape)
      : out(dtype, shape), dx(dtype, shape), dz(dtype, shape) {}
  Array out, dx, dz;
};

void run_gated(const cpu::KernelTable& table, const Array& x, const Array& z, bool norm_first,
               bool bypass_cache, Gated& to) {
  const std::int64_t cols = x.shape()[1];
  const DType accumulate = accumulate_dtype(x.dtype());
  Array weight(accumulate, {cols + cpu::kPreparedPadding}), rstd(accumulate, {1});
  for (std::int64_t i = 0; i < weight.size(); ++i) weight.set(i, 0.75);
  rstd.set(0, 0.75);
  cpu::RmsNormRows rows{};
  rows.x = x.at(0);
  rows.gate = z.at(0);
  rows.weight = weight.at(0);
  rows.out = to.out.at(0);
  rows.dtype = x.dtype();
  rows.norm_before_gate = norm_first;
  rows.bypass_cache = rows.prefetch_ahead = bypass_cache;
  rows.rows = x.shape()[0];
  rows.cols = cols;
  rows.x_row_stride = rows.gate_row_stride = rows.out_row_stride = cols;
  rows.x_col_stride = rows.gate_col_stride = rows.out_col_stride = 1;
  rows.eps = 1e-6;
  rows.safe_high = 1e30;
  rows.safe_exponent = exponent_for_float;
  table.rms_norm_gated(rows);
  cpu::RmsNormBackwardRows back{};
  back.dy = back.x = x.at(0);
  back.gate = z.at(0);
  back.weight = weight.at(0);
  back.rstd = rstd.at(0);
  back.dx = to.dx.at(0);
  back.dgate = to.dz.at(0);
  back.dtype = x.dtype();
  back.norm_before_gate = norm_first;
  back.bypass_cache = back.prefetch_ahead = bypass_cache;
  back.rows = x.shape()[0];
  back.cols = cols;
  back.dy_row_stride = back.x_row_stride = back.gate_row_stride = cols;
  back.dx_row_stride = back.dgate_row_stride = cols;
  back.dy_col_stride = back.x_col_stride = back.gate_col_stride = 1;
  back.dx_col_stride = back.dgate_col_stride = 1;
  table.rms_norm_backward_gated(back);
}

}  // namespace

TEST_CASE("isa: gated rows have the same bits too, past the cache as well") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  const cpu::KernelTables tables = cpu::supported_kernels();
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {1, 63, 100, 1024, 4099, 9000}) {
      for (bool norm_first : {true, false}) {
        const Array::Extents shape{5, cols};
        Array x(dtype, shape), z(dtype, shape);
        x.fill_normal(seed);
        z.fill_normal(seed + 1, 6.0);
        Gated model(dtype, shape);
        run_gated(*tables.tables[0], x, z, norm_first, false, model);
        for (int i = 0; i < tables.count; ++i) {
          CAPTURE(std::string(tables.tables[i]->isa));
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(cols);
          CAPTURE(norm_first);
          Gated plain(dtype, shape), bypass(dtype, shape);
          run_gated(*tables.tables[i], x, z, norm_first, false, plain);
          run_gated(*tables.tables[i], x, z, norm_first, true, bypass);
          CHECK(bypass.out.first_difference(plain.out) == -1);
          CHECK(bypass.dx.first_difference(plain.dx) == -1);
          CHECK(bypass.dz.first_difference(plain.dz) == -1);
          if (std::string(tables.tables[i]->isa) == "baseline") continue;
          CHECK(plain.out.first_difference(model.out) == -1);
          CHECK(plain.dx.first_difference(model.dx) == -1);
          CHECK(plain.dz.first_difference(model.dz) == -1);
        }
      }
    }
  }
}

// By default only outputs of many megabytes use non-temporal stores.
TEST_CASE("isa: stores past the cache change no bit, at any alignment") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  const cpu::KernelTables tables = cpu::supported_kernels();
  for (int i = 0; i < tables.count; ++i) {
    for (DType dtype : kFloating) {
      for (std::int64_t cols : {1, 5, 64, 100, 1024, 4099, 20000}) {
        for (std::int64_t lead : {0, 1, 17}) {
          for (bool prepared : {false, true}) {
            CAPTURE(std::string(tables.tables[i]->isa));
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(cols);
            CAPTURE(lead);
            CAPTURE(prepared);
            const Array::Extents shape{20, cols};
            Array x(dtype, shape), rstd(accumulate_dtype(dtype), {20});
            x.fill_normal(seed);
            // Kernels read a prepared weight in whole vector steps.
            const DType kind = prepared ? accumulate_dtype(dtype) : dtype;
            Array weight(kind, {cols + (prepared ? cpu::kPreparedPadding : 0)});
            weight.fill_normal(seed + 1);
            Array plain(dtype, shape), bypass(dtype, shape, {cols, 1}, lead);
            run(*tables.tables[i], x, weight, plain, rstd, false);
            run(*tables.tables[i], x, weight, bypass, rstd, true);
            REQUIRE(bypass.first_difference(plain) == -1);
          }
        }
      }
    }
  }
}

// Both results use non-temporal stores if they have the same offset within a cache line.
TEST_CASE("isa: stores of a sum past the cache change no bit, at any two alignments") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  const cpu::KernelTables tables = cpu::supported_kernels();
  for (int i = 0; i < tables.count; ++i) {
    for (DType dtype : kFloating) {
      for (std::int64_t cols : {1, 5, 100, 1024, 4099}) {
        for (std::int64_t lead : {0, 1, 17}) {
          for (std::int64_t sum_lead : {0, 1, 17, 64, 81}) {
            CAPTURE(std::string(tables.tables[i]->isa));
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(cols);
            CAPTURE(lead);
            CAPTURE(sum_lead);
            const Array::Extents shape{20, cols};
            Array x(dtype, shape), residual(dtype, shape), weight(dtype, {cols});
            Array rstd(accumulate_dtype(dtype), {20});
            x.fill_normal(seed);
            residual.fill_normal(seed + 1);
            weight.fill_normal(seed + 2);
            Array plain(dtype, shape), plain_sum(dtype, shape);
            Array bypass(dtype, shape, {cols, 1}, lead), sum(dtype, shape, {cols, 1}, sum_lead);
            run(*tables.tables[i], x, weight, plain, rstd, false, &residual, &plain_sum);
            run(*tables.tables[i], x, weight, bypass, rstd, true, &residual, &sum);
            REQUIRE(bypass.first_difference(plain) == -1);
            REQUIRE(sum.first_difference(plain_sum) == -1);
          }
        }
      }
    }
  }
}

// The choice is made once per process, so each value needs its own process.
TEST_CASE("isa: MEMBOUND_CPU_ISA picks one, and a wrong value names those that there are") {
  const auto status_with = [](const char* value) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("MEMBOUND_CPU_ISA", value, 1);
      execl("/proc/self/exe", "test_isa", "--test-case=*cpu_isa says*",
            static_cast<char*>(nullptr));
      _exit(99);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const cpu::KernelTables tables = cpu::supported_kernels();
  for (int i = 0; i < tables.count; ++i) CHECK(status_with(tables.tables[i]->isa) == 0);
  CHECK(status_with("sse9") == 1);
}

TEST_CASE("isa: cpu_isa says which one is in use") {
  const char* wanted = std::getenv("MEMBOUND_CPU_ISA");
  if (wanted != nullptr && *wanted != '\0') {
    CHECK(std::string(cpu_isa()) == wanted);
  } else {
    CHECK(std::string(cpu_isa()) == cpu::supported_kernels().tables[0]->isa);
  }
}
