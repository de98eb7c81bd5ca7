// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/error.hpp"
#include "membound/ops/layer_norm.hpp"
#include "norm_backward.hpp"

using namespace membound_test;

namespace {
constexpr BackwardOp kOp{/*adds=*/false, /*centred=*/true};
}

TEST_CASE("layer_norm_backward: every dtype, weight dtype, offset and width") {
  test_backward_values(kOp);
}

TEST_CASE("layer_norm_backward: strides, alignment, order and place change no bit") {
  test_backward_layouts(kOp);
}

TEST_CASE("layer_norm_backward: one thread and two give the same bits") {
  test_backward_threads(kOp);
}

TEST_CASE("layer_norm_backward: finite differences") {
  test_backward_by_differences(kOp, [](const BackwardCase& c, double offset) {
    Array out(DType::kFloat64, c.x.shape());
    layer_norm(c.x.view(), Optional<ConstTensorView>(c.weight.get()).get(), nullptr, {1e-6, offset},
               out.view(), nullptr, nullptr, StreamView::legacy_default());
    double loss = 0;
    for (std::int64_t i = 0; i < out.size(); ++i) loss += out.get(i) * c.dy.get(i);
    return loss;
  });
}

TEST_CASE("layer_norm_backward: accumulate adds into any dtype and stride") {
  for (DType dtype : kFloating) {
    for (DType columns : kFloating) {
      for (std::int64_t stride : {1, -3}) {
        const BackwardCase c(dtype, {70, 130}, 2, kOp, test_seed());
        Array dweight(columns, {130}, {stride}), dbias(columns, {130}, {2 * stride});
        Array before(columns, {130});
        before.fill_normal(test_seed() + 9, 10.0);
        dweight.copy_from(before);
        dbias.copy_from(before);
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(std::string(dtype_name(columns)));
        const RmsNormBackwardOptions options{0.0, Rounding::kOnce, true};
        run_backward(c.inputs(), options, nullptr, &dweight, &dbias);
        check_gradients(c.inputs(), options, nullptr, &dweight, &before, &dbias);
      }
    }
  }
}

TEST_CASE("layer_norm_backward: broadcast inputs, one mean for all rows") {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    const BackwardCase c(dtype, {5, 300}, kind, kOp, test_seed());
    Array row(dtype, {5, 300}, {0, 1}), one(dtype, {5, 300}, {1, 0}), everywhere(dtype, {300}, {0});
    row.fill_normal(test_seed());
    for (std::int64_t i = 0; i < 1500; i += 300) one.set(i, 0.5);
    everywhere.set(0, 1.5);
    Array rstd(accumulate_dtype(dtype), {5}, {0}), mean(accumulate_dtype(dtype), {5}, {0});
    rstd.set(0, 0.75);
    mean.set(0, 0.25);
    for (const BackwardInputs& in :
         {BackwardInputs{&row, nullptr, &c.x, c.weight.get(), &rstd, &c.mean},
          {&one, nullptr, &row, c.weight.get(), &c.rstd, &mean},
          {&c.dy, nullptr, &one, &everywhere, &rstd, &mean}}) {
      Array dx(dtype, {5, 300}), dweight(dtype, {300}), dbias(dtype, {300});
      run_backward(in, {}, &dx, &dweight, &dbias);
      check_gradients(in, {}, &dx, &dweight, nullptr, &dbias);
    }
  }
}

TEST_CASE("layer_norm_backward: a mean far above the spread") {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (std::int64_t cols : {7, 128, 4500}) {
      BackwardCase c(dtype, {9, cols}, 2, kOp, test_seed());
      for (std::int64_t i = 0; i < c.x.size(); ++i) c.x.set(i, c.x.get(i) + 1e4);
      for (std::int64_t row = 0; row < 9; ++row) c.set_statistics(row, 1e-6);
      Array dx(dtype, {9, cols}), dweight(dtype, {cols}), dbias(dtype, {cols});
      run_backward(c.inputs(), {}, &dx, &dweight, &dbias);
      check_gradients(c.inputs(), {}, &dx, &dweight, nullptr, &dbias);
    }
  }
}

