// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/activation/gated_activation_config.hpp"
#include "gated_activation.hpp"
#include "membound/error.hpp"

using namespace membound_test;

TEST_CASE("gated_activation: every dtype, kind, option and width") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (const DType dtype : kFloating) {
    for (const Activation kind : kKinds) {
      for (const std::int64_t cols : {1, 3, 8, 31, 64, 65, 1000}) {
        for (const GatedActivationOptions& options : options_of(kind)) {
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(static_cast<int>(kind));
          CAPTURE(cols);
          CAPTURE(options.limit);
          const GateCase c(dtype, {3, cols}, seed + static_cast<std::uint32_t>(cols));
          Array out(dtype, {3, cols});
          gated_activation(c.gate.view(), &c.up_view, &c.scale_view, options, out.view(),
                           StreamView::legacy_default());
          for (std::int64_t i = 0; i < out.size(); ++i) {
            const long double right = c.element(options, i).out;
            REQUIRE(std::abs(out.get(i) - static_cast<double>(right)) <=
                    allowed(dtype) * ulp(static_cast<double>(right), dtype));
          }
        }
      }
    }
  }
}

TEST_CASE("gated_activation: strides, alignment, order and place change no bit") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (const DType dtype : kFloating) {
    for (const std::int64_t cols : {1, 5, 129, 4100}) {
      for (const Activation kind : {Activation::kSilu, Activation::kGelu}) {
        const Array::Extents shape{2, 3, cols};
        const GateCase c(dtype, shape, seed);
        GatedActivationOptions options;
        options.kind = kind;
        Array model(dtype, shape);
        const auto run = [&](const Array& gate, const Array& up, const Array& out) {
          const ConstTensorView view = up.view();
          gated_activation(gate.view(), &view, &c.scale_view, options, out.view(),
                           StreamView::legacy_default());
        };
        run(c.gate, c.up, model);
        const std::vector<Layout> layouts = layouts_of(cols);
        for (std::size_t i = 0; i < layouts.size(); ++i) {
          CAPTURE(std::string(layouts[i].name));
          const auto like = [&](const Array& from, std::size_t part) {
            const Layout& layout = layouts[(i + part) % layouts.size()];
            auto array = std::make_unique<Array>(dtype, shape, layout.strides, layout.lead);
            array->copy_from(from);
            return array;
          };
          const auto gate = like(c.gate, 0), up = like(c.up, 1), apart = like(c.up, 2);
          run(*gate, *up, *apart);
          REQUIRE(apart->first_difference(model) == -1);
          run(*gate, *up, i % 2 ? *gate : *up);
          REQUIRE((i % 2 ? gate : up)->first_difference(model) == -1);
        }
      }
    }
  }
}

TEST_CASE("gated_activation: packed arrays in two ways, and names for the kinds") {
  Array packed(DType::kFloat32, {4, 2 * 33}), out(DType::kFloat32, {4, 33});
  packed.fill_normal(test_seed());
  for (const Packing packing : {Packing::kHalves, Packing::kInterleaved}) {
    const auto [gate, up] = split_gate_up(packed.view(), packing);
    Array model(DType::kFloat32, {4, 33});
    silu_and_mul(gate, up, out.view(), StreamView::legacy_default());
    for (std::int64_t row = 0; row < 4; ++row) {
      for (std::int64_t col = 0; col < 33; ++col) {
        const bool halves = packing == Packing::kHalves;
        const std::int64_t g = 66 * row + (halves ? col : 2 * col);
        const long double right = exact_activation(Activation::kSilu, packed.get(g), 1).value *
                                  static_cast<long double>(packed.get(halves ? g + 33 : g + 1));
        REQUIRE(out.get(33 * row + col) == doctest::Approx(static_cast<double>(right)));
      }
    }
    // In place: the other half does not overlap.
    silu_and_mul(gate, up, gate, StreamView::legacy_default());
  }
  relu2(packed.view(), packed.view(), StreamView::legacy_default());
  CHECK(packed.get(0) >= 0);
  CHECK_THROWS_WITH_AS(relu2(packed.view(), out.view(), StreamView::legacy_default()),
                       "relu2: argument 'out' must have shape (4, 66), got (4, 33)",
                       InvalidArgument);
}

TEST_CASE("a block has whole tiles of rows, every unit of a row exactly once") {
  using namespace membound::cuda::tuning;
  for (const std::int64_t units : {1, 2, 3, 7, 64, 255, 256, 257, 512, 513, 100'000}) {
    for (const int per_thread : {kVectorsPerThread, kElementsPerThread}) {
      for (const std::int64_t rows : {1, 5, 4096}) {
        const GatedActivationConfig config = gated_activation_config(rows, units, per_thread);
        CAPTURE(units);
        CAPTURE(per_thread);
        CHECK((config.lanes & (config.lanes - 1)) == 0);
        CHECK(config.threads <= kGateThreads);
        CHECK(config.lanes <= config.threads);
        CHECK(config.per_thread <= per_thread);
        CHECK(config.tile_units == config.lanes * config.per_thread);
        CHECK(config.tile_units * config.tiles >= units);
        CHECK(config.tile_units * (config.tiles - 1) < units);
        const std::int64_t rows_per_block = config.threads / config.lanes;
        CHECK(config.blocks * rows_per_block >= rows * config.tiles);
        CHECK((config.blocks - config.tiles) * rows_per_block < rows * config.tiles);
      }
    }
  }
}

TEST_CASE("few units are spread over small blocks") {
  using namespace membound::cuda::tuning;
  CHECK(gated_activation_config(1, 512, kVectorsPerThread).blocks == 8);
  CHECK(gated_activation_config(16384, 512, kVectorsPerThread).threads == kManyGateThreads);
  CHECK(tile_config(1, 512, 2, kGateThreads).blocks == 1);
}
