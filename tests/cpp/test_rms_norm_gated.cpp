// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "gated.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"

using namespace membound_test;

namespace {

// Every combination of the gate's position and the rounding of 16-bit results.
std::vector<RmsNormGatedOptions> every_form(double offset) {
  std::vector<RmsNormGatedOptions> forms;
  for (Rounding rounding : {Rounding::kOnce, Rounding::kBeforeWeight}) {
    for (bool norm_before_gate : {true, false})
      forms.push_back({1e-6, offset, rounding, norm_before_gate});
  }
  return forms;
}

struct GatedCase {
  GatedCase(DType dtype, Array::Extents shape, std::uint32_t seed)
      : x(dtype, shape),
        z(dtype, shape),
        out(dtype, shape),
        rstd(accumulate_dtype(dtype), Array::Extents(shape.begin(), shape.end() - 1)) {
    x.fill_normal(seed, 3.0);
    z.fill_normal(seed + 1, 3.0);
  }
  Array x, z, out, rstd;
};

}  // namespace

TEST_CASE("rms_norm_gated: every dtype, weight dtype, form and width against the reference") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (int weight_kind = -1; weight_kind < 4; ++weight_kind) {
      for (std::int64_t cols : {1, 3, 16, 31, 64, 65, 127, 128, 1000, 4097}) {
        const std::int64_t rows = cols <= 128 ? 5 : 2;
        GatedCase c(dtype, {rows, cols}, seed + static_cast<std::uint32_t>(cols));
        std::unique_ptr<Array> weight;
        if (weight_kind >= 0) {
          weight = std::make_unique<Array>(kFloating[weight_kind], Array::Extents{cols});
          weight->fill_normal(seed + 2);
        }
        for (const RmsNormGatedOptions& options : every_form(weight && cols % 2 ? 1.0 : 0.0)) {
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(weight_kind);
          CAPTURE(cols);
          CAPTURE(options.norm_before_gate);
          CAPTURE(static_cast<int>(options.rounding));
          run_gated(c.x, c.z, weight.get(), options, c.out, &c.rstd);
          check_gated(c.x, c.z, weight.get(), options, c.out, c.rstd);
        }
      }
    }
  }
}

// A row of ones is normalised to ones, so the result is silu(z).
TEST_CASE("rms_norm_gated: silu is within 2 ulp and has its limits") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const double reach = dtype == DType::kFloat32 ? 104.0 : 746.0;
    const double limits[] = {0.0,  -0.0, INFINITY, -INFINITY, NAN,   1e4,   -1e4, 1e30, -1e30,
                             40.0, 41.0, 80.0,     81.0,      -87.5, 1e-38, -700, -730, -1e-300};
    Array x(dtype, {300, 64}), z(dtype, {300, 64}), out(dtype, {300, 64});
    std::mt19937 engine(seed);
    for (std::int64_t i = 0; i < z.size(); ++i) {
      const double width = i % 3 == 0 ? 4.0 : i % 3 == 1 ? 25.0 : reach;
      x.set(i, 1.0);
      z.set(i, std::uniform_real_distribution<double>(-width, width)(engine));
    }
    for (std::size_t i = 0; i < std::size(limits); ++i) z.set(static_cast<int>(i), limits[i]);
    run_gated(x, z, nullptr, {.eps = 0.0}, out, nullptr);
    for (std::int64_t i = 0; i < z.size(); ++i) {
      const double at = z.get(i), got = out.get(i);
      CAPTURE(at);
      CAPTURE(got);
      if (std::isnan(at)) {
        REQUIRE(std::isnan(got));
      } else if (at == INFINITY) {
        REQUIRE(got == INFINITY);
      } else {
        const double truth = at == -INFINITY ? -0.0 : static_cast<double>(exact_silu(at));
        REQUIRE(std::abs(got - truth) <= 2 * ulp(truth, dtype));
        REQUIRE(std::signbit(got) == std::signbit(at));
      }
    }
  }
}

