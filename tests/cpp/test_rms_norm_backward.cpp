// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/error.hpp"
#include "norm_backward.hpp"

using namespace membound_test;

namespace {
constexpr BackwardOp kOp{/*adds=*/false, /*centred=*/false};
}

TEST_CASE("rms_norm_backward: every dtype, weight dtype, rounding and width") {
  test_backward_values(kOp);
}

TEST_CASE("rms_norm_backward: strides, alignment, order and place change no bit") {
  test_backward_layouts(kOp);
}

TEST_CASE("rms_norm_backward: one thread and two give the same bits") {
  test_backward_threads(kOp);
}

TEST_CASE("rms_norm_backward: finite differences") {
  test_backward_by_differences(kOp, [](const BackwardCase& c, double offset) {
    Array out(DType::kFloat64, c.x.shape());
    rms_norm(c.x.view(), Optional<ConstTensorView>(c.weight.get()).get(), {1e-6, offset},
             out.view(), nullptr, StreamView::legacy_default());
    double loss = 0;
    for (std::int64_t i = 0; i < out.size(); ++i) loss += out.get(i) * c.dy.get(i);
    return loss;
  });
}

TEST_CASE("rms_norm_backward: broadcast inputs") {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    const BackwardCase c(dtype, {5, 300}, kind, kOp, test_seed());
    Array row(dtype, {5, 300}, {0, 1}), one(dtype, {5, 300}, {1, 0}), everywhere(dtype, {300}, {0});
    row.fill_normal(test_seed());
    for (std::int64_t i = 0; i < 1500; i += 300) one.set(i, 0.5);
    everywhere.set(0, 1.5);
    Array rstd(accumulate_dtype(dtype), {5}, {0});
    rstd.set(0, 0.75);
    for (const BackwardInputs& in : {BackwardInputs{&row, nullptr, &c.x, c.weight.get(), &rstd},
                                     {&one, nullptr, &row, c.weight.get(), &c.rstd},
                                     {&c.dy, nullptr, &one, &everywhere, &rstd}}) {
      Array dx(dtype, {5, 300}), dweight(dtype, {300});
      run_backward(in, {}, &dx, &dweight);
      check_gradients(in, {}, &dx, &dweight);
    }
  }
}

TEST_CASE("rms_norm_backward: accumulate adds into any dtype and stride") {
  for (DType dtype : kFloating) {
    for (DType dweight_dtype : kFloating) {
      for (std::int64_t stride : {1, -3}) {
        const BackwardCase c(dtype, {70, 130}, 2, kOp, test_seed());
        Array dweight(dweight_dtype, {130}, {stride}), before(dweight_dtype, {130});
        before.fill_normal(test_seed() + 9, 10.0);
        dweight.copy_from(before);
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(std::string(dtype_name(dweight_dtype)));
        const RmsNormBackwardOptions options{0.0, Rounding::kOnce, true};
        run_backward(c.inputs(), options, nullptr, &dweight);
        check_gradients(c.inputs(), options, nullptr, &dweight, &before);
      }
    }
  }
}

TEST_CASE("rms_norm_backward: many rows keep dweight accurate") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  constexpr std::int64_t kRows = 1000000;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (bool constant : {false, true}) {
      Array dy(dtype, {kRows, 2}), x(dtype, {kRows, 2}), rstd(DType::kFloat32, {kRows}, {0});
      dy.fill_normal(seed);
      x.fill_normal(seed + 1);
      // Rounding errors of equal terms have one sign: the hardest sum.
      for (std::int64_t i = 0; constant && i < dy.size(); ++i) {
        dy.set(i, 0.1);
        x.set(i, 0.3);
      }
      rstd.set(0, 1.0);
      Array weight(DType::kFloat32, {2}), dweight(DType::kFloat32, {2});
      weight.fill_normal(seed);
      run_backward({&dy, nullptr, &x, &weight, &rstd}, {}, nullptr, &dweight);
      for (std::int64_t col = 0; col < 2; ++col) {
        long double truth = 0, size = 0;
        for (std::int64_t row = 0; row < kRows; ++row) {
          const long double term =
              static_cast<long double>(dy.get(2 * row + col)) * x.get(2 * row + col);
          truth += term;
          size += fabsl(term);
        }
        // Chains of 32 terms in float32, the rest of the tree in double.
        const double allowed = static_cast<double>(size) * (constant ? 16 : 1) * 0x1p-24 +
                               0.51 * ulp(static_cast<double>(truth), DType::kFloat32);
        CHECK(std::abs(static_cast<double>(dweight.get(col) - truth)) <= allowed);
      }
    }
  }
}

