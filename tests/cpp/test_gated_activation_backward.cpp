// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "gated_activation.hpp"
#include "membound/error.hpp"

using namespace membound_test;

namespace {

void run(const GateCase& c, const GatedActivationOptions& options, const Array* dgate,
         const Array* dup) {
  gated_activation_backward(c.dy.view(), c.gate.view(), &c.up_view, &c.scale_view, options,
                            Optional<TensorView>(dgate).get(), Optional<TensorView>(dup).get(),
                            StreamView::legacy_default());
}

}  // namespace

TEST_CASE("gated_activation_backward: every dtype, kind, option and width") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (const DType dtype : kFloating) {
    const double rounding = dtype_size(dtype) == 2     ? 0x1p-16
                            : dtype == DType::kFloat32 ? 0x1p-21
                                                       : 0x1p-50;
    for (const Activation kind : kKinds) {
      for (const std::int64_t cols : {1, 3, 31, 64, 65, 1000}) {
        for (const GatedActivationOptions& options : options_of(kind)) {
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(static_cast<int>(kind));
          CAPTURE(cols);
          CAPTURE(options.limit);
          const GateCase c(dtype, {3, cols}, seed + static_cast<std::uint32_t>(cols));
          Array dgate(dtype, {3, cols}), dup(dtype, {3, cols}), alone(dtype, {3, cols});
          run(c, options, &dgate, &dup);
          const auto close = [&](double got, long double right, long double terms) {
            const auto near = static_cast<double>(right);
            return std::abs(got - near) <=
                   allowed(dtype) * ulp(near, dtype) + rounding * static_cast<double>(terms);
          };
          for (std::int64_t i = 0; i < dup.size(); ++i) {
            const ExactElement right = c.element(options, i);
            REQUIRE(close(dgate.get(i), right.dgate, right.dgate_terms));
            REQUIRE(close(dup.get(i), right.dup, 0));
          }
          run(c, options, &alone, nullptr);
          REQUIRE(alone.first_difference(dgate) == -1);
          run(c, options, nullptr, &alone);
          REQUIRE(alone.first_difference(dup) == -1);
        }
      }
    }
  }
}

TEST_CASE("gated_activation_backward: over what it reads, in any layout") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (const DType dtype : kFloating) {
    for (const std::int64_t cols : {1, 5, 129, 4100}) {
      const Array::Extents shape{2, 3, cols};
      const GateCase c(dtype, shape, seed);
      const GatedActivationOptions options;
      Array dgate(dtype, shape), dup(dtype, shape);
      run(c, options, &dgate, &dup);
      const std::vector<Layout> layouts = layouts_of(cols);
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        CAPTURE(std::string(layouts[i].name));
        const auto like = [&](const Array& from, std::size_t part) {
          const Layout& layout = layouts[(i + part) % layouts.size()];
          auto array = std::make_unique<Array>(dtype, shape, layout.strides, layout.lead);
          array->copy_from(from);
          return array;
        };
        for (const auto& [for_dgate, for_dup] : {std::pair{0, 1}, {1, 2}, {2, 0}, {3, 4}}) {
          const auto dy = like(c.dy, 0), gate = like(c.gate, 1), up = like(c.up, 2);
          const auto apart = like(c.dy, 3), also_apart = like(c.dy, 4);
          const Array* places[] = {dy.get(), gate.get(), up.get(), apart.get(), also_apart.get()};
          const ConstTensorView up_view = up->view();
          const TensorView to_dgate = places[for_dgate]->view(), to_dup = places[for_dup]->view();
          gated_activation_backward(dy->view(), gate->view(), &up_view, &c.scale_view, options,
                                    &to_dgate, &to_dup, StreamView::legacy_default());
          REQUIRE(places[for_dgate]->first_difference(dgate) == -1);
          REQUIRE(places[for_dup]->first_difference(dup) == -1);
        }
      }
    }
  }
}

TEST_CASE("gated_activation_backward: no gradient of what is not there") {
  const GateCase c(DType::kFloat32, {2, 8}, test_seed());
  const TensorView out = c.dy.view();
  CHECK_THROWS_WITH_AS(gated_activation_backward(c.dy.view(), c.gate.view(), nullptr, nullptr, {},
                                                 &out, &out, StreamView::legacy_default()),
                       "gated_activation_backward: argument 'dup' must not be given without 'up'",
                       InvalidArgument);
}