TEST_CASE("rms_norm_gated: strides, alignment, order and place change no bit") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    // The last width exceeds the cached part of a row.
    for (std::int64_t cols : {1, 5, 64, 129, 8200}) {
      for (bool norm_before_gate : {true, false}) {
        const Array::Extents shape{2, 3, cols};
        GatedCase model(dtype, shape, seed);
        Array weight(dtype, {cols}), apart(dtype, {cols}, {-2}, 1);
        weight.fill_normal(seed + 7);
        apart.copy_from(weight);
        const RmsNormGatedOptions options{.norm_before_gate = norm_before_gate};
        run_gated(model.x, model.z, &weight, options, model.out, &model.rstd);
        const std::vector<Layout> layouts = layouts_of(cols);
        for (std::size_t i = 0; i < layouts.size(); ++i) {
          const auto like = [&](const Array& array, std::size_t shift) {
            const Layout& layout = layouts[(i + shift) % layouts.size()];
            auto same = std::make_unique<Array>(dtype, shape, layout.strides, layout.lead);
            same->copy_from(array);
            return same;
          };
          for (std::size_t shift : {0, 4}) {
            for (int place = 0; place < 3; ++place) {
              CAPTURE(std::string(dtype_name(dtype)));
              CAPTURE(cols);
              CAPTURE(norm_before_gate);
              CAPTURE(std::string(layouts[i].name));
              CAPTURE(shift);
              CAPTURE(place);
              const auto x = like(model.x, 0), z = like(model.z, shift);
              const auto apart_out = like(model.x, 2 * shift);
              const Array& out = place == 0 ? *apart_out : place == 1 ? *x : *z;
              Array rstd(accumulate_dtype(dtype), {2, 3}, {1, 2}, 1);
              run_gated(*x, *z, &apart, options, out, &rstd);
              REQUIRE(out.first_difference(model.out) == -1);
              REQUIRE(rstd.first_difference(model.rstd) == -1);
            }
          }
        }
      }
    }
  }
}

// Many rows use non-temporal stores; results in place never do.
TEST_CASE("rms_norm_gated: threads, batch and stores past the cache change no bit") {
  for (DType dtype : kFloating) {
    const std::int64_t cols = 4096, rows = dtype == DType::kFloat32 ? 1100 : 100;
    for (bool norm_before_gate : {true, false}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(norm_before_gate);
      const RmsNormGatedOptions options{.norm_before_gate = norm_before_gate};
      GatedCase c(dtype, {rows, cols}, test_seed());
      Array two(dtype, {rows, cols}), alone(dtype, {1, cols});
      set_cpu_threads(1);
      run_gated(c.x, c.z, nullptr, options, c.out, nullptr);
      set_cpu_threads(2);
      run_gated(c.x, c.z, nullptr, options, two, nullptr);
      Array x(dtype, {1, cols}), z(dtype, {1, cols});
      std::memcpy(x.at(0), c.x.at(7 * cols), static_cast<std::size_t>(cols) * dtype_size(dtype));
      std::memcpy(z.at(0), c.z.at(7 * cols), static_cast<std::size_t>(cols) * dtype_size(dtype));
      run_gated(x, z, nullptr, options, alone, nullptr);
      run_gated(c.x, c.z, nullptr, options, c.z, nullptr);
      set_cpu_threads(0);
      CHECK(two.first_difference(c.out) == -1);
      CHECK(c.z.first_difference(c.out) == -1);
      CHECK(std::memcmp(alone.at(0), two.at(7 * cols),
                        static_cast<std::size_t>(cols) * dtype_size(dtype)) == 0);
    }
  }
}

