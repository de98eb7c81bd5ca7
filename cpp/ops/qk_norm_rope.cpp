// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/qk_norm_rope.hpp"

#include <array>

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "qk_norm_rope";

struct Named {
  const ConstTensorView* view;
  const char* name;
};

// The arrays of q and k that rope does not have.
struct Norms {
  Named weights[2], rstds[2];
};

template <class Call>
std::array<Named, 8> reads_of(const Call& call) {
  return {{{&call.q, "q"},
           {call.k, "k"},
           {call.angles.cos, "cos"},
           {call.angles.sin, "sin"},
           {call.angles.freqs, "freqs"},
           {call.angles.position_ids, "position_ids"},
           {call.angles.seqlen_offsets, "seqlen_offsets"},
           {call.angles.cu_seqlens, "cu_seqlens"}}};
}

// No output may overlap any other array; rope has checked its own arrays.
void check_all_disjoint(const Norms& norms, const RopeCall& call) {
  const auto check_disjoint = [](const Named& written, const Named& other) {
    if (written.view == nullptr || other.view == nullptr) return;
    check_rope_overlap(*written.view, written.name, *other.view, other.name, kOp,
                       /*in_place=*/false);
  };
  const ConstTensorView out = call.out, k_out = call.k_out ? *call.k_out : call.out;
  const Named outs[] = {{&out, "out"}, {call.k_out ? &k_out : nullptr, "k_out"}};
  const auto reads = reads_of(call);
  for (const Named& weight : norms.weights) {
    for (const Named& one : outs) check_disjoint(one, weight);
    for (const Named& one : norms.rstds) check_disjoint(one, weight);
  }
  for (const Named& rstd : norms.rstds) {
    for (const Named& one : outs) check_disjoint(rstd, one);
    for (const Named& one : reads) check_disjoint(rstd, one);
  }
  check_disjoint(norms.rstds[1], norms.rstds[0]);
}

// The caches must not overlap any input or out; out must not overlap the arrays that rope lacks.
void check_cache_disjoint(const QkNormRopeCall& call) {
  const auto& [keys, slot_mapping, v, values] = *call.cache;
  const auto check_disjoint = [](const ConstTensorView& written, const char* name,
                                 const Named& other) {
    if (other.view == nullptr) return;
    check_rope_overlap(written, name, *other.view, other.name, kOp, /*in_place=*/false);
  };
  const ConstTensorView out = call.out, key_cache = keys;
  const auto check_cache = [&](const ConstTensorView& cache, const char* name) {
    for (const Named& one : reads_of(call)) check_disjoint(cache, name, one);
    for (const Named& one : {Named{call.q_weight, "q_weight"},
                             {call.k_weight, "k_weight"},
                             {v, "v"},
                             {&slot_mapping, "slot_mapping"},
                             {&out, "out"}}) {
      check_disjoint(cache, name, one);
    }
  };
  check_cache(key_cache, "key_cache");
  check_disjoint(out, "out", {&slot_mapping, "slot_mapping"});
  check_disjoint(out, "out", {v, "v"});
  if (values == nullptr) return;
  check_cache(*values, "value_cache");
  check_disjoint(*values, "value_cache", {&key_cache, "key_cache"});
}

void check_caches(const QkNormRopeCall& call, std::int64_t heads) {
  const auto& [keys, slot_mapping, v, values] = *call.cache;
  const ConstTensorView& k = *call.k;
  check_dtype(keys, k.dtype, kOp, "key_cache");
  check_same_device(keys, k, kOp, "key_cache", "k");
  check_floating(keys, kOp, "key_cache");
  const std::int64_t head_dim = k.shape[k.rank - 1];
  MEMBOUND_CHECK((keys.rank == 3 || keys.rank == 4) && keys.shape[keys.rank - 2] == heads &&
                     keys.shape[keys.rank - 1] == head_dim,
                 InvalidArgument, kOp, "argument 'key_cache' must have shape (slots, ", heads, ", ",
                 head_dim, ") or (blocks, block_size, ", heads, ", ", head_dim, "), got ",
                 shape_text(keys));
  check_writable(keys, kOp, "key_cache");
  MEMBOUND_CHECK((v == nullptr) == (values == nullptr), InvalidArgument, kOp,
                 "argument 'value_cache' must be given with 'v', and only then");
  if (v == nullptr) return;
  check_like(*v, "v", k, "k", kOp);
  check_like(*values, "value_cache", keys, "key_cache", kOp);
  check_writable(*values, kOp, "value_cache");
}

