// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "gated_backward.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"

using namespace membound_test;
using Options = RmsNormGatedBackwardOptions;

TEST_CASE("rms_norm_gated_backward: every dtype, weight dtype, form and width") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (int weight_kind = -1; weight_kind < 4; ++weight_kind) {
      for (std::int64_t cols : {1, 3, 8, 31, 64, 65, 128, 1000, 4097}) {
        for (bool norm_before_gate : {true, false}) {
          const GatedBackwardCase c(dtype, {cols <= 128 ? 37 : 3, cols}, weight_kind,
                                    norm_before_gate, seed + static_cast<std::uint32_t>(cols));
          for (Rounding rounding : {Rounding::kOnce, Rounding::kBeforeWeight}) {
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(weight_kind);
            CAPTURE(cols);
            CAPTURE(norm_before_gate);
            CAPTURE(static_cast<int>(rounding));
            const double offset = weight_kind >= 0 && cols % 2 ? 1.0 : 0.0;
            check_gated_wanted(c, {offset, rounding, norm_before_gate, false});
          }
        }
      }
    }
  }
}

// Each array has each layout in turn, combined with other layouts; dx and dz alias every input.
TEST_CASE("rms_norm_gated_backward: strides, alignment, order and place change no bit") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    // The last width exceeds the cached part of a row.
    for (std::int64_t cols : {1, 5, 129, 8200}) {
      for (bool norm_before_gate : {true, false}) {
        const Array::Extents shape{2, 3, cols};
        const GatedBackwardCase c(dtype, shape, kind, norm_before_gate, seed);
        const Options options{0.0, Rounding::kOnce, norm_before_gate, false};
        Array dx_model(dtype, shape), dz_model(dtype, shape), dweight_model(dtype, {cols});
        run_gated_backward(c.inputs(), options, &dx_model, &dz_model, &dweight_model);
        const std::vector<Layout> layouts = layouts_of(cols);
        for (std::size_t i = 0; i < layouts.size(); ++i) {
          const auto like = [&](const Array& model, std::size_t part) {
            const Layout& layout = layouts[(i + part * (i % 3)) % layouts.size()];
            auto array = std::make_unique<Array>(dtype, shape, layout.strides, layout.lead);
            array->copy_from(model);
            return array;
          };
          Array rstd(accumulate_dtype(dtype), {2, 3}, {1, 2}, 1), weight(dtype, {cols}, {-2}, 1);
          Array dweight(dtype, {cols}, {3}, 1);
          rstd.copy_from(c.rstd);
          weight.copy_from(*c.weight);
          for (const auto& [for_dx, for_dz] : {std::pair{3, 4}, {0, 2}, {2, 1}, {1, 0}}) {
            if (for_dx != 3 && cols > 129 && i % 4 != 0) continue;
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(cols);
            CAPTURE(norm_before_gate);
            CAPTURE(std::string(layouts[i].name));
            CAPTURE(for_dx);
            const auto dy = like(c.dy, 0), x = like(c.x, 1), z = like(c.z, 2);
            const auto apart = like(c.dy, 3), also_apart = like(c.dy, 4);
            const Array* places[] = {dy.get(), x.get(), z.get(), apart.get(), also_apart.get()};
            run_gated_backward({dy.get(), x.get(), z.get(), &weight, &rstd}, options,
                               places[for_dx], places[for_dz], &dweight);
            REQUIRE(places[for_dx]->first_difference(dx_model) == -1);
            REQUIRE(places[for_dz]->first_difference(dz_model) == -1);
            REQUIRE(dweight.first_difference(dweight_model) == -1);
          }
        }
      }
    }
  }
}

// One thread and two; non-temporal stores and, in place, ordinary ones.
TEST_CASE("rms_norm_gated_backward: threads and stores past the cache change no bit") {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    const std::int64_t cols = kind == 2 ? 4096 : 1000, rows = kind == 2 ? 1100 : 150;
    const bool norm_before_gate = kind != 1;
    CAPTURE(std::string(dtype_name(dtype)));
    GatedBackwardCase c(dtype, {rows, cols}, kind, norm_before_gate, test_seed());
    const Options options{0.0, Rounding::kOnce, norm_before_gate, false};
    Array dx_one(dtype, {rows, cols}), dx_two(dtype, {rows, cols});
    Array dz_one(dtype, {rows, cols}), dz_two(dtype, {rows, cols});
    Array dweight_one(dtype, {cols}), dweight_two(dtype, {cols}), dweight_place(dtype, {cols});
    set_cpu_threads(1);
    run_gated_backward(c.inputs(), options, &dx_one, &dz_one, &dweight_one);
    set_cpu_threads(2);
    run_gated_backward(c.inputs(), options, &dx_two, &dz_two, &dweight_two);
    run_gated_backward(c.inputs(), options, &c.z, &c.x, &dweight_place);
    set_cpu_threads(0);
    CHECK(dx_one.first_difference(dx_two) == -1);
    CHECK(dx_one.first_difference(c.z) == -1);
    CHECK(dz_one.first_difference(dz_two) == -1);
    CHECK(dz_one.first_difference(c.x) == -1);
    CHECK(dweight_one.first_difference(dweight_two) == -1);
    CHECK(dweight_one.first_difference(dweight_place) == -1);
  }
}

