// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/activation/gated_activation_quant_config.hpp"
#include "gated_activation.hpp"
#include "membound/error.hpp"
#include "membound/ops/gated_activation_quant.hpp"
#include "quant.hpp"

using namespace membound_test;

namespace {

using Options = GatedActivationQuantOptions;

// gate and up as inputs, and converted to the accumulator's dtype.
struct QuantCase : GateCase {
  QuantCase(DType dtype, const Array::Extents& shape, std::uint32_t seed)
      : GateCase(dtype, shape, seed),
        wide_gate(accumulate_dtype(dtype), shape),
        wide_up(accumulate_dtype(dtype), shape) {}

  // The activation, which is quantised.
  std::unique_ptr<Array> activation(const GatedActivationOptions& options, bool has_up,
                                    bool scaled) {
    for (std::int64_t i = 0; i < gate.size(); ++i) {
      wide_gate.set(i, gate.get(i));
      wide_up.set(i, up.get(i));
    }
    const ConstTensorView wide_up_view = wide_up.view();
    auto y = std::make_unique<Array>(wide_gate.dtype(), gate.shape());
    gated_activation(wide_gate.view(), has_up ? &wide_up_view : nullptr,
                     scaled ? &scale_view : nullptr, options, y->view(),
                     StreamView::legacy_default());
    return y;
  }

  void run(const Options& options, bool has_up, bool scaled, const Array& out,
           const Array* static_scale, const Array* scales) const {
    gated_activation_quant(gate.view(), has_up ? &up_view : nullptr, scaled ? &scale_view : nullptr,
                           options, out.view(), Optional<ConstTensorView>(static_scale).get(),
                           Optional<TensorView>(scales).get(), StreamView::legacy_default());
  }

  Array wide_gate, wide_up;
};

// The static scale as check_quantised takes it.
RmsNormQuantOptions quantisation(const Options& options) {
  return {.group_size = options.group_size, .scale_upper_bound = options.scale_upper_bound};
}

}  // namespace

TEST_CASE("gated_activation_quant: every dtype, kind, scale and width against the definition") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (const DType dtype : kFloating) {
    for (const Activation kind : kKinds) {
      for (const std::int64_t cols : {1, 17, 64, 100, 129, 1000, 5000}) {
        const bool has_up = cols != 100, scaled = cols % 2 == 0;
        const DType out_dtype = kQuantised[cols % 3];
        QuantCase c(dtype, {4, cols}, seed + static_cast<std::uint32_t>(cols));
        Options options{options_of(kind)[cols % 2]};
        if (!has_up) options.activation.up_offset = 0;
        const auto y = c.activation(options.activation, has_up, scaled);
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(static_cast<int>(kind));
        CAPTURE(cols);
        for (const std::int64_t group : {0, 64, 128}) {
          for (const double bound : {double{INFINITY}, 1.5 / limit_of(out_dtype)}) {
            options.group_size = group;
            options.scale_upper_bound = bound;
            Quantised got(out_dtype, y->shape(), group);
            c.run(options, has_up, scaled, got.out, nullptr, &got.scale);
            CAPTURE(group);
            CAPTURE(bound);
            check_quantised(*y, quantisation(options), got.out, &got.scale, nullptr);
          }
        }
        options = {options.activation};
        const float scale = static_cast<float>(2.0 / limit_of(out_dtype));
        Array out(out_dtype, y->shape());
        c.run(options, has_up, scaled, out, static_scale_of(scale).get(), nullptr);
        check_quantised(*y, {}, out, nullptr, &scale);
      }
    }
  }
}

TEST_CASE("gated_activation_quant: zeros, extremes, inf and NaN") {
  for (const DType dtype : kFloating) {
    for (const DType out_dtype : kQuantised) {
      for (const std::int64_t cols : {1, 70, 300}) {
        const double huge = format_of(dtype).largest, tiny = ulp(0, dtype);
        QuantCase c(dtype, {7, cols}, test_seed());
        const double special[] = {0, huge, tiny, -huge, NAN, INFINITY, -INFINITY};
        for (std::int64_t i = 0; i < c.gate.size(); ++i) {
          if (i < cols) c.up.set(i, 0);
          if (i % cols == cols / 2) c.gate.set(i, special[i / cols]);
        }
        for (const Activation kind : kKinds) {
          Options options;
          options.activation.kind = kind;
          const auto y = c.activation(options.activation, true, false);
          for (const std::int64_t group : {0, 64}) {
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(static_cast<int>(kind));
            CAPTURE(cols);
            options.group_size = group;
            Quantised got(out_dtype, y->shape(), group);
            c.run(options, true, false, got.out, nullptr, &got.scale);
            check_quantised(*y, quantisation(options), got.out, &got.scale, nullptr);
          }
        }
      }
    }
  }
}

