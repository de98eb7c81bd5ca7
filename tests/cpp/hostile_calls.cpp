// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "hostile_calls.hpp"

#include "elementwise_ops.hpp"

namespace membound_test {

namespace {

constexpr DType kF32 = DType::kFloat32, kI64 = DType::kInt64, kI8 = DType::kInt8;
constexpr std::int64_t kA = 2, kB = 3, kCols = 8;  // x has the shape (kA, kB, kCols)
const std::vector<std::int64_t> kX{kA, kB, kCols}, kRows{kA, kB}, kWeight{kB, kCols};

StreamView stream() { return StreamView::legacy_default(); }

Argument x_like(const char* name, bool optional = false) { return {name, kF32, kX, optional}; }
Argument rows_like(const char* name, bool optional = false) {
  return {name, kF32, kRows, optional};
}
Argument weight_like(const char* name) { return {name, kF32, kWeight, true}; }
Argument workspace() { return {"workspace", DType::kUInt8, {16}, true}; }

}  // namespace

std::vector<HostileCall> norm_calls() {
  return {
      {"rms_norm",
       {x_like("x"), weight_like("weight"), x_like("out"), rows_like("rstd", true)},
       [](const Views& v) {
         rms_norm(v.in(0), v.maybe_in(1), {}, v.out(2), v.maybe_out(3), stream());
       }},
      {"add_rms_norm",
       {x_like("x"), x_like("residual"), weight_like("weight"), x_like("out"),
        x_like("residual_out"), rows_like("rstd", true)},
       [](const Views& v) {
         add_rms_norm(v.in(0), v.in(1), v.maybe_in(2), {}, v.out(3), v.out(4), v.maybe_out(5),
                      stream());
       }},
      {"rms_norm_gated",
       {x_like("x"), x_like("z"), weight_like("weight"), x_like("out"), rows_like("rstd", true)},
       [](const Views& v) {
         rms_norm_gated(v.in(0), v.in(1), v.maybe_in(2), {}, v.out(3), v.maybe_out(4), stream());
       }},
      {"layer_norm",
       {x_like("x"), weight_like("weight"), weight_like("bias"), x_like("out"),
        rows_like("mean", true), rows_like("rstd", true)},
       [](const Views& v) {
         layer_norm(v.in(0), v.maybe_in(1), v.maybe_in(2), {}, v.out(3), v.maybe_out(4),
                    v.maybe_out(5), stream());
       }},
      {"add_layer_norm",
       {x_like("x"), x_like("residual"), weight_like("weight"), weight_like("bias"), x_like("out"),
        x_like("residual_out"), rows_like("mean", true), rows_like("rstd", true)},
       [](const Views& v) {
         add_layer_norm(v.in(0), v.in(1), v.maybe_in(2), v.maybe_in(3), {}, v.out(4), v.out(5),
                        v.maybe_out(6), v.maybe_out(7), stream());
       }},
      {"rms_norm_backward",
       {x_like("dy"), x_like("x"), weight_like("weight"), rows_like("rstd"), x_like("dx", true),
        weight_like("dweight"), workspace()},
       [](const Views& v) {
         rms_norm_backward(v.in(0), v.in(1), v.maybe_in(2), v.in(3), {}, v.maybe_out(4),
                           v.maybe_out(5), v.maybe_out(6), stream());
       }},
      {"add_rms_norm_backward",
       {x_like("dy"), x_like("dresidual_out", true), x_like("residual_out"), weight_like("weight"),
        rows_like("rstd"), x_like("dx", true), x_like("dresidual", true), weight_like("dweight"),
        workspace()},
       [](const Views& v) {
         add_rms_norm_backward(v.in(0), v.maybe_in(1), v.in(2), v.maybe_in(3), v.in(4), {},
                               v.maybe_out(5), v.maybe_out(6), v.maybe_out(7), v.maybe_out(8),
                               stream());
       }},
      {"layer_norm_backward",
       {x_like("dy"), x_like("x"), weight_like("weight"), rows_like("mean"), rows_like("rstd"),
        x_like("dx", true), weight_like("dweight"), weight_like("dbias"), workspace()},
       [](const Views& v) {
         layer_norm_backward(v.in(0), v.in(1), v.maybe_in(2), v.in(3), v.in(4), {}, v.maybe_out(5),
                             v.maybe_out(6), v.maybe_out(7), v.maybe_out(8), stream());
       }},
      {"add_layer_norm_backward",
       {x_like("dy"), x_like("dresidual_out", true), x_like("residual_out"), weight_like("weight"),
        rows_like("mean"), rows_like("rstd"), x_like("dx", true), x_like("dresidual", true),
        weight_like("dweight"), weight_like("dbias"), workspace()},
       [](const Views& v) {
         add_layer_norm_backward(v.in(0), v.maybe_in(1), v.in(2), v.maybe_in(3), v.in(4), v.in(5),
                                 {}, v.maybe_out(6), v.maybe_out(7), v.maybe_out(8), v.maybe_out(9),
                                 v.maybe_out(10), stream());
       }},
      {"rms_norm_gated_backward",
       {x_like("dy"), x_like("x"), x_like("z"), weight_like("weight"), rows_like("rstd"),
        x_like("dx", true), x_like("dz", true), weight_like("dweight"), workspace()},
       [](const Views& v) {
         rms_norm_gated_backward(v.in(0), v.in(1), v.in(2), v.maybe_in(3), v.in(4), {},
                                 v.maybe_out(5), v.maybe_out(6), v.maybe_out(7), v.maybe_out(8),
                                 stream());
       }},
      {"rms_norm_quant",
       {x_like("x"), weight_like("weight"), {"out", kI8, kX}, rows_like("scale_out")},
       [](const Views& v) {
         rms_norm_quant(v.in(0), v.maybe_in(1), {}, v.out(2), nullptr, &v.out(3), stream());
       }},
      {"rms_norm_quant with a static scale",
       {x_like("x"), weight_like("weight"), {"out", kI8, kX}, {"scale", kF32, {}}},
       [](const Views& v) {
         rms_norm_quant(v.in(0), v.maybe_in(1), {}, v.out(2), &v.in(3), nullptr, stream());
       }},
      {"add_rms_norm_quant",
       {x_like("x"),
        x_like("residual"),
        weight_like("weight"),
        {"out", kI8, kX},
        x_like("residual_out"),
        {"scale_out", kF32, {kA, kB, 1}}},
       [](const Views& v) {
         add_rms_norm_quant(v.in(0), v.in(1), v.maybe_in(2), {.group_size = 64}, v.out(3), v.out(4),
                            nullptr, &v.out(5), stream());
       }},
  };
}

std::vector<HostileCall> token_calls() {
  const std::vector<std::int64_t> table{5, kCols};
  return {
      {"embedding",
       {{"ids", kI64, kRows}, {"weight", kF32, table}, x_like("out")},
       [](const Views& v) {
         embedding(v.in(0), v.in(1), nullptr, nullptr, {}, v.out(2), stream());
       }},
      {"embedding with positions",
       {{"ids", kI64, kRows},
        {"weight", kF32, table},
        {"position_ids", kI64, kRows, true},
        {"position_weight", kF32, table},
        x_like("out")},
       [](const Views& v) {
         embedding(v.in(0), v.in(1), v.maybe_in(2), &v.in(3), {.validate = true}, v.out(4),
                   stream());
       }},
      {"embedding_backward",
       {x_like("dy"), {"ids", kI64, kRows}, {"out", kF32, table}, workspace()},
       [](const Views& v) {
         embedding_backward(v.in(0), v.in(1), {}, v.out(2), v.maybe_out(3), stream());
       }},
      {"embedding_backward_sparse",
       {x_like("dy"),
        {"ids", kI64, kRows},
        {"rows_ids", kI64, {kA * kB}},
        {"rows", kF32, {kA * kB, kCols}},
        {"count", kI64, {}},
        workspace()},
       [](const Views& v) {
         embedding_backward_sparse(v.in(0), v.in(1), 5, {}, v.out(2), v.out(3), v.out(4),
                                   v.maybe_out(5), stream());
       }},
      {"cross_entropy",
       {x_like("logits"),
        {"labels", kI64, kRows},
        {"weight", kF32, {kCols}, true},
        rows_like("dloss", true),
        rows_like("out"),
        {"lse", kF32, {kA, kB, 2}, true},
        rows_like("z_loss", true),
        {"predictions", kI64, kRows, true},
        x_like("dlogits", true)},
       [](const Views& v) {
         CrossEntropyResults also;
         also.lse = v.maybe_out(5);
         also.z_loss = v.maybe_out(6);
         also.predictions = v.maybe_out(7);
         also.dlogits = v.maybe_out(8);
         cross_entropy(v.in(0), v.in(1), v.maybe_in(2), v.maybe_in(3), {.validate = true}, v.out(4),
                       also, stream());
       }},
      {"cross_entropy",
       {x_like("logits"),
        {"labels", kI64, kRows},
        {"dloss", kF32, {}, true},
        {"out", kF32, {}},
        {"z_loss", kF32, {}},
        rows_like("row_losses"),
        rows_like("row_z_losses"),
        x_like("dlogits", true)},
       [](const Views& v) {
         CrossEntropyResults also;
         also.z_loss = &v.out(4);
         also.row_losses = &v.out(5);
         also.row_z_losses = &v.out(6);
         also.dlogits = v.maybe_out(7);
         cross_entropy(v.in(0), v.in(1), nullptr, v.maybe_in(2),
                       {.reduction = Reduction::kMean, .validate = true}, v.out(3), also, stream());
       }},
      {"cross_entropy_backward",
       {rows_like("dloss", true),
        x_like("logits"),
        {"labels", kI64, kRows},
        {"lse", kF32, {kA, kB, 2}},
        {"weight", kF32, {kCols}, true},
        x_like("dlogits"),
        rows_like("entropy", true),
        rows_like("dentropy", true)},
       [](const Views& v) {
         cross_entropy_backward(v.maybe_in(0), v.in(1), v.in(2), v.in(3), v.maybe_in(4), {},
                                v.out(5), nullptr, stream(), {v.maybe_in(6), v.maybe_in(7)});
       }},
  };
}

std::vector<HostileCall> row_calls() {
  std::vector<HostileCall> all{
      {"gated_activation",
       {x_like("gate"), x_like("up", true), rows_like("row_scale", true), x_like("out")},
       [](const Views& v) {
         gated_activation(v.in(0), v.maybe_in(1), v.maybe_in(2), {}, v.out(3), stream());
       }},
      {"gated_activation_backward",
       {x_like("dy"), x_like("gate"), x_like("up"), rows_like("row_scale", true),
        x_like("dgate", true), x_like("dup", true)},
       [](const Views& v) {
         gated_activation_backward(v.in(0), v.in(1), &v.in(2), v.maybe_in(3), {}, v.maybe_out(4),
                                   v.maybe_out(5), stream());
       }},
      {"gated_activation_quant",
       {x_like("gate"),
        x_like("up", true),
        rows_like("row_scale", true),
        {"out", kI8, kX},
        rows_like("scale_out")},
       [](const Views& v) {
         gated_activation_quant(v.in(0), v.maybe_in(1), v.maybe_in(2), {}, v.out(3), nullptr,
                                &v.out(4), stream());
       }},
      {"gated_activation_quant with a static scale",
       {x_like("gate"),
        x_like("up", true),
        rows_like("row_scale", true),
        {"out", kI8, kX},
        {"scale", kF32, {1}}},
       [](const Views& v) {
         gated_activation_quant(v.in(0), v.maybe_in(1), v.maybe_in(2), {}, v.out(3), &v.in(4),
                                nullptr, stream());
       }},
      {"softmax",
       {x_like("x"), {"mask", DType::kBool, {1, kCols}, true}, x_like("out")},
       [](const Views& v) {
         softmax(v.in(0), v.maybe_in(1), {.causal_offset = 1}, v.out(2), stream());
       }},
      {"softmax_backward",
       {x_like("dy"), x_like("y"), x_like("dx")},
       [](const Views& v) { softmax_backward(v.in(0), v.in(1), 1.0, v.out(2), stream()); }},
  };
  for (const ElementwiseOp& op : elementwise_ops()) {
    all.push_back({op.name, {x_like("x"), x_like("out")}, [op](const Views& v) {
                     op.forward(v.in(0), v.out(1), stream());
                   }});
    all.push_back({op.name + "_backward",
                   {x_like("dy"), x_like("x"), x_like("dx")},
                   [op](const Views& v) { op.backward(v.in(0), v.in(1), v.out(2), stream()); }});
  }
  return all;
}

std::vector<HostileCall> rope_calls() {
  constexpr std::int64_t kSeq = 3, kQ = 4, kK = 2, kDim = 4;
  const std::vector<std::int64_t> q{kA, kSeq, kQ, kDim}, k{kA, kSeq, kK, kDim};
  const std::vector<std::int64_t> table{6, kDim / 2}, tokens{kA, kSeq};
  const std::vector<std::int64_t> packed{kSeq, kQ, kDim}, cache{7, kK, kDim};
  const auto rstd = [](std::vector<std::int64_t> shape) {
    shape.pop_back();
    return shape;
  };
  RopeOptions ragged;
  ragged.layout = RopeLayout::kThd;
  return {
      {"rope",
       {{"q", kF32, q},
        {"k", kF32, k},
        {"cos", kF32, table},
        {"sin", kF32, table},
        {"position_ids", kI64, tokens, true},
        {"out", kF32, q},
        {"k_out", kF32, k}},
       [](const Views& v) {
         rope(v.in(0), &v.in(1), {.cos = &v.in(2), .sin = &v.in(3), .position_ids = v.maybe_in(4)},
              {}, v.out(5), &v.out(6), stream());
       }},
      {"rope of packed sequences",
       {{"q", kF32, packed},
        {"freqs", kF32, {kDim / 2}},
        {"seqlen_offsets", kI64, {2}, true},
        {"cu_seqlens", kI64, {3}},
        {"out", kF32, packed}},
       [ragged](const Views& v) {
         rope(v.in(0), nullptr,
              {.freqs = &v.in(1), .seqlen_offsets = v.maybe_in(2), .cu_seqlens = &v.in(3)}, ragged,
              v.out(4), nullptr, stream());
       }},
      {"rope_backward",
       {{"dq", kF32, q},
        {"dk", kF32, k},
        {"q", kF32, q},
        {"k", kF32, k},
        {"freqs", kF32, {kDim / 2}},
        {"position_ids", kI64, {kSeq}, true},
        {"dq_out", kF32, q},
        {"dk_out", kF32, k},
        {"dfreqs", kF32, {kDim / 2}},
        {"workspace", DType::kUInt8, {4096}, true}},
       [](const Views& v) {
         rope_backward(v.in(0), &v.in(1), &v.in(2), &v.in(3),
                       {.freqs = &v.in(4), .position_ids = v.maybe_in(5)}, {}, v.out(6), &v.out(7),
                       &v.out(8), v.maybe_out(9), stream());
       }},
      {"qk_norm_rope",
       {{"q", kF32, q},
        {"k", kF32, k},
        {"q_weight", kF32, {kDim}, true},
        {"k_weight", kF32, {kK, kDim}, true},
        {"cos", kF32, {6, kDim}},
        {"out", kF32, q},
        {"k_out", kF32, k},
        {"q_rstd", kF32, rstd(q), true},
        {"k_rstd", kF32, rstd(k), true}},
       [](const Views& v) {
         qk_norm_rope(v.in(0), &v.in(1), v.maybe_in(2), v.maybe_in(3), {.cos = &v.in(4)}, {},
                      v.out(5), &v.out(6), v.maybe_out(7), v.maybe_out(8), stream());
       }},
      {"qk_norm_rope into a cache",
       {{"q", kF32, q},
        {"k", kF32, k},
        {"cos", kF32, {6, kDim}},
        {"out", kF32, q},
        {"key_cache", kF32, cache},
        {"slot_mapping", kI64, tokens},
        {"v", kF32, k},
        {"value_cache", kF32, cache}},
       [](const Views& v) {
         qk_norm_rope(v.in(0), v.in(1), nullptr, nullptr, {.cos = &v.in(2)}, {}, v.out(3),
                      {v.out(4), v.in(5), &v.in(6), &v.out(7)}, stream());
       }},
      {"qk_norm_rope_backward",
       {{"dq", kF32, q},
        {"q", kF32, q},
        {"q_weight", kF32, {kDim}},
        {"q_rstd", kF32, rstd(q), true},
        {"dq_out", kF32, q},
        {"dq_weight", kF32, {kDim}, true},
        {"dk", kF32, k},
        {"k", kF32, k},
        {"k_weight", kF32, {kK, kDim}},
        {"k_rstd", kF32, rstd(k), true},
        {"dk_out", kF32, k},
        {"dk_weight", kF32, {kK, kDim}, true},
        {"cos", kF32, {6, kDim}},
        {"workspace", DType::kUInt8, {4096}, true}},
       [](const Views& v) {
         const QkNormRopeGradient of_q{v.in(0),       v.in(1),  &v.in(2),
                                       v.maybe_in(3), v.out(4), v.maybe_out(5)};
         const QkNormRopeGradient of_k{v.in(6),       v.in(7),   &v.in(8),
                                       v.maybe_in(9), v.out(10), v.maybe_out(11)};
         qk_norm_rope_backward(of_q, &of_k, {.cos = &v.in(12)}, {}, false, v.maybe_out(13),
                               stream());
       }},
  };
}

}  // namespace membound_test