// The slot of each token.
CacheSlots cache_slots(const QkNormRopeCall& call, const RopeProblem& rope) {
  const ConstTensorView& ids = call.cache->slot_mapping;
  const ConstTensorView keys = call.cache->key_cache;
  check_integers(ids, kOp, "slot_mapping");
  check_same_device(ids, call.q, kOp, "slot_mapping", "q");
  const bool flat = ids.rank == 1 && ids.shape[0] == rope.tokens();
  MEMBOUND_CHECK(flat || (ids.rank == 2 && ids.shape[0] == rope.batch && ids.shape[1] == rope.seq),
                 InvalidArgument, kOp, "argument 'slot_mapping' must have shape (", rope.batch,
                 ", ", rope.seq, ") or (", rope.tokens(), ",), one for each token, got ",
                 shape_text(ids));
  CacheSlots slots;
  slots.ids = {ids.data, ids.dtype == DType::kInt64};
  slots.seq_stride = ids.strides[ids.rank - 1];
  slots.batch_stride = flat ? rope.seq * slots.seq_stride : ids.strides[0];
  slots.block_size = keys.rank == 4 ? keys.shape[1] : 1;
  slots.slots = keys.shape[0] * slots.block_size;
  return slots;
}

void check_slots(const CacheSlots& cache, const RopeProblem& rope) {
  for (std::int64_t b = 0; b < rope.batch; ++b) {
    for (std::int64_t s = 0; s < rope.seq; ++s) {
      const std::int64_t slot = cache.of_token(b, s);
      MEMBOUND_CHECK(slot < cache.slots, InvalidArgument, kOp,
                     "argument 'slot_mapping' must have slots below ", cache.slots, ", got ", slot,
                     " for token ", s, " of sequence ", b);
    }
  }
}

// Strides of a cache: blocks take the role of batch, slots of a block that of sequence.
RopeStrides cache_strides(const TensorView& cache) {
  const bool paged = cache.rank == 4;
  return {cache.strides[0], paged ? cache.strides[1] : 0, cache.strides[cache.rank - 2],
          cache.strides[cache.rank - 1]};
}

void set_cache(QkNormRopeProblem& problem, const QkNormRopeCall& call) {
  const auto& [keys, slot_mapping, v, values] = *call.cache;
  RopeHeads& k = problem.rope.arrays[1];
  check_caches(call, k.heads);
  problem.cache = cache_slots(call, problem.rope);
  check_cache_disjoint(call);
  if (call.options.rope.validate) check_slots(problem.cache, problem.rope);
  k.out = keys.data;
  k.out_strides = cache_strides(keys);
  if (v == nullptr) return;
  problem.values = {v->data, values->data, k.heads, rope_strides(*v, call.options.rope.layout),
                    cache_strides(*values)};
}

// Drops arrays without heads.
QkNormRopeProblem with_heads(const QkNormRopeProblem& problem) {
  QkNormRopeProblem some = problem;
  some.rope.count = 0;
  for (int i = 0; i < problem.rope.count; ++i) {
    if (problem.rope.arrays[i].heads == 0) continue;
    const int at = some.rope.count++;
    some.rope.arrays[at] = problem.rope.arrays[i];
    some.weights[at] = problem.weights[i];
    some.rstds[at] = problem.rstds[i];
  }
  if (problem.cache.given() && problem.rope.arrays[1].heads == 0) some.cache = {};
  return some;
}

}  // namespace

HeadStatistic head_statistic(const ConstTensorView& view, RopeLayout layout) {
  ConstTensorView heads = view;  // with a last axis of 1, which it lacks
  heads.shape[heads.rank] = 1;
  heads.strides[heads.rank++] = 0;
  return {const_cast<void*>(view.data), rope_strides(heads, layout)};
}

void check_head_weight(const ConstTensorView& weight, const char* name, const RopeProblem& problem,
                       int array, const ConstTensorView& x, const char* op) {
  const std::int64_t heads = problem.arrays[array].heads;
  check_floating(weight, op, name);
  check_same_device(weight, x, op, name, array == 0 ? "q" : "k");
  const bool fits =
      (weight.rank == 1 && weight.shape[0] == problem.head_dim) ||
      (weight.rank == 2 && weight.shape[0] == heads && weight.shape[1] == problem.head_dim);
  MEMBOUND_CHECK(fits, InvalidArgument, op, "argument '", name, "' must have shape (",
                 problem.head_dim, ",) or (", heads, ", ", problem.head_dim, "), got ",
                 shape_text(weight));
}

