// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/embedding.hpp"

#include "call.hpp"
#include "core/check.hpp"
#include "embedding.hpp"
#include "op_arguments.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "embedding";

EmbeddingOptions options_of(const EmbeddingArguments& a) {
  EmbeddingOptions options;
  options.scale = number_or(a.scale, 1.0, {kName, "scale"});
  options.validate = flag_or(a.validate, false, {kName, "validate"});
  if (a.vocab_start != nullptr) {
    options.vocab_start = integer_from_python(a.vocab_start, {kName, "vocab_start"});
  }
  return options;
}

// It says which row gets no gradient, so that the result does not depend on it.
void check_padding(PyObject* padding_idx, const TensorView& weight, std::int64_t vocab_start) {
  if (!given(padding_idx)) return;
  const std::int64_t id = integer_from_python(padding_idx, {kName, "padding_idx"});
  padding_id(kName, id, weight.shape[0], vocab_start);
}

nb::object call_jax(const ArrayCall& call, const EmbeddingArguments& a) {
  call.check_jax_absent(a.out, "out", "which cannot be written");
  call.check_jax_absent(a.stream, "stream", "whose stream XLA picks");
  nb::dict keywords;
  keywords["position_ids"] = call.check_jax_input(a.position_ids, "position_ids");
  keywords["position_weight"] = call.check_jax_input(a.position_weight, "position_weight");
  for (const auto& [value, argument] : {std::pair{a.padding_idx, "padding_idx"},
                                        {a.scale, "scale"},
                                        {a.vocab_start, "vocab_start"},
                                        {a.validate, "validate"},
                                        {a.dtype, "dtype"}}) {
    if (value != nullptr) keywords[argument] = nb::handle(value);
  }
  return nb::module_::import_("membound.jax")
      .attr(kName)(call.check_jax_input(a.ids, "ids"), nb::handle(a.weight), **keywords);
}

// The array that the caller gave, or a new one of the rows' shape.
nb::object make_out(const ArrayCall& call, const EmbeddingArguments& a, const ConstTensorView& ids,
                    const TensorView& weight, LoadedArray& loaded) {
  const bool names_dtype = given(a.dtype);
  const DType dtype = names_dtype ? floating_from_python(a.dtype, {kName, "dtype"}) : weight.dtype;
  if (given(a.out)) {
    call.read_output(a.out, "out", loaded);
    MEMBOUND_CHECK(!names_dtype || loaded.view.dtype == dtype, TypeMismatch, kName,
                   "argument 'out' must be ", dtype_name(dtype), " as 'dtype' says, got ",
                   dtype_name(loaded.view.dtype));
    return nb::borrow(a.out);
  }
  return call.new_as(a.weight, embedding_rows(ids, weight, dtype), "out", loaded);
}

}  // namespace

nb::object call_embedding(const EmbeddingArguments& a) {
  const ArrayCall call(kName, a.weight, "weight", a.stream);
  if (call.is_jax()) return call_jax(call, a);
  const EmbeddingOptions options = options_of(a);
  LoadedArray ids, weight, out;
  call.read_input(a.weight, "weight", weight);
  call.read_input(a.ids, "ids", ids);
  const OptionalInput position_ids(call, a.position_ids, "position_ids");
  const OptionalInput position_weight(call, a.position_weight, "position_weight");
  check_embedding_weight(weight.view);
  check_padding(a.padding_idx, weight.view, options.vocab_start);
  const nb::object result = make_out(call, a, ids.view, weight.view, out);
  {
    const StreamView stream = call.stream(weight.view.device);
    const GilRelease released(is_long_on_cpu(out.view));
    embedding(ids.view, weight.view, position_ids, position_weight, options, out.view, stream);
  }
  call.mark_written({a.out});
  return result;
}

std::int64_t padding_id(const char* op, std::int64_t padding_idx, std::int64_t vocab,
                        std::int64_t vocab_start) {
  if (padding_idx >= 0) return padding_idx;
  MEMBOUND_CHECK(vocab_start == 0, InvalidArgument, op,
                 "argument 'padding_idx' must not be negative with 'vocab_start', got ",
                 padding_idx);
  MEMBOUND_CHECK(padding_idx >= -vocab, InvalidArgument, op,
                 "argument 'padding_idx' must be at least -", vocab,
                 ", counted from the end of the table, got ", padding_idx);
  return padding_idx + vocab;
}

void check_embedding_weight(const TensorView& weight) {
  MEMBOUND_CHECK(weight.rank == 2, InvalidArgument, kName,
                 "argument 'weight' must have 2 axes, got ", weight.rank);
}

TensorView embedding_rows(const ConstTensorView& ids, const TensorView& weight, DType dtype) {
  MEMBOUND_CHECK((dtype == DType::kFloat64) == (weight.dtype == DType::kFloat64), TypeMismatch,
                 kName, "argument 'dtype' must be ",
                 weight.dtype == DType::kFloat64 ? "float64" : "float16, bfloat16 or float32",
                 " for a weight of ", dtype_name(weight.dtype), ", got ", dtype_name(dtype));
  MEMBOUND_CHECK(ids.rank < kMaxRank, InvalidArgument, kName, "argument 'ids' must have at most ",
                 kMaxRank - 1, " axes, got ", ids.rank);
  TensorView wanted = weight;
  wanted.dtype = dtype;
  wanted.rank = ids.rank + 1;
  for (int axis = 0; axis < ids.rank; ++axis) wanted.shape[axis] = ids.shape[axis];
  wanted.shape[ids.rank] = weight.shape[1];
  return wanted;
}

}  // namespace membound::python
