// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of (heads, cols): for each head every op gives the bits of a separate call.
#include "membound/error.hpp"
#include "membound/ops/add_layer_norm.hpp"
#include "membound/ops/add_layer_norm_backward.hpp"
#include "membound/ops/add_rms_norm.hpp"
#include "membound/ops/rms_norm_gated.hpp"
#include "membound/ops/rms_norm_gated_backward.hpp"
#include "norm_backward.hpp"

using namespace membound_test;

namespace {

constexpr std::int64_t kTokens = 6, kHeads = 5;  // tokens have the shape (2, 3)

// What an array holds per head: a matrix, one value per row, or one value per column.
enum class Kind { kRows, kStatistic, kColumns };

struct Role {
  Kind kind;
  bool written;
};
constexpr Role kRowsIn{Kind::kRows, false}, kRowsOut{Kind::kRows, true},
    kStatisticIn{Kind::kStatistic, false}, kStatisticOut{Kind::kStatistic, true},
    kColumnsIn{Kind::kColumns, false}, kColumnsOut{Kind::kColumns, true};

using Arrays = std::vector<std::unique_ptr<Array>>;
struct Op {
  const char* name;
  std::vector<Role> roles;
  void (*run)(const Arrays& on, StreamView stream);
};

// Owns the views of an op's arrays for the duration of the call.
struct In : ConstTensorView {
  explicit In(const std::unique_ptr<Array>& array) : ConstTensorView(array->view()) {}
  operator const ConstTensorView*() const { return this; }
};
struct Out : TensorView {
  explicit Out(const std::unique_ptr<Array>& array) : TensorView(array->view()) {}
  operator const TensorView*() const { return this; }
};

const Op kOps[] = {
    {"rms_norm",
     {kRowsIn, kColumnsIn, kRowsOut, kStatisticOut},
     [](const Arrays& on, StreamView stream) {
       rms_norm(In(on[0]), In(on[1]), {1e-6, 1.0}, Out(on[2]), Out(on[3]), stream);
     }},
    {"add_rms_norm",
     {kRowsIn, kRowsIn, kColumnsIn, kRowsOut, kRowsOut, kStatisticOut},
     [](const Arrays& on, StreamView stream) {
       add_rms_norm(In(on[0]), In(on[1]), In(on[2]), {}, Out(on[3]), Out(on[4]), Out(on[5]),
                    stream);
     }},
    {"rms_norm_gated",
     {kRowsIn, kRowsIn, kColumnsIn, kRowsOut, kStatisticOut},
     [](const Arrays& on, StreamView stream) {
       rms_norm_gated(In(on[0]), In(on[1]), In(on[2]), {}, Out(on[3]), Out(on[4]), stream);
     }},
    {"add_layer_norm",
     {kRowsIn, kRowsIn, kColumnsIn, kColumnsIn, kRowsOut, kRowsOut, kStatisticOut, kStatisticOut},
     [](const Arrays& on, StreamView stream) {
       add_layer_norm(In(on[0]), In(on[1]), In(on[2]), In(on[3]), {}, Out(on[4]), Out(on[5]),
                      Out(on[6]), Out(on[7]), stream);
     }},
    {"layer_norm, no weight",
     {kRowsIn, kColumnsIn, kRowsOut, kStatisticOut, kStatisticOut},
     [](const Arrays& on, StreamView stream) {
       layer_norm(In(on[0]), nullptr, In(on[1]), {}, Out(on[2]), Out(on[3]), Out(on[4]), stream);
     }},
    {"rms_norm_backward",
     {kRowsIn, kRowsIn, kColumnsIn, kStatisticIn, kRowsOut, kColumnsOut},
     [](const Arrays& on, StreamView stream) {
       rms_norm_backward(In(on[0]), In(on[1]), In(on[2]), In(on[3]), {}, Out(on[4]), Out(on[5]),
                         nullptr, stream);
     }},
    {"rms_norm_gated_backward",
     {kRowsIn, kRowsIn, kRowsIn, kColumnsIn, kStatisticIn, kRowsOut, kRowsOut, kColumnsOut},
     [](const Arrays& on, StreamView stream) {
       rms_norm_gated_backward(In(on[0]), In(on[1]), In(on[2]), In(on[3]), In(on[4]), {},
                               Out(on[5]), Out(on[6]), Out(on[7]), nullptr, stream);
     }},
    {"add_layer_norm_backward",
     {kRowsIn, kRowsIn, kRowsIn, kColumnsIn, kStatisticIn, kStatisticIn, kRowsOut, kColumnsOut,
      kColumnsOut},
     [](const Arrays& on, StreamView stream) {
       add_layer_norm_backward(In(on[0]), In(on[1]), In(on[2]), In(on[3]), In(on[4]), In(on[5]), {},
                               Out(on[6]), nullptr, Out(on[7]), Out(on[8]), nullptr, stream);
     }},
};

// One array of all heads; its rows have the strides of transposed heads.
std::unique_ptr<Array> of_all(Kind kind, DType dtype, std::int64_t cols) {
  switch (kind) {
    case Kind::kRows:
      return std::make_unique<Array>(dtype, Array::Extents{2, 3, kHeads, cols},
                                     Array::Extents{kHeads * 3 * cols, cols, 3 * cols, 1});
    case Kind::kStatistic:
      return std::make_unique<Array>(accumulate_dtype(dtype), Array::Extents{2, 3, kHeads});
    default:
      return std::make_unique<Array>(dtype, Array::Extents{kHeads, cols},
                                     Array::Extents{-cols - 1, 1});
  }
}
std::unique_ptr<Array> of_one(Kind kind, DType dtype, std::int64_t cols) {
  switch (kind) {
    case Kind::kRows: return std::make_unique<Array>(dtype, Array::Extents{kTokens, cols});
    case Kind::kStatistic:
      return std::make_unique<Array>(accumulate_dtype(dtype), Array::Extents{kTokens});
    default: return std::make_unique<Array>(dtype, Array::Extents{cols});
  }
}

// The index in the array of all heads of element i of one head.
std::int64_t place_of(Kind kind, std::int64_t head, std::int64_t i, std::int64_t cols) {
  switch (kind) {
    case Kind::kRows: return (i / cols * kHeads + head) * cols + i % cols;
    case Kind::kStatistic: return i * kHeads + head;
    default: return head * cols + i;
  }
}

void check(const Op& op, DType dtype, std::int64_t cols, std::uint32_t seed) {
  Arrays all;
  for (const Role& role : op.roles) {
    all.push_back(of_all(role.kind, dtype, cols));
    if (role.written) continue;
    Array& in = *all.back();
    in.fill_normal(seed + static_cast<std::uint32_t>(all.size()));
    // Statistics: a mean, or a positive rstd.
    for (std::int64_t i = 0; role.kind == Kind::kStatistic && i < in.size(); ++i)
      in.set(i, 0.25 + std::abs(in.get(i)));
  }
  op.run(all, StreamView::legacy_default());
  for (std::int64_t head = 0; head < kHeads; ++head) {
    Arrays one;
    for (std::size_t n = 0; n < all.size(); ++n) {
      one.push_back(of_one(op.roles[n].kind, dtype, cols));
      for (std::int64_t i = 0; !op.roles[n].written && i < one[n]->size(); ++i)
        one[n]->set(i, all[n]->get(place_of(op.roles[n].kind, head, i, cols)));
    }
    op.run(one, StreamView::legacy_default());
    for (std::size_t n = 0; n < all.size(); ++n) {
      for (std::int64_t i = 0; op.roles[n].written && i < one[n]->size(); ++i) {
        CAPTURE(head);
        CAPTURE(n);
        CAPTURE(i);
        const std::int64_t place = place_of(op.roles[n].kind, head, i, cols);
        REQUIRE(std::memcmp(all[n]->at(place), one[n]->at(i), dtype_size(one[n]->dtype())) == 0);
      }
    }
  }
}

}  // namespace