TEST_CASE("rms_norm_gated: large and small magnitudes") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (double scale : {1e20, 1e-20, 1e37, 1e-37}) {
      for (std::int64_t cols : {1, 100, 4099}) {
        for (const RmsNormGatedOptions& form : every_form(0.0)) {
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(scale);
          CAPTURE(cols);
          RmsNormGatedOptions options = form;
          options.eps = 0.0;
          GatedCase c(dtype, {3, cols}, seed);
          // Values whose float32 products stay in range.
          for (std::int64_t i = cols; i < 2 * cols; ++i) {
            c.x.set(i, std::copysign(scale, c.x.get(i)) * (i % 2 == 0 ? 1.0 : 1.5));
            c.z.set(i, i % 2 == 0 ? 1.0 : 2.0);
          }
          run_gated(c.x, c.z, nullptr, options, c.out, &c.rstd);
          check_gated(c.x, c.z, nullptr, options, c.out, c.rstd);
        }
      }
    }
  }
}

TEST_CASE("rms_norm_gated: zero, inf and NaN as IEEE has it") {
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {3, 64, 9001}) {
      for (bool norm_before_gate : {true, false}) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(cols);
        CAPTURE(norm_before_gate);
        const RmsNormGatedOptions options{.norm_before_gate = norm_before_gate};
        GatedCase c(dtype, {3, cols}, test_seed());
        for (std::int64_t i = cols; i < 2 * cols; ++i) c.z.set(i, 0.0);
        run_gated(c.x, c.z, nullptr, options, c.out, &c.rstd);
        for (std::int64_t i = cols; i < 2 * cols; ++i) REQUIRE(c.out.get(i) == 0.0);
        // A closed gate (z of -inf) gives 0, after the norm and before it.
        c.z.set(cols, -INFINITY);
        run_gated(c.x, c.z, nullptr, options, c.out, &c.rstd);
        for (std::int64_t i = cols; i < 2 * cols; ++i) REQUIRE(c.out.get(i) == 0.0);
        // A NaN in z affects its element, and the whole row through the sum if the gate comes
        // first.
        c.z.set(cols + 1, NAN);
        run_gated(c.x, c.z, nullptr, options, c.out, &c.rstd);
        for (std::int64_t i = 0; i < 3 * cols; ++i) {
          const bool reached = norm_before_gate ? i == cols + 1 : i / cols == 1;
          REQUIRE(std::isnan(c.out.get(i)) == reached);
        }
      }
    }
  }
}

TEST_CASE("rms_norm_gated: errors name the array and leave the output alone") {
  GatedCase c(DType::kFloat32, {2, 8}, test_seed());
  Array narrow(DType::kFloat32, {2, 7}), whole(DType::kInt32, {2, 8});
  c.out.set(0, 42.0);
  const auto fails = [&](const Array& z, const Array& out, const char* text) {
    std::string got;
    try {
      run_gated(c.x, z, nullptr, {}, out, nullptr);
    } catch (const Error& error) {
      got = error.what();
    }
    CHECK(got == std::string("rms_norm_gated: argument ") + text);
  };
  fails(narrow, c.out, "'z' must have shape (2, 8), got (2, 7)");
  fails(c.z, narrow, "'out' must have shape (2, 8), got (2, 7)");
  CHECK_THROWS_AS(run_gated(c.x, whole, nullptr, {}, c.out, nullptr), TypeMismatch);
  // A view of z's storage, one row further on.
  Array both(DType::kFloat32, {3, 8});
  const TensorView first(both.at(0), DType::kFloat32, Device::cpu(), {2, 8});
  const TensorView second(both.at(8), DType::kFloat32, Device::cpu(), {2, 8});
  CHECK_THROWS_AS(
      rms_norm_gated(c.x.view(), first, nullptr, {}, second, nullptr, StreamView::legacy_default()),
      InvalidArgument);
  CHECK(c.out.get(0) == 42.0);
}

TEST_CASE("rms_norm_gated: no rows is no work") {
  const ConstTensorView x(nullptr, DType::kFloat32, Device::cpu(), {0, 16});
  const TensorView out(nullptr, DType::kFloat32, Device::cpu(), {0, 16});
  CHECK_NOTHROW(rms_norm_gated(x, x, nullptr, {}, out, nullptr, StreamView::legacy_default()));
}
