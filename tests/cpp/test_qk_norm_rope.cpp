// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/ops/rms_norm.hpp"
#include "qk_norm.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();
constexpr std::int64_t kSeq = 9, kHeads = 3;

struct Forward {
  Forward(DType dtype, std::int64_t head_dim, std::int64_t rotary_dim)
      : q(dtype, {2, kSeq, kHeads, head_dim}),
        out(dtype, {2, kSeq, kHeads, head_dim}),
        weight(dtype, {head_dim}),
        rstd(accumulate_dtype(dtype), {2, kSeq, kHeads}),
        tables(accumulate_dtype(dtype), kSeq, rotary_dim) {
    q.fill_normal(test_seed());
    weight.fill_normal(test_seed() + 1);
    options.rope.rotary_dim = rotary_dim;
  }
  RopeAngles angles(const ConstTensorView& cos, const ConstTensorView& sin) const {
    RopeAngles given;
    given.cos = &cos;
    given.sin = &sin;
    return given;
  }
  void run() {
    const ConstTensorView cos = tables.cos.view(), sin = tables.sin.view(), w = weight.view();
    const TensorView statistics = rstd.view();
    qk_norm_rope(q.view(), nullptr, &w, nullptr, angles(cos, sin), options, out.view(), nullptr,
                 &statistics, nullptr, kStream);
  }
  Array q, out, weight, rstd;
  Tables tables;
  QkNormRopeOptions options;
};

}  // namespace

TEST_CASE("qk_norm_rope: its definition, in every dtype, both styles, whole heads and parts") {
  INFO("seed " << test_seed() << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (bool interleaved : {false, true}) {
      for (std::int64_t rotary_dim : {64, 40, 6}) {
        Forward one(dtype, 64, rotary_dim);
        one.options.rope.interleaved = interleaved;
        one.options.rope.rotary_offset = 64 - rotary_dim;
        one.options.weight_offset = 1;
        one.run();
        Normed right = normed(one.q, one.options.eps);
        for (std::size_t i = 0; i < right.value.size(); ++i) {
          right.value[i] *= one.weight.get(static_cast<std::int64_t>(i) % 64) + 1;
        }
        check_near(one.out, turned_numbers(right.value, one.q, one.tables, one.options.rope),
                   roundings(dtype));
        check_near(one.rstd, right.rstd, roundings(dtype));
      }
    }
  }
}

TEST_CASE("qk_norm_rope: rounded before the weight, the bits of rms_norm and rope") {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Forward one(dtype, 48, 48);
    one.options.rounding = QkNormRounding::kBeforeWeight;
    one.run();
    Array normed(dtype, one.q.shape()), right(dtype, one.q.shape());
    const ConstTensorView w = one.weight.view();
    rms_norm(one.q.view(), &w, {.rounding = Rounding::kBeforeWeight}, normed.view(), nullptr,
             kStream);
    const ConstTensorView cos = one.tables.cos.view(), sin = one.tables.sin.view();
    rope(normed.view(), nullptr, one.angles(cos, sin), one.options.rope, right.view(), nullptr,
         kStream);
    for (std::int64_t i = 0; i < right.size(); ++i) REQUIRE(one.out.get(i) == right.get(i));
  }
}

TEST_CASE("qk_norm_rope: pages of a cache hold the k of a plain call, and v") {
  constexpr std::int64_t kBlocks = 7, kSize = 3, kDim = 32;
  for (DType dtype : kFloating) {
    for (bool heads_first : {false, true}) {
      Forward one(dtype, kDim, kDim);
      one.run();
      const std::int64_t in_block = heads_first ? kDim : kHeads * kDim;
      const std::int64_t of_head = heads_first ? kSize * kDim : kDim;
      const Array::Extents shape{kBlocks, kSize, kHeads, kDim};
      const Array::Extents strides{kSize * kHeads * kDim, in_block, of_head, 1};
      Array keys(dtype, shape, strides), values(dtype, shape, strides), again(dtype, one.q.shape());
      Array slots(DType::kInt32, {2, kSeq});
      const auto slot_of = [](std::int64_t token) { return token % 7 == 5 ? -1 : 20 - token; };
      for (std::int64_t token = 0; token < 2 * kSeq; ++token) {
        const auto slot = static_cast<std::int32_t>(slot_of(token));
        std::memcpy(slots.at(token), &slot, sizeof(slot));
      }
      const std::string before(keys.at(0), static_cast<std::size_t>(kDim) * dtype_size(dtype));
      const ConstTensorView cos = one.tables.cos.view(), sin = one.tables.sin.view();
      const ConstTensorView w = one.weight.view(), x = one.q.view();
      const TensorView cache = keys.view(), value_cache = values.view();
      qk_norm_rope(x, x, &w, &w, one.angles(cos, sin), one.options, again.view(),
                   {cache, slots.view(), &x, &value_cache}, kStream);
      for (std::int64_t i = 0; i < one.q.size(); ++i) {
        const std::int64_t token = i / (kHeads * kDim), slot = slot_of(token);
        REQUIRE(again.get(i) == one.out.get(i));
        if (slot < 0) continue;
        REQUIRE(keys.get(slot * kHeads * kDim + i % (kHeads * kDim)) == one.out.get(i));
        REQUIRE(values.get(slot * kHeads * kDim + i % (kHeads * kDim)) == one.q.get(i));
      }
      CHECK(std::memcmp(keys.at(0), before.data(), before.size()) == 0);  // an unused slot
    }
  }
}

TEST_CASE("qk_norm_rope: a cache of other heads, and one that k is in, are refused") {
  Forward one(DType::kFloat32, 64, 64);
  const ConstTensorView cos = one.tables.cos.view(), sin = one.tables.sin.view();
  Array other(DType::kFloat32, {4, kHeads + 1, 64}), slots(DType::kInt64, {2 * kSeq});
  const ConstTensorView x = one.q.view();
  TensorView over_k = one.q.view();  // the tokens of the first sequence
  over_k.rank = 3;
  for (int axis = 0; axis < 3; ++axis) {
    over_k.shape[axis] = over_k.shape[axis + 1];
    over_k.strides[axis] = over_k.strides[axis + 1];
  }
  for (const TensorView& cache : {other.view(), over_k}) {
    CHECK_THROWS_AS(qk_norm_rope(x, x, nullptr, nullptr, one.angles(cos, sin), one.options,
                                 one.out.view(), {cache, slots.view()}, kStream),
                    InvalidArgument);
  }
}

TEST_CASE("qk_norm_rope: heads that are too long and weights that do not fit are refused") {
  Forward one(DType::kFloat32, 64, 64);
  const ConstTensorView cos = one.tables.cos.view(), sin = one.tables.sin.view();
  Array narrow(DType::kFloat32, {32}), wide(DType::kFloat32, {1, 1, 1, 1026});
  const ConstTensorView w = narrow.view();
  CHECK_THROWS_AS(qk_norm_rope(one.q.view(), nullptr, &w, nullptr, one.angles(cos, sin),
                               one.options, one.out.view(), nullptr, nullptr, nullptr, kStream),
                  InvalidArgument);
  CHECK_THROWS_AS(qk_norm_rope(wide.view(), nullptr, nullptr, nullptr, one.angles(cos, sin),
                               one.options, wide.view(), nullptr, nullptr, nullptr, kStream),
                  InvalidArgument);
}