TEST_CASE("heads: each has the bits of a call of its own") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (const Op& op : kOps) {
    for (DType dtype : kFloating) {
      for (std::int64_t cols : {1, 64, 100}) {
        CAPTURE(std::string(op.name));
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(cols);
        check(op, dtype, cols, seed);
      }
    }
  }
}

TEST_CASE("heads: one that is shared by all, and gradients that are added to") {
  const DType dtype = DType::kFloat32;
  const Array::Extents shape{4, kHeads, 32};
  BackwardCase c(dtype, shape, -1, {false, false}, test_seed());
  c.weight = std::make_unique<Array>(dtype, Array::Extents{kHeads, 32}, Array::Extents{0, 1});
  for (std::int64_t i = 0; i < 32; ++i) c.weight->set(i, 1.0 + static_cast<double>(i));
  Array shared(dtype, {32}), out(dtype, shape), model(dtype, shape);
  for (std::int64_t i = 0; i < 32; ++i) shared.set(i, c.weight->get(i));
  const StreamView stream = StreamView::legacy_default();
  const ConstTensorView weight = c.weight->view(), one = shared.view();
  rms_norm(c.x.view(), &weight, {}, out.view(), nullptr, stream);
  rms_norm(c.x.view(), &one, {}, model.view(), nullptr, stream);
  CHECK(out.first_difference(model) == -1);

  Array dweight(dtype, {kHeads, 32}), sum(dtype, {kHeads, 32});
  run_backward(c.inputs(), {}, nullptr, &dweight);
  sum.copy_from(dweight);
  run_backward(c.inputs(), {.accumulate = true}, nullptr, &sum);
  for (std::int64_t i = 0; i < sum.size(); ++i) CHECK(sum.get(i) == 2 * dweight.get(i));
}

TEST_CASE("heads: a weight of other heads or of too few axes is named") {
  Array x(DType::kFloat32, {2, 3, 8}), out(DType::kFloat32, {2, 3, 8});
  Array flat(DType::kFloat32, {3, 8}), flat_out(DType::kFloat32, {3, 8});
  x.fill_normal(test_seed());
  flat.fill_normal(test_seed());
  const auto message = [](const Array& of, const Array& to, Array::Extents shape) {
    Array weight(DType::kFloat32, shape);
    weight.fill_normal(test_seed());
    const ConstTensorView view = weight.view();
    try {
      rms_norm(of.view(), &view, {}, to.view(), nullptr, StreamView::legacy_default());
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string expected =
      "rms_norm: argument 'weight' must have shape (8,), the last axis of 'x', or with three axes "
      "and more that of its last two, got ";
  CHECK(message(x, out, {3, 8}).empty());
  CHECK(message(x, out, {2, 8}) == expected + "(2, 8)");
  CHECK(message(x, out, {3, 7}) == expected + "(3, 7)");
  CHECK(message(x, out, {2, 3, 8}) == expected + "(2, 3, 8)");
  CHECK(message(flat, flat_out, {3, 8}) == expected + "(3, 8)");

  const BackwardCase c(DType::kFloat32, {2, 3, 8}, 2, {false, false}, test_seed());
  Array dx(DType::kFloat32, {2, 3, 8}), dweight(DType::kFloat32, {3, 8});
  CHECK_THROWS_AS(run_backward(c.inputs(), {}, &dx, &dweight), InvalidArgument);
}