TEST_CASE("gated_activation_quant: strides, alignment and transposed scales change nothing") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (const DType dtype : kFloating) {
    for (const std::int64_t cols : {1, 100, 200, 4500}) {
      const Array::Extents shape{2, 3, cols};
      QuantCase c(dtype, shape, seed);
      for (const std::int64_t group : {0, 64}) {
        Options options;
        options.group_size = group;
        Quantised expected(DType::kFloat8E4M3, shape, group);
        c.run(options, true, true, expected.out, nullptr, &expected.scale);
        const std::vector<Layout> layouts = layouts_of(cols);
        for (std::size_t i = 0; i < layouts.size(); ++i) {
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(cols);
          CAPTURE(std::string(layouts[i].name));
          const Layout &first = layouts[i], &second = layouts[(i + 1) % layouts.size()];
          Array gate(dtype, shape, first.strides, first.lead);
          Array up(dtype, shape, second.strides, second.lead);
          gate.copy_from(c.gate);
          up.copy_from(c.up);
          Array out(DType::kFloat8E4M3, shape, first.strides, first.lead);
          Array::Extents first_axis_first{1, 2, 6};
          first_axis_first.resize(expected.scale.shape().size());
          const Array scale(DType::kFloat32, expected.scale.shape(), first_axis_first, 1);
          const ConstTensorView up_view = up.view();
          const TensorView scales = scale.view();
          gated_activation_quant(gate.view(), &up_view, &c.scale_view, options, out.view(), nullptr,
                                 &scales, StreamView::legacy_default());
          REQUIRE(out.first_difference(expected.out) == -1);
          REQUIRE(scale.first_difference(expected.scale) == -1);
        }
      }
    }
  }
}

TEST_CASE("gated_activation_quant: one thread and three give the same bits") {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const std::int64_t cols : {64, 20000}) {
      const QuantCase c(dtype, {600000 / cols, cols}, test_seed());
      Quantised one(DType::kInt8, c.gate.shape(), 128), three(DType::kInt8, c.gate.shape(), 128);
      Options options;
      options.group_size = 128;
      set_cpu_threads(1);
      c.run(options, true, true, one.out, nullptr, &one.scale);
      set_cpu_threads(3);
      c.run(options, true, true, three.out, nullptr, &three.scale);
      set_cpu_threads(0);
      CHECK(one.out.first_difference(three.out) == -1);
      CHECK(one.scale.first_difference(three.scale) == -1);
    }
  }
}

TEST_CASE("gated_activation_quant: errors name the argument and leave the outputs alone") {
  const QuantCase c(DType::kFloat32, {2, 130}, test_seed());
  const Array out(DType::kInt8, {2, 130}), narrow(DType::kInt8, {2, 129});
  const Array rows(DType::kFloat32, {2}), one(DType::kFloat32, {1});
  const auto refused = [&](const char* text, const Options& options, const Array& to,
                           const Array* given, const Array* scale) {
    CHECK_THROWS_WITH(c.run(options, true, false, to, given, scale), text);
  };
  Options grouped, named;
  grouped.group_size = 64;
  named.activation.op = "silu_and_mul_quant";
  refused("gated_activation_quant: argument 'out' must have shape (2, 130), got (2, 129)", {},
          narrow, nullptr, &rows);
  refused("silu_and_mul_quant: argument 'scale' must have shape () or (1,), got (2,)", named, out,
          &rows, nullptr);
  refused("gated_activation_quant: argument 'scale_out' must have shape (2, 3), got (2,)", grouped,
          out, nullptr, &rows);
  refused("gated_activation_quant: argument 'group_size' must be None with a static scale, got 64",
          grouped, out, &one, nullptr);
  CHECK_THROWS_AS(c.run({}, true, false, out, nullptr, nullptr), InvalidArgument);
  CHECK_THROWS_AS(c.run({}, true, false, c.gate, nullptr, &rows), TypeMismatch);
  for (std::int64_t i = 0; i < out.size(); ++i) REQUIRE(code_at(out, i) == 0x5a);
}

TEST_CASE("gated_activation_quant: a launch covers every unit once and keeps what it can") {
  using cuda::tuning::gated_activation_quant_config;
  constexpr std::size_t kShared = 227 << 10, kUnit = 32;
  for (const std::int64_t rows : {1, 3, 1000}) {
    for (const std::int64_t units : {1, 8, 15, 64, 1024, 3584, 9000}) {
      for (const int group : {1, 8, 16, 32}) {
        const bool whole = group == 1;
        const auto config =
            gated_activation_quant_config(rows, units, group, whole, kUnit, kShared);
        CAPTURE(units);
        CAPTURE(group);
        CHECK(config.threads % config.lanes == 0);
        CHECK(config.lanes >= group);
        CHECK((whole || config.part_units * config.tiles >= units));
        CHECK(config.part_units * (config.tiles - 1) < units);
        CHECK(config.part_units >= 1);
        CHECK((config.tiles == 1 || config.part_units % group == 0));
        CHECK(config.blocks / config.tiles * (config.threads / config.lanes) >= rows);
        CHECK(config.result_bytes <= kShared / 2);
        if (whole) CHECK(config.tiles == 1);
        if (whole) CHECK((config.part_units == units) == (units <= 3584));
      }
    }
  }
}

