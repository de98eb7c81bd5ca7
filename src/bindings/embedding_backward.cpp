// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/embedding_backward.hpp"

#include "call.hpp"
#include "core/check.hpp"
#include "embedding.hpp"
#include "op_arguments.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "embedding_backward";

EmbeddingBackwardOptions options_of(const EmbeddingBackwardArguments& a, std::int64_t vocab) {
  EmbeddingBackwardOptions options;
  options.scale = number_or(a.scale, 1.0, {kName, "scale"});
  options.scale_grad_by_freq = flag_or(a.scale_grad_by_freq, false, {kName, "scale_grad_by_freq"});
  options.validate = flag_or(a.validate, false, {kName, "validate"});
  options.accumulate = flag_or(a.accumulate, false, {kName, "accumulate"});
  if (a.vocab_start != nullptr) {
    options.vocab_start = integer_from_python(a.vocab_start, {kName, "vocab_start"});
  }
  if (given(a.padding_idx)) {
    const std::int64_t id = integer_from_python(a.padding_idx, {kName, "padding_idx"});
    options.padding_idx = padding_id(kName, id, vocab, options.vocab_start);
  }
  return options;
}

nb::object call_jax(const ArrayCall& call, const EmbeddingBackwardArguments& a) {
  call.check_jax_absent(a.out, "out", "which cannot be written");
  call.check_jax_absent(a.stream, "stream", "whose stream XLA picks");
  for (const auto& [value, argument] :
       {std::pair{a.sparse, "sparse"}, {a.accumulate, "accumulate"}}) {
    MEMBOUND_CHECK(!flag_or(value, false, {kName, argument}), TypeMismatch, kName, "argument '",
                   argument, "' must be False for JAX arrays, got True");
  }
  nb::dict keywords;
  for (const auto& [value, argument] : {std::pair{a.padding_idx, "padding_idx"},
                                        {a.scale, "scale"},
                                        {a.scale_grad_by_freq, "scale_grad_by_freq"},
                                        {a.vocab_start, "vocab_start"},
                                        {a.validate, "validate"},
                                        {a.dtype, "dtype"}}) {
    if (value != nullptr) keywords[argument] = nb::handle(value);
  }
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(a.dy), call.check_jax_input(a.ids, "ids"), nb::handle(a.vocab),
                   **keywords);
}

// Of one call, as far as C++ has seen it.
struct Arrays {
  LoadedArray dy, ids, rows, rows_ids, count, workspace;
  std::int64_t vocab;
};

DType dtype_of(const EmbeddingBackwardArguments& a, const Arrays& arrays) {
  const DType dy = arrays.dy.view.dtype;
  if (!given(a.dtype)) return dy;
  const DType dtype = floating_from_python(a.dtype, {kName, "dtype"});
  MEMBOUND_CHECK((dtype == DType::kFloat64) == (dy == DType::kFloat64), TypeMismatch, kName,
                 "argument 'dtype' must be ",
                 dy == DType::kFloat64 ? "float64" : "float16, bfloat16 or float32",
                 " for a dy of ", dtype_name(dy), ", got ", dtype_name(dtype));
  return dtype;
}

// The array that the caller gave for rows of the gradient, or a new one.
nb::object make_rows(const ArrayCall& call, const EmbeddingBackwardArguments& a, PyObject* out,
                     std::int64_t count, Arrays& arrays) {
  const TensorView& dy = arrays.dy.view;
  const DType dtype = dtype_of(a, arrays);
  if (given(out)) {
    call.read_output(out, "out", arrays.rows);
    MEMBOUND_CHECK(!given(a.dtype) || arrays.rows.view.dtype == dtype, TypeMismatch, kName,
                   "argument 'out' must be ", dtype_name(dtype), " as 'dtype' says, got ",
                   dtype_name(arrays.rows.view.dtype));
    return nb::borrow(out);
  }
  TensorView wanted = dy;
  wanted.dtype = dtype;
  wanted.rank = 2;
  wanted.shape[1] = dy.shape[dy.rank - 1];
  wanted.shape[0] = count;
  return call.new_as(a.dy, wanted, "out", arrays.rows);
}

// As make_rows, for integers. The name is that of the C++ argument.
nb::object make_integers(const ArrayCall& call, const EmbeddingBackwardArguments& a, PyObject* out,
                         const TensorView& wanted, const char* argument, LoadedArray& loaded) {
  if (!given(out)) return call.new_as(a.dy, wanted, argument, loaded);
  call.read_output(out, argument, loaded);
  return nb::borrow(out);
}