TEST_CASE("rms_norm_backward: no rows give a dweight of zeros, or leave it alone") {
  const TensorView none(nullptr, DType::kFloat32, Device::cpu(), {0, 4});
  const TensorView no_rstd(nullptr, DType::kFloat32, Device::cpu(), {0});
  Array weight(DType::kFloat32, {4});
  weight.fill_normal(test_seed());
  for (DType dtype : kFloating) {
    Array dweight(dtype, {4});
    dweight.fill_normal(test_seed());
    const ConstTensorView weight_view = weight.view();
    const TensorView dweight_view = dweight.view();
    const double before = dweight.get(2);
    RmsNormBackwardOptions options{};
    options.accumulate = true;
    rms_norm_backward(none, none, &weight_view, no_rstd, options, &none, &dweight_view, nullptr,
                      StreamView::legacy_default());
    CHECK(dweight.get(2) == before);
    options.accumulate = false;
    rms_norm_backward(none, none, &weight_view, no_rstd, options, &none, &dweight_view, nullptr,
                      StreamView::legacy_default());
    for (std::int64_t col = 0; col < 4; ++col) CHECK(dweight.get(col) == 0.0);
  }
}

TEST_CASE("rms_norm_backward: a row's dx does not depend on its batch") {
  for (int kind = 0; kind < 4; ++kind) {
    for (std::int64_t cols : {48, 128, 5000}) {
      const DType dtype = kFloating[kind];
      const BackwardCase c(dtype, {11, cols}, kind, kOp, test_seed());
      Array all(dtype, {11, cols});
      run_backward(c.inputs(), {}, &all, nullptr);
      for (std::int64_t row : {0, 3, 4, 8, 10}) {
        Array dy(dtype, {1, cols}), x(dtype, {1, cols}), dx(dtype, {1, cols});
        Array rstd(c.rstd.dtype(), {1});
        rstd.set(0, c.rstd.get(row));
        for (std::int64_t i = 0; i < cols; ++i) {
          dy.set(i, c.dy.get(row * cols + i));
          x.set(i, c.x.get(row * cols + i));
        }
        run_backward({&dy, nullptr, &x, c.weight.get(), &rstd}, {}, &dx, nullptr);
        for (std::int64_t i = 0; i < cols; ++i)
          REQUIRE(std::memcmp(dx.at(i), all.at(row * cols + i), dtype_size(dtype)) == 0);
      }
    }
  }
}

TEST_CASE("rms_norm_backward: large and small magnitudes") {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    const int kind = dtype == DType::kBFloat16 ? 1 : dtype == DType::kFloat32 ? 2 : 3;
    for (double scale : {1e20, 1e-20, 1e30}) {
      for (std::int64_t cols : {1, 100, 4096}) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(scale);
        BackwardCase c(dtype, {6, cols}, kind, {true, false}, test_seed());
        for (std::int64_t row = 2; row < 4; ++row) {
          for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i)
            c.x.set(i, c.x.get(i) * scale);
          const auto value = [&](std::int64_t col) { return c.x.get(row * cols + col); };
          c.rstd.set(row, static_cast<double>(exact_rstd_of(cols, 0, value)));
        }
        Array dx(dtype, {6, cols}), dweight(dtype, {cols});
        run_backward(c.inputs(), {}, &dx, &dweight);
        check_gradients(c.inputs(), {}, &dx, &dweight);
      }
    }
  }
}