TEST_CASE("gated_activation_quant: threads that keep their units cover every one once") {
  using namespace cuda::tuning;
  for (const std::int64_t rows : {1, 3, 132, 1000, 1 << 20}) {
    for (const std::int64_t units :
         {1, 5, 8, 64, 96, 129, 512, 688, 1024, 1376, 2048, 2049, 9000}) {
      for (const int group : {1, 8, 16, 32}) {
        for (const bool whole : {false, true}) {
          if (whole && group > 1) continue;
          const auto config = quant_tile_config(rows, units, group, whole, 8);
          CAPTURE(rows);
          CAPTURE(units);
          CAPTURE(group);
          CHECK((config.blocks > 0) == (!whole || units <= 8192));
          if (config.blocks == 0) continue;
          const bool power_of_two = (config.lanes & (config.lanes - 1)) == 0;
          CHECK((power_of_two || config.lanes == config.threads));
          CHECK(config.threads % 32 == 0);
          CHECK(config.threads <= kQuantTileThreads);
          CHECK(config.threads % config.lanes == 0);
          CHECK(config.lanes % group == 0);
          CHECK(config.per_thread <= kQuantTileUnits);
          CHECK(config.part_units == config.lanes * config.per_thread);
          CHECK(config.part_units * std::int64_t{config.tiles} >= units);
          CHECK(config.part_units * (std::int64_t{config.tiles} - 1) < units);
          if (whole && rows > 66) CHECK((config.tiles == 1) == (units <= 2048));
          CHECK((!whole || (config.tiles & (config.tiles - 1)) == 0));
          CHECK(config.blocks / config.tiles * (config.threads / config.lanes) >= rows);
          CHECK(config.result_bytes == 0);
        }
      }
    }
  }
  CHECK(quant_tile_config(128, 512, 1, false, 8).threads == 64);
  CHECK(quant_tile_config(256, 512, 1, false, 8).threads == 256);
  CHECK(quant_tile_config(256, 512, 16, false, 8).threads == 64);
  CHECK(quant_tile_config(1024, 512, 1, false, 8).threads == 128);
  CHECK(quant_tile_config(1000, 129, 1, true, 8).threads == 160);
  const auto fills = [](std::int64_t units) {
    return fills_threads(quant_tile_config(8192, units, 1, true, 1));
  };
  CHECK(fills(96));
  CHECK(fills(512));
  CHECK(fills(640));
  CHECK(!fills(704));
  CHECK(!fills(1376));
  CHECK(!fills(2048));
  CHECK(!fills(4096));
}

TEST_CASE("gated_activation_quant: persistent blocks hold whole rows, all of them resident") {
  using namespace cuda::tuning;
  constexpr std::size_t kShared = 227 << 10;
  constexpr int kProcessors = 132;
  const auto config_of = [&](std::int64_t rows, std::int64_t units, bool aligned, int size) {
    return gated_activation_quant_rows_config(rows, units, aligned, size, kShared, kProcessors);
  };
  for (const bool aligned : {true, false}) {
    for (const int size : {2, 4}) {
      for (const std::int64_t rows : {1, 132, 133, 100000}) {
        for (std::int64_t units = 5; units < 2400; units += 37) {
          const auto config = config_of(rows, units, aligned, size);
          CAPTURE(aligned);
          CAPTURE(size);
          CAPTURE(rows);
          CAPTURE(units);
          const bool goes =
              aligned ? units <= kManyQuantUnits : units >= kFewestUnalignedUnits && units <= 2304;
          CHECK((config.blocks > 0) == goes);
          if (config.blocks == 0) continue;
          const int most = quant_row_threads(config.units_of_thread);
          CHECK(config.threads % 32 == 0);
          CHECK(config.threads <= most);
          CHECK(config.threads * config.units_of_thread >= units);
          CHECK((size == 2 || !aligned || config.units_of_thread == 2));
          CHECK(config.slots >= 2);
          CHECK(config.slots <= kQuantRowSlots);
          const std::int64_t places = units + (aligned ? 0 : kExtraUnalignedVectors);
          CHECK(config.shared_bytes == static_cast<std::size_t>(config.slots * places) * 32);
          const std::int64_t together = most / config.threads;
          CHECK(together * (config.shared_bytes + kStaticSharedReserve) <= kShared);
          CHECK(config.blocks == std::min(rows, together * kProcessors));
        }
      }
    }
  }
  CHECK(config_of(16384, 192, true, 2).units_of_thread == 3);
  CHECK(config_of(16384, 512, true, 2).units_of_thread == 2);
  CHECK(config_of(16384, 513, false, 2).units_of_thread == 2);
  CHECK(config_of(8192, 1025, false, 2).units_of_thread == 3);  // two blocks per SM instead of one
  CHECK(config_of(8192, 1794, false, 2).units_of_thread ==
        2);  // one block per SM with either count
  CHECK(config_of(8192, 2049, false, 2).units_of_thread == 3);
}