// The GIL is kept for a launch, and let go for as long as the CPU works.
template <class Run>
void without_gil(const TensorView& dy, const TensorView& rows, Run run) {
  const GilRelease released(is_long_on_cpu(rows) || is_long_on_cpu(dy));
  run();
}

nb::object call_sparse(const ArrayCall& call, const EmbeddingBackwardArguments& a,
                       const EmbeddingBackwardOptions& options, const TensorView* workspace,
                       Arrays& arrays) {
  PyObject* outs[3] = {};
  if (PyObject* out = a.out; given(out)) {
    MEMBOUND_CHECK(PyTuple_Check(out) && PyTuple_Size(out) == 3, TypeMismatch, kName,
                   "argument 'out' must be a tuple (rows_ids, rows, count) with sparse=True");
    for (int i = 0; i < 3; ++i) outs[i] = PyTuple_GetItem(out, i);
  }
  const TensorView &dy = arrays.dy.view, &ids = arrays.ids.view;
  const TensorView wanted_ids(nullptr, ids.dtype, ids.device, {ids.size()});
  const TensorView wanted_count(nullptr, DType::kInt64, ids.device, {});
  const nb::object rows_ids =
      make_integers(call, a, outs[0], wanted_ids, "rows_ids", arrays.rows_ids);
  const nb::object rows = make_rows(call, a, outs[1], ids.size(), arrays);
  const nb::object count = make_integers(call, a, outs[2], wanted_count, "count", arrays.count);
  const StreamView stream = call.stream(dy.device);
  without_gil(dy, arrays.rows.view, [&] {
    embedding_backward_sparse(dy, ids, arrays.vocab, options, arrays.rows_ids.view,
                              arrays.rows.view, arrays.count.view, workspace, stream);
  });
  call.mark_written({outs[0], outs[1], outs[2]});
  return nb::make_tuple(rows_ids, rows, count);
}

nb::object call_dense(const ArrayCall& call, const EmbeddingBackwardArguments& a,
                      const EmbeddingBackwardOptions& options, const TensorView* workspace,
                      Arrays& arrays) {
  MEMBOUND_CHECK(!options.accumulate || given(a.out), InvalidArgument, kName,
                 "argument 'out' must be given with accumulate=True");
  const TensorView& dy = arrays.dy.view;
  const nb::object out = make_rows(call, a, a.out, arrays.vocab, arrays);
  const TensorView& rows = arrays.rows.view;
  MEMBOUND_CHECK(rows.rank == 2 && rows.shape[0] == arrays.vocab, InvalidArgument, kName,
                 "argument 'out' must have 2 axes and ", arrays.vocab, " rows, as 'vocab' says");
  const StreamView stream = call.stream(dy.device);
  without_gil(dy, rows,
              [&] { embedding_backward(dy, arrays.ids.view, options, rows, workspace, stream); });
  call.mark_written({a.out});
  return out;
}

}  // namespace

nb::object call_embedding_backward(const EmbeddingBackwardArguments& a) {
  const ArrayCall call(kName, a.dy, "dy", a.stream);
  if (call.is_jax()) return call_jax(call, a);
  const bool sparse = flag_or(a.sparse, false, {kName, "sparse"});
  Arrays arrays;
  arrays.vocab = integer_from_python(a.vocab, {kName, "vocab"});
  MEMBOUND_CHECK(arrays.vocab >= 1 && arrays.vocab < (std::int64_t{1} << 31) - 1, InvalidArgument,
                 kName, "argument 'vocab' must be from 1 to 2**31 - 2, got ", arrays.vocab);
  const EmbeddingBackwardOptions options = options_of(a, arrays.vocab);
  call.read_input(a.dy, "dy", arrays.dy);
  call.read_input(a.ids, "ids", arrays.ids);
  const TensorView& dy = arrays.dy.view;
  MEMBOUND_CHECK(dy.rank >= 1, InvalidArgument, kName, "argument 'dy' must have an axis, got none");
  const std::int64_t bytes = embedding_backward_workspace(dy, arrays.vocab);
  const nb::object memory = call.new_workspace(a.dy, dy.device, bytes, arrays.workspace);
  const TensorView* workspace = memory.is_valid() ? &arrays.workspace.view : nullptr;
  return sparse ? call_sparse(call, a, options, workspace, arrays)
                : call_dense(call, a, options, workspace, arrays);
}

}  // namespace membound::python