TEST_CASE("rms_norm_backward: zero, inf and NaN as IEEE has it") {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    for (std::int64_t cols : {3, 64, 4999}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      BackwardCase c(dtype, {3, cols}, kind, kOp, test_seed());
      Array dx(dtype, {3, cols}), dweight(dtype, {cols});
      // A row of zeros: dx = rstd * g, nothing for dweight.
      for (std::int64_t i = 0; i < cols; ++i) c.x.set(cols + i, 0.0);
      c.rstd.set(1, 1000.0);
      run_backward(c.inputs(), {}, &dx, &dweight);
      check_gradients(c.inputs(), {}, &dx, &dweight);
      // A NaN in dy propagates to its row of dx and its column of dweight.
      c.dy.set(cols + 1, NAN);
      run_backward(c.inputs(), {}, &dx, &dweight);
      for (std::int64_t i = 0; i < 3 * cols; ++i) REQUIRE(std::isnan(dx.get(i)) == (i / cols == 1));
      for (std::int64_t i = 0; i < cols; ++i) REQUIRE(std::isnan(dweight.get(i)) == (i == 1));
      c.dy.set(cols + 1, 1.0);
      // An inf in x has rstd 0: it gives NaN at its element, and in the row through the mean.
      c.x.set(cols + 2, INFINITY);
      c.rstd.set(1, 0.0);
      run_backward(c.inputs(), {}, &dx, &dweight);
      for (std::int64_t i = 0; i < cols; ++i) {
        REQUIRE(std::isnan(dx.get(cols + i)));
        REQUIRE(std::isnan(dweight.get(i)) == (i == 2));
        REQUIRE(!std::isnan(dx.get(i)));
      }
      // A NaN of any payload in rstd: rounding to bfloat16 must not turn it into a number.
      for (std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
        if (dtype == DType::kFloat64) break;
        std::memcpy(c.rstd.at(1), &bits, 4);
        run_backward(c.inputs(), {}, &dx, &dweight);
        for (std::int64_t i = 0; i < cols; ++i) {
          REQUIRE(std::isnan(dx.get(cols + i)));
          REQUIRE(std::isnan(dweight.get(i)));
        }
      }
    }
  }
}

// A column sum of +-0 and inf: 0 * inf may appear only in existing columns, not in the padding of
// the last vector step.
TEST_CASE("rms_norm_backward: an infinite rstd stays in its columns") {
  Array dy(DType::kFloat32, {1, 5}), x(DType::kFloat32, {1, 5}), rstd(DType::kFloat32, {1});
  Array weight(DType::kFloat32, {5}), dx(DType::kFloat32, {1, 5}), dweight(DType::kFloat32, {5});
  for (std::int64_t i = 0; i < 5; ++i) {
    dy.set(i, 1.0);
    x.set(i, 1e-40);
    weight.set(i, 1.0);
  }
  rstd.set(0, INFINITY);
  run_backward({&dy, nullptr, &x, &weight, &rstd}, {}, &dx, &dweight);
  for (std::int64_t i = 0; i < 5; ++i) {
    CHECK(dx.get(i) == -INFINITY);
    CHECK(dweight.get(i) == INFINITY);
  }
}

