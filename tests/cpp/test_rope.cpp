// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "rope.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();

void run(const Array& q, const Tables& tables, const RopeOptions& options, const Array& out,
         const ConstTensorView* ids = nullptr) {
  const ConstTensorView cos = tables.cos.view(), sin = tables.sin.view();
  RopeAngles angles;
  angles.cos = &cos;
  angles.sin = &sin;
  angles.position_ids = ids;
  rope(q.view(), nullptr, angles, options, out.view(), nullptr, kStream);
}

}  // namespace

TEST_CASE("rope: every dtype, style, width and part of a head against the definition") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (std::int64_t head_dim : {2, 6, 64, 80, 128, 260, 1100}) {
      for (int form = 0; form < 8; ++form) {
        RopeOptions options;
        options.interleaved = form & 1;
        options.inverse = form & 2;
        options.rotary_dim = form & 4 && head_dim > 4 ? head_dim / 4 * 2 : head_dim;
        options.rotary_offset = form & 4 ? (head_dim - options.rotary_dim) / 2 : 0;
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(head_dim);
        CAPTURE(form);
        Array q(dtype, {2, 19, 3, head_dim}), out(dtype, {2, 19, 3, head_dim});
        q.fill_normal(seed + static_cast<std::uint32_t>(head_dim));
        const Tables tables(accumulate_dtype(dtype), 19, options.rotary_dim);
        run(q, tables, options, out);
        const auto right = turned(q, tables, options, options.rotary_dim,
                                  [](std::int64_t, std::int64_t s) { return s; });
        check_turned(out, right);
        Array same(dtype, {2, 19, 3, head_dim});
        same.copy_from(q);
        run(same, tables, options, same);
        CHECK(same.first_difference(out) == -1);
      }
    }
  }
}

TEST_CASE("rope: any strides give the bits of contiguous heads") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (DType dtype : kFloating) {
    for (bool interleaved : {false, true}) {
      RopeOptions options;
      options.interleaved = interleaved;
      const Tables tables(DType::kFloat32, 40, 64);
      Array q(dtype, {2, 7, 4, 64}), out(dtype, {2, 7, 4, 64});
      q.fill_normal(seed);
      run(q, tables, options, out);
      // Heads first with an offset of one; every other element; reversed.
      for (const Array::Extents& strides :
           {Array::Extents{4 * 7 * 64, 64, 7 * 64, 1}, Array::Extents{7 * 4 * 130, 4 * 130, 130, 2},
            Array::Extents{-7 * 4 * 64, -4 * 64, -64, -1}}) {
        Array source(dtype, {2, 7, 4, 64}, strides, 1), target(dtype, {2, 7, 4, 64}, strides, 3);
        source.copy_from(q);
        run(source, tables, options, target);
        CHECK(target.first_difference(out) == -1);
      }
    }
  }
}

TEST_CASE("rope: ids out of range give NaN there, and the call that validates throws") {
  const Tables tables(DType::kFloat32, 5, 8);
  Array q(DType::kFloat32, {1, 4, 2, 8}), out(DType::kFloat32, {1, 4, 2, 8});
  q.fill_normal(test_seed());
  const std::int64_t numbers[] = {4, -1, 5, std::int64_t{1} << 62};
  const ConstTensorView ids(numbers, DType::kInt64, Device::cpu(), {4});
  RopeOptions options;
  run(q, tables, options, out, &ids);
  for (std::int64_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out.get(i)) == (i >= 16));
  Array before(DType::kFloat32, {1, 4, 2, 8});
  before.copy_from(out);
  options.validate = true;
  CHECK_THROWS_AS(run(q, tables, options, out, &ids), InvalidArgument);
  CHECK(out.first_difference(before) == -1);
}

TEST_CASE("rope: heads, k's own heads, no heads and no tokens") {
  const Tables tables(DType::kFloat32, 5, 8);
  const ConstTensorView cos = tables.cos.view(), sin = tables.sin.view();
  RopeAngles angles;
  angles.cos = &cos;
  angles.sin = &sin;
  Array q(DType::kFloat32, {1, 5, 4, 8}), q_out(DType::kFloat32, {1, 5, 4, 8});
  Array k(DType::kFloat32, {1, 5, 1, 8}), k_out(DType::kFloat32, {1, 5, 1, 8});
  q.fill_normal(test_seed());
  k.fill_normal(test_seed() + 1);
  const ConstTensorView k_view = k.view();
  const TensorView k_target = k_out.view();
  rope(q.view(), &k_view, angles, {}, q_out.view(), &k_target, kStream);
  const auto place = [](std::int64_t, std::int64_t s) { return s; };
  check_turned(q_out, turned(q, tables, {}, 8, place));
  check_turned(k_out, turned(k, tables, {}, 8, place));
  Array none(DType::kFloat32, {1, 5, 0, 8}), empty(DType::kFloat32, {3, 0, 4, 8});
  rope(none.view(), nullptr, angles, {}, none.view(), nullptr, kStream);
  rope(empty.view(), nullptr, angles, {}, empty.view(), nullptr, kStream);
  CHECK_THROWS_AS(rope(q.view(), &k_view, angles, {}, q_out.view(), nullptr, kStream),
                  InvalidArgument);
}