HeadWeight head_weight(const ConstTensorView& weight) {
  const bool of_each = weight.rank == 2;
  return {weight.data, weight.dtype, of_each ? weight.strides[0] : 0,
          weight.strides[weight.rank - 1]};
}

void check_qk_norm(const RopeProblem& problem, const QkNormRopeOptions& options,
                   const bool (&has_weight)[2], const char* op) {
  check_eps(options.eps, problem.dtype, op);
  const bool all = has_weight[0] && (problem.count == 1 || has_weight[1]);
  check_weight_offset(options.weight_offset, problem.dtype, all, op);
  MEMBOUND_CHECK(problem.count == 2 || !has_weight[1], InvalidArgument, op,
                 "argument 'k_weight' must be None without 'k'");
  MEMBOUND_CHECK(problem.head_dim <= kMaxQkNormHeadDim, InvalidArgument, op,
                 "argument 'q' must have heads of at most ", kMaxQkNormHeadDim, " elements, got ",
                 problem.head_dim);
}

QkNormRopeProblem qk_norm_rope_problem(const QkNormRopeCall& given) {
  const auto& [q, k, q_weight, k_weight, angles, options, out, k_out, q_rstd, k_rstd, cache] =
      given;
  const RopeCall call{kOp, "q",    "k",          "out", "k_out", q,
                      k,   angles, options.rope, out,   k_out,   cache != nullptr};
  QkNormRopeProblem problem{};
  problem.rope = rope_problem(call);
  const ConstTensorView q_statistic = q_rstd ? *q_rstd : out;
  const ConstTensorView k_statistic = k_rstd ? *k_rstd : out;
  const Norms norms{
      {{q_weight, "q_weight"}, {k_weight, "k_weight"}},
      {{q_rstd ? &q_statistic : nullptr, "q_rstd"}, {k_rstd ? &k_statistic : nullptr, "k_rstd"}}};
  check_qk_norm(problem.rope, options, {q_weight != nullptr, k_weight != nullptr}, kOp);
  MEMBOUND_CHECK(k || !k_rstd, InvalidArgument, kOp, "argument 'k_rstd' must be None without 'k'");
  for (int i = 0; i < problem.rope.count; ++i) {
    const ConstTensorView& x = i == 0 ? q : *k;
    if (const auto& [weight, name] = norms.weights[i]; weight) {
      check_head_weight(*weight, name, problem.rope, i, x, kOp);
      problem.weights[i] = head_weight(*weight);
    }
    if (const auto& [rstd, name] = norms.rstds[i]; rstd) {
      check_row_statistic(*rstd, name, x, i == 0 ? "q" : "k", kOp);
      check_writable(*rstd, kOp, name);
      problem.rstds[i] = head_statistic(*rstd, options.rope.layout);
    }
  }
  check_all_disjoint(norms, call);
  if (cache) set_cache(problem, given);
  problem.eps = options.eps;
  problem.weight_offset = options.weight_offset;
  problem.round_normed = options.rounding == QkNormRounding::kBeforeWeight;
  problem.round_weighted = options.rounding != QkNormRounding::kOnce;
  return problem;
}

static void run(const QkNormRopeCall& call, StreamView stream) {
  const QkNormRopeProblem problem = with_heads(qk_norm_rope_problem(call));
  if (problem.rope.count == 0 || problem.rope.tokens() == 0) return;
  route(
      call.q.device, kOp, [&] { cpu::qk_norm_rope(problem); },
      [&] { cuda::qk_norm_rope(problem, stream); });
}

void qk_norm_rope(const ConstTensorView& q, const ConstTensorView* k,
                  const ConstTensorView* q_weight, const ConstTensorView* k_weight,
                  const RopeAngles& angles, const QkNormRopeOptions& options, const TensorView& out,
                  const TensorView* k_out, const TensorView* q_rstd, const TensorView* k_rstd,
                  StreamView stream) {
  run({q, k, q_weight, k_weight, angles, options, out, k_out, q_rstd, k_rstd}, stream);
}

void qk_norm_rope(const ConstTensorView& q, const ConstTensorView& k,
                  const ConstTensorView* q_weight, const ConstTensorView* k_weight,
                  const RopeAngles& angles, const QkNormRopeOptions& options, const TensorView& out,
                  const KeyValueCache& cache, StreamView stream) {
  run({q, &k, q_weight, k_weight, angles, options, out, nullptr, nullptr, nullptr, &cache}, stream);
}

}  // namespace membound