TEST_CASE("rms_norm_gated_backward: finite differences of the forward, float64") {
  for (bool norm_before_gate : {true, false}) {
    for (double offset : {0.0, 1.0}) {
      for (std::int64_t cols : {1, 5, 33}) {
        const DType dtype = DType::kFloat64;
        const GatedBackwardCase c(dtype, {3, cols}, 3, norm_before_gate, test_seed());
        Array dx(dtype, {3, cols}), dz(dtype, {3, cols}), dweight(dtype, {cols});
        run_gated_backward(c.inputs(), {offset, Rounding::kOnce, norm_before_gate, false}, &dx, &dz,
                           &dweight);
        const auto loss = [&] {
          Array out(dtype, {3, cols});
          run_gated(c.x, c.z, c.weight.get(), {1e-6, offset, Rounding::kOnce, norm_before_gate},
                    out, nullptr);
          double sum = 0;
          for (std::int64_t i = 0; i < out.size(); ++i) sum += out.get(i) * c.dy.get(i);
          return sum;
        };
        const auto check_all = [&](const Array& gradient, const Array& by) {
          for (std::int64_t i = 0; i < gradient.size(); ++i) {
            constexpr double kStep = 1e-5;
            const double at = by.get(i);
            const auto loss_at = [&](double value) {
              const_cast<Array&>(by).set(i, value);
              return loss();
            };
            const double above = loss_at(at + kStep), below = loss_at(at - kStep);
            const_cast<Array&>(by).set(i, at);
            CAPTURE(cols);
            CAPTURE(norm_before_gate);
            CAPTURE(i);
            REQUIRE(std::abs(gradient.get(i) - (above - below) / (2 * kStep)) <= 2e-8);
          }
        };
        check_all(dx, c.x);
        check_all(dz, c.z);
        check_all(dweight, *c.weight);
      }
    }
  }
}

TEST_CASE("rms_norm_gated_backward: accumulate adds into any dtype and stride") {
  for (DType dtype : kFloating) {
    for (DType dweight_dtype : kFloating) {
      const GatedBackwardCase c(dtype, {70, 130}, 2, true, test_seed());
      Array dweight(dweight_dtype, {130}, {-3}), before(dweight_dtype, {130});
      before.fill_normal(test_seed() + 9, 10.0);
      dweight.copy_from(before);
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(std::string(dtype_name(dweight_dtype)));
      const Options options{0.0, Rounding::kOnce, true, true};
      run_gated_backward(c.inputs(), options, nullptr, nullptr, &dweight);
      check_gated_gradients(c.inputs(), options, nullptr, nullptr, &dweight, &before);
    }
  }
}

TEST_CASE("rms_norm_gated_backward: large and small magnitudes") {
  for (int kind : {1, 2, 3}) {
    const DType dtype = kFloating[kind];
    for (double scale : {1e20, 1e-20, 1e30}) {
      for (bool norm_before_gate : {true, false}) {
        const std::int64_t cols = 100;
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(scale);
        CAPTURE(norm_before_gate);
        GatedBackwardCase c(dtype, {3, cols}, kind, norm_before_gate, test_seed());
        for (std::int64_t i = cols; i < 2 * cols; ++i) c.x.set(i, c.x.get(i) * scale);
        c.rstd.set(1, static_cast<double>(exact_gated_rstd(c.x, c.z, norm_before_gate, 0, 1)));
        Array dx(dtype, {3, cols}), dz(dtype, {3, cols}), dweight(dtype, {cols});
        const Options options{0.0, Rounding::kOnce, norm_before_gate, false};
        run_gated_backward(c.inputs(), options, &dx, &dz, &dweight);
        check_gated_gradients(c.inputs(), options, &dx, &dz, &dweight);
      }
    }
  }
}

// If x, dy and rstd are 1 and the norm comes first, dz is the slope of silu.
TEST_CASE("rms_norm_gated_backward: the slope of silu is finite and has its limits") {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Array one(dtype, {1, 64}), z(dtype, {1, 64}), rstd(dtype, {1}), dz(dtype, {1, 64});
    rstd.set(0, 1.0);
    const double edges[] = {0,   -0.0, INFINITY, -INFINITY, 1e4,  -1e4, 1e30, -1e30,
                            NAN, 40.5, 81,       -87.5,     -104, -745, 17.5, -1.2784645};
    for (std::int64_t i = 0; i < 64; ++i) {
      one.set(i, 1.0);
      z.set(i, edges[i % static_cast<std::int64_t>(std::size(edges))]);
    }
    run_gated_backward({&one, &one, &z, nullptr, &rstd}, {}, nullptr, &dz, nullptr);
    for (std::int64_t i = 0; i < 64; ++i) {
      const double at = z.get(i), got = dz.get(i);
      CAPTURE(at);
      if (std::isnan(at)) {
        REQUIRE(std::isnan(got));
      } else {
        const double bound = std::clamp(at, -1000.0, 1000.0);
        const auto size = static_cast<double>(slope_size(bound));
        REQUIRE(std::abs(static_cast<double>(got - exact_slope(bound))) <=
                4 * ulp(size, dtype) + ulp(0, dtype) * 1000);
      }
    }
  }
}