TEST_CASE("rms_norm_backward: errors name the array and leave the outputs alone") {
  const BackwardCase c(DType::kFloat32, {2, 8}, 2, kOp, test_seed());
  Array dx(DType::kFloat32, {2, 8}), dweight(DType::kFloat32, {8});
  Array narrow(DType::kFloat32, {2, 7}), short_one(DType::kFloat32, {7});
  Array whole(DType::kInt32, {2, 8}), whole_one(DType::kInt32, {8}), rstd16(DType::kFloat16, {2});
  dx.set(0, 42.0);
  dweight.set(0, 43.0);
  const auto fails = [&](BackwardInputs in, const RmsNormBackwardOptions& options,
                         const Array* to_dx, const Array* to_dweight, const char* text) {
    std::string got;
    try {
      run_backward(in, options, to_dx, to_dweight);
    } catch (const Error& error) {
      got = error.what();
    }
    CHECK(got == std::string("rms_norm_backward: argument ") + text);
  };
  const BackwardInputs in = c.inputs();
  fails({&narrow, nullptr, in.x, in.weight, in.rstd}, {}, &dx, nullptr,
        "'dy' must have shape (2, 8), got (2, 7)");
  fails({in.dy, nullptr, in.x, &short_one, in.rstd}, {}, &dx, nullptr,
        "'weight' must have shape (8,), the last axis of 'x', or with three axes and more that "
        "of its last two, got (7,)");
  fails({in.dy, nullptr, in.x, nullptr, in.rstd}, {}, &dx, &dweight,
        "'dweight' must be None without a weight, got an array");
  fails({in.dy, nullptr, in.x, nullptr, in.rstd}, {NAN}, &dx, nullptr,
        "'weight_offset' must be finite, got nan");
  fails(in, {}, &narrow, nullptr, "'dx' must have shape (2, 8), got (2, 7)");
  fails(in, {}, nullptr, &short_one,
        "'dweight' must have shape (8,), the last axis of 'x', or with three axes and more that "
        "of its last two, got (7,)");
  CHECK_THROWS_AS(run_backward(in, {}, &whole, nullptr), TypeMismatch);
  CHECK_THROWS_AS(run_backward(in, {}, nullptr, &whole_one), TypeMismatch);
  CHECK_THROWS_AS(run_backward({&whole, nullptr, in.x, in.weight, in.rstd}, {}, &dx, nullptr),
                  TypeMismatch);
  CHECK_THROWS_AS(run_backward({in.dy, nullptr, in.x, in.weight, &rstd16}, {}, &dx, nullptr),
                  TypeMismatch);
  CHECK_THROWS_AS(run_backward(in, {}, nullptr, in.weight), InvalidArgument);
  // A view of the same storage, one row further on.
  Array both(DType::kFloat32, {3, 8});
  const TensorView first(both.at(0), DType::kFloat32, Device::cpu(), {2, 8});
  const TensorView second(both.at(8), DType::kFloat32, Device::cpu(), {2, 8});
  CHECK_THROWS_AS(rms_norm_backward(first, c.x.view(), nullptr, c.rstd.view(), {}, &second, nullptr,
                                    nullptr, StreamView::legacy_default()),
                  InvalidArgument);
  CHECK(dx.get(0) == 42.0);
  CHECK(dweight.get(0) == 43.0);
}

TEST_CASE("rms_norm_backward: a workspace is taken, and none is needed here") {
  const BackwardCase c(DType::kFloat32, {3, 8}, 2, kOp, test_seed());
  CHECK(rms_norm_backward_workspace(c.x.view()) == 0);
  Array dx(DType::kFloat32, {3, 8}), dweight(DType::kFloat32, {8}), model(DType::kFloat32, {8});
  run_backward(c.inputs(), {}, &dx, &model);
  alignas(16) unsigned char bytes[64] = {};
  const TensorView workspace(bytes, DType::kUInt8, Device::cpu(), {64});
  const TensorView dx_view = dx.view(), dweight_view = dweight.view();
  const ConstTensorView weight_view = c.weight->view();
  rms_norm_backward(c.dy.view(), c.x.view(), &weight_view, c.rstd.view(), {}, &dx_view,
                    &dweight_view, &workspace, StreamView::legacy_default());
  CHECK(dweight.first_difference(model) == -1);
  const TensorView wrong(bytes, DType::kFloat32, Device::cpu(), {4});
  CHECK_THROWS_AS(rms_norm_backward(c.dy.view(), c.x.view(), &weight_view, c.rstd.view(), {},
                                    &dx_view, &dweight_view, &wrong, StreamView::legacy_default()),
                  TypeMismatch);
}