TEST_CASE("layer_norm_backward: many rows keep dweight and dbias accurate") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  constexpr std::int64_t kRows = 300000;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (bool constant : {false, true}) {
      Array dy(dtype, {kRows, 2}), x(dtype, {kRows, 2});
      Array mean(DType::kFloat32, {kRows}, {0}), rstd(DType::kFloat32, {kRows}, {0});
      dy.fill_normal(seed);
      x.fill_normal(seed + 1);
      // Rounding errors of equal terms have one sign: the hardest sum.
      for (std::int64_t i = 0; constant && i < dy.size(); ++i) {
        dy.set(i, 0.1);
        x.set(i, 0.3);
      }
      mean.set(0, 0.125);
      rstd.set(0, 1.0);
      Array weight(DType::kFloat32, {2}), dweight(DType::kFloat32, {2}),
          dbias(DType::kFloat32, {2});
      weight.fill_normal(seed);
      run_backward({&dy, nullptr, &x, &weight, &rstd, &mean}, {}, nullptr, &dweight, &dbias);
      for (const Array* got : {&dweight, &dbias}) {
        for (std::int64_t col = 0; col < 2; ++col) {
          long double truth = 0, size = 0;
          for (std::int64_t i = col; i < dy.size(); i += 2) {
            const long double term = dy.get(i) * (got == &dbias ? 1.0L : x.get(i) - 0.125L);
            truth += term;
            size += fabsl(term);
          }
          // Chains of 32 terms in float32, the rest of the tree in double.
          const double allowed = static_cast<double>(size) * (constant ? 16 : 1) * 0x1p-24 +
                                 0.51 * ulp(static_cast<double>(truth), DType::kFloat32);
          CHECK(std::abs(static_cast<double>(got->get(col) - truth)) <= allowed);
        }
      }
    }
  }
}

TEST_CASE("layer_norm_backward: no rows give zeros for dweight and dbias, or leave them alone") {
  const TensorView none(nullptr, DType::kFloat32, Device::cpu(), {0, 4});
  const TensorView no_rows(nullptr, DType::kFloat32, Device::cpu(), {0});
  Array weight(DType::kFloat32, {4});
  weight.fill_normal(test_seed());
  const ConstTensorView weight_view = weight.view();
  for (DType dtype : kFloating) {
    for (bool accumulate : {true, false}) {
      Array dweight(dtype, {4}), dbias(dtype, {4}), before(dtype, {4});
      before.fill_normal(test_seed());
      dweight.copy_from(before);
      dbias.copy_from(before);
      const TensorView dweight_view = dweight.view(), dbias_view = dbias.view();
      const LayerNormBackwardOptions options{0.0, accumulate};
      layer_norm_backward(none, none, &weight_view, no_rows, no_rows, options, &none, &dweight_view,
                          &dbias_view, nullptr, StreamView::legacy_default());
      for (std::int64_t col = 0; col < 4; ++col) {
        CHECK(dweight.get(col) == (accumulate ? before.get(col) : 0.0));
        CHECK(dbias.get(col) == (accumulate ? before.get(col) : 0.0));
      }
    }
  }
}

TEST_CASE("layer_norm_backward: a row's dx does not depend on its batch") {
  for (int kind = 0; kind < 4; ++kind) {
    for (std::int64_t cols : {48, 128, 5000}) {
      const DType dtype = kFloating[kind];
      const BackwardCase c(dtype, {11, cols}, kind, kOp, test_seed());
      Array all(dtype, {11, cols});
      run_backward(c.inputs(), {}, &all, nullptr);
      for (std::int64_t row : {0, 3, 4, 8, 10}) {
        Array dy(dtype, {1, cols}), x(dtype, {1, cols}), dx(dtype, {1, cols});
        Array mean(c.rstd.dtype(), {1}), rstd(c.rstd.dtype(), {1});
        mean.set(0, c.mean.get(row));
        rstd.set(0, c.rstd.get(row));
        for (std::int64_t i = 0; i < cols; ++i) {
          dy.set(i, c.dy.get(row * cols + i));
          x.set(i, c.x.get(row * cols + i));
        }
        run_backward({&dy, nullptr, &x, c.weight.get(), &rstd, &mean}, {}, &dx, nullptr);
        for (std::int64_t i = 0; i < cols; ++i)
          REQUIRE(std::memcmp(dx.at(i), all.at(row * cols + i), dtype_size(dtype)) == 0);
      }
    }
  }
}