// 0 * inf may appear only in existing columns, not in the padding of the last vector step.
TEST_CASE("rms_norm_gated_backward: an infinite rstd stays in its columns, NaN in its row") {
  for (DType dtype : kFloating) {
    for (bool norm_before_gate : {true, false}) {
      GatedBackwardCase c(dtype, {3, 5}, 2, norm_before_gate, test_seed());
      const Options options{0.0, Rounding::kOnce, norm_before_gate, false};
      Array dx(dtype, {3, 5}), dz(dtype, {3, 5}), dweight(dtype, {5});
      for (std::int64_t i = 5; i < 10; ++i) {
        c.dy.set(i, 1.0);
        c.x.set(i, 1.0);
        c.z.set(i, 1.0);
      }
      for (std::int64_t i = 0; i < 5; ++i) c.weight->set(i, 1.0);
      c.rstd.set(1, INFINITY);
      run_gated_backward(c.inputs(), options, &dx, &dz, &dweight);
      for (std::int64_t i = 0; i < 5; ++i) {
        CHECK(dx.get(5 + i) == -INFINITY);
        CHECK(dweight.get(i) == INFINITY);
      }
      c.rstd.set(1, 1.0);
      c.z.set(6, NAN);
      run_gated_backward(c.inputs(), options, &dx, &dz, &dweight);
      for (std::int64_t i = 0; i < 15; ++i) {
        CAPTURE(i);
        CHECK(std::isnan(dx.get(i)) == (i / 5 == 1));
        const bool reached = norm_before_gate ? i == 6 : i / 5 == 1;
        CHECK(std::isnan(dz.get(i)) == reached);
      }
      for (std::int64_t i = 0; i < 5; ++i) CHECK(std::isnan(dweight.get(i)) == (i == 1));
    }
  }
}

TEST_CASE("rms_norm_gated_backward: no rows give a dweight of zeros, or leave it alone") {
  const TensorView none(nullptr, DType::kFloat32, Device::cpu(), {0, 4});
  const TensorView no_rstd(nullptr, DType::kFloat32, Device::cpu(), {0});
  Array weight(DType::kFloat32, {4}), dweight(DType::kFloat32, {4});
  weight.fill_normal(test_seed());
  dweight.fill_normal(test_seed());
  const ConstTensorView weight_view = weight.view();
  const TensorView dweight_view = dweight.view();
  const double before = dweight.get(2);
  for (bool accumulate : {true, false}) {
    rms_norm_gated_backward(none, none, none, &weight_view, no_rstd, {.accumulate = accumulate},
                            &none, nullptr, &dweight_view, nullptr, StreamView::legacy_default());
    CHECK(dweight.get(2) == (accumulate ? before : 0.0));
  }
}

TEST_CASE("rms_norm_gated_backward: errors name the array and leave the outputs alone") {
  const GatedBackwardCase c(DType::kFloat32, {2, 8}, 2, true, test_seed());
  Array dx(DType::kFloat32, {2, 8}), dz(DType::kFloat32, {2, 8}), narrow(DType::kFloat32, {2, 7});
  dx.set(0, 42.0);
  dz.set(0, 43.0);
  const auto fails = [&](const GatedInputs& in, const Array* to_dx, const Array* to_dz,
                         const char* text) {
    std::string got;
    try {
      run_gated_backward(in, {}, to_dx, to_dz, nullptr);
    } catch (const Error& error) {
      got = error.what();
    }
    CHECK(got == std::string("rms_norm_gated_backward: argument ") + text);
  };
  const GatedInputs in = c.inputs();
  fails({in.dy, in.x, &narrow, in.weight, in.rstd}, &dx, &dz,
        "'z' must have shape (2, 8), got (2, 7)");
  fails(in, &dx, &narrow, "'dz' must have shape (2, 8), got (2, 7)");
  CHECK_THROWS_AS(run_gated_backward(in, {}, &dx, &dx, nullptr), InvalidArgument);
  CHECK(dx.get(0) == 42.0);
  CHECK(dz.get(0) == 43.0);
}

TEST_CASE("rms_norm_gated_backward: a GPU's workspace is that of its own form") {
  const auto on_gpu = [](std::int64_t rows, std::int64_t cols) {
    return ConstTensorView(nullptr, DType::kBFloat16, Device::cuda(), {rows, cols});
  };
  CHECK(rms_norm_gated_backward_workspace(on_gpu(100, 4096)) == 0);
  CHECK(rms_norm_backward_workspace(on_gpu(1000, 4096)) == 0);
  CHECK(rms_norm_gated_backward_workspace(on_gpu(1000, 4096)) == 256 * 4096 * 4);
  CHECK(rms_norm_gated_backward_workspace(Array(DType::kFloat32, {1000, 8}).view()) == 0);
}