TEST_CASE("layer_norm_backward: constant rows, inf and NaN as IEEE has it") {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    for (std::int64_t cols : {3, 64, 4999}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      BackwardCase c(dtype, {3, cols}, kind, kOp, test_seed());
      Array dx(dtype, {3, cols}), dweight(dtype, {cols}), dbias(dtype, {cols});
      const auto run = [&] { run_backward(c.inputs(), {}, &dx, &dweight, &dbias); };
      // dx = rstd * (g - mean(g)), nothing for dweight.
      for (std::int64_t i = 0; i < cols; ++i) c.x.set(cols + i, 2.0);
      c.mean.set(1, 2.0);
      c.rstd.set(1, 1000.0);
      run();
      check_gradients(c.inputs(), {}, &dx, &dweight, nullptr, &dbias);
      // A NaN in dy propagates to its row of dx and its column of the other gradients.
      c.dy.set(cols + 1, NAN);
      run();
      for (std::int64_t i = 0; i < 3 * cols; ++i) REQUIRE(std::isnan(dx.get(i)) == (i / cols == 1));
      for (std::int64_t i = 0; i < cols; ++i) {
        REQUIRE(std::isnan(dweight.get(i)) == (i == 1));
        REQUIRE(std::isnan(dbias.get(i)) == (i == 1));
      }
      c.dy.set(cols + 1, 1.0);
      // A NaN of any payload in mean or rstd: rounding to bfloat16 must not turn it into a number.
      for (Array* statistic : {&c.mean, &c.rstd}) {
        const double good = statistic->get(1);
        for (std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
          if (dtype == DType::kFloat64) break;
          std::memcpy(statistic->at(1), &bits, 4);
          run();
          for (std::int64_t i = 0; i < cols; ++i) {
            REQUIRE(std::isnan(dx.get(cols + i)));
            REQUIRE(!std::isnan(dx.get(i)));
            REQUIRE(std::isnan(dweight.get(i)));
            REQUIRE(!std::isnan(dbias.get(i)));
          }
        }
        statistic->set(1, good);
      }
    }
  }
}

TEST_CASE("layer_norm_backward: errors name the array and leave the outputs alone") {
  const BackwardCase c(DType::kFloat32, {2, 8}, 2, kOp, test_seed());
  Array dx(DType::kFloat32, {2, 8}), dbias(DType::kFloat32, {8}), short_one(DType::kFloat32, {7});
  Array whole(DType::kInt32, {8}), mean16(DType::kFloat16, {2}), means(DType::kFloat32, {3});
  dx.set(0, 42.0);
  dbias.set(0, 43.0);
  const auto fails = [&](const BackwardInputs& in, const Array* dweight, const Array* to_dbias,
                         const char* text) {
    std::string got;
    try {
      run_backward(in, {}, &dx, dweight, to_dbias);
    } catch (const Error& error) {
      got = error.what();
    }
    CHECK(got == std::string("layer_norm_backward: argument ") + text);
  };
  const BackwardInputs in = c.inputs();
  fails({in.dy, nullptr, in.x, in.weight, in.rstd, &mean16}, nullptr, &dbias,
        "'mean' must be float32, got float16");
  fails({in.dy, nullptr, in.x, in.weight, in.rstd, &means}, nullptr, &dbias,
        "'mean' must have shape (2,), got (3,)");
  fails({in.dy, nullptr, in.x, nullptr, in.rstd, in.mean}, &dbias, nullptr,
        "'dweight' must be None without a weight, got an array");
  fails(in, nullptr, &short_one,
        "'dbias' must have shape (8,), the last axis of 'x', or with three axes and more that "
        "of its last two, got (7,)");
  fails(in, nullptr, &whole, "'dbias' must be float16, bfloat16, float32 or float64, got int32");
  fails(in, &dbias, &dbias, "'dbias' must not overlap 'dweight'");
  fails(in, nullptr, in.weight, "'dbias' must not overlap 'weight'");
  CHECK(dx.get(0) == 42.0);
  CHECK(dbias.get(0) == 43.0);
}

TEST_CASE("layer_norm_backward: no workspace is needed here") {
  const BackwardCase c(DType::kFloat32, {3, 8}, 2, kOp, test_seed());
  CHECK(layer_norm_backward_workspace(c.x.view()) == 0);
}
