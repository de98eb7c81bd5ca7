// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/embedding_backward.hpp"

#include "call.hpp"
#include "core/check.hpp"
#include "embedding.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "embedding_backward";

enum Parameter {
  kDy,
  kIds,
  kVocab,
  kPaddingIdx,
  kScale,
  kScaleGradByFreq,
  kVocabStart,
  kValidate,
  kSparse,
  kDtype,
  kOut,
  kAccumulate,
  kStream,
};

constexpr const char* kText =
    R"(embedding_backward($module, dy, ids, vocab, *, padding_idx=None, scale=1.0, scale_grad_by_freq=False, vocab_start=0, validate=False, sparse=False, dtype=None, out=None, accumulate=False, stream=None)
--

The gradient of the table of :func:`embedding`: what was looked up more than once is summed.

Row ``r`` is the sum of ``dy`` over all tokens whose id is ``vocab_start + r``, times ``scale``: the
gradient of torch's ``embedding``. That of an added position table is none of it: without
``position_ids`` it is ``dy.sum(0)``, with them this function's result for those ids.

Args:
    dy: ``(*ids.shape, dim)``, the gradient of the rows looked up: float16, bfloat16, float32 or
        float64, with any strides, from torch, JAX, CuPy or NumPy.
    ids: int32 or int64, of any shape and strides, fewer than 2**31 - 1, from the framework and
        device of ``dy``. Those outside of ``[vocab_start, vocab_start + vocab)`` add nothing.
    vocab: how many rows the table has, at most 2**31 - 2.
    padding_idx: the id whose row gets no gradient; a negative one counts from the end of the table.
    scale: the forward's; finite.
    scale_grad_by_freq: divide the sum of an id by the number of its tokens.
    vocab_start: the forward's.
    validate: look at the ids (CPU arrays only) and raise ValueError where one is outside.
    sparse: return the rows of the ids that occur alone. Not for JAX arrays, as ``accumulate``.
    dtype: of the result: that of ``dy``, or with 16 and 32 bits any of float16, bfloat16 and
        float32; its name, or the framework's own object. None: of ``out``, else of ``dy``.
    out: where to write: ``(vocab, dim)``; with ``sparse=True`` a tuple of three arrays as they
        are returned. It may overlap nothing else. Not for JAX arrays.
    accumulate: add to ``out``, which must be given, in place of writing it. Rows of ids that do not
        occur are neither read nor written. Not with ``sparse=True``.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``out``, or a new C-contiguous array of ``(vocab, dim)``.

    With ``sparse=True`` ``(rows_ids, rows, count)`` with room for every token, so that nothing waits
    for a GPU to count: the ids that occur, ascending, ``(tokens,)`` of the dtype of ``ids``; their
    rows, ``(tokens, dim)``; and how many there are, int64 without an axis. Behind them ``rows_ids``
    repeats the last id of the table and ``rows`` is zero, so that all of it may be added to a table.

    Sums are float32 (float64 for float64), rounded once, in a tree that the number of an id's tokens
    alone fixes: 32 after the other, each such piece to one of 16 sums. Every run gives the same bits,
    on any number of CPU threads or GPU multiprocessors, and one id that has half of all tokens costs
    no more than others.

    On a GPU it takes, from the framework's allocator or on the stream, 16 bytes for each token, 4
    for each row of the table, and with more than 32 tokens two rows of sums for every 32 tokens
    (``dim`` float32 or float64 each); nothing is read back, so it can be captured in a CUDA graph.

Raises:
    TypeError: a dtype, a type or a framework that does not fit.
    ValueError: shapes, devices, options or an overlap that do not fit; with ``validate`` an id that
        is outside.
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        never can.
    MemoryError: no memory to sort the tokens in.
    CudaError: CUDA reports an error.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> dy = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> mb.embedding_backward(dy, np.array([2, 0, 2]), 3)
    array([[3., 4.],
           [0., 0.],
           [6., 8.]])
    >>> ids, rows, count = mb.embedding_backward(dy, np.array([2, 0, 2]), 3, sparse=True)
    >>> ids[:count].tolist(), rows[:count].tolist()
    ([0, 2], [[3.0, 4.0], [6.0, 8.0]])
)";

EmbeddingBackwardOptions options_of(PyObject* const* values, std::int64_t vocab) {
  EmbeddingBackwardOptions options;
  options.scale = number_or(values[kScale], 1.0, {kName, "scale"});
  options.scale_grad_by_freq =
      flag_or(values[kScaleGradByFreq], false, {kName, "scale_grad_by_freq"});
  options.validate = flag_or(values[kValidate], false, {kName, "validate"});
  options.accumulate = flag_or(values[kAccumulate], false, {kName, "accumulate"});
  if (values[kVocabStart] != nullptr) {
    options.vocab_start = integer_from_python(values[kVocabStart], {kName, "vocab_start"});
  }
  if (given(values[kPaddingIdx])) {
    const std::int64_t id = integer_from_python(values[kPaddingIdx], {kName, "padding_idx"});
    options.padding_idx = padding_id(kName, id, vocab, options.vocab_start);
  }
  return options;
}

nb::object call_jax(const ArrayCall& call, PyObject* const* values) {
  call.check_jax_absent(values[kOut], "out", "which cannot be written");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  for (const auto& [value, argument] :
       {std::pair{values[kSparse], "sparse"}, {values[kAccumulate], "accumulate"}}) {
    MEMBOUND_CHECK(!flag_or(value, false, {kName, argument}), TypeMismatch, kName, "argument '",
                   argument, "' must be False for JAX arrays, got True");
  }
  nb::dict keywords;
  for (const auto& [value, argument] : {std::pair{values[kPaddingIdx], "padding_idx"},
                                        {values[kScale], "scale"},
                                        {values[kScaleGradByFreq], "scale_grad_by_freq"},
                                        {values[kVocabStart], "vocab_start"},
                                        {values[kValidate], "validate"},
                                        {values[kDtype], "dtype"}}) {
    if (value != nullptr) keywords[argument] = nb::handle(value);
  }
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(values[kDy]), call.check_jax_input(values[kIds], "ids"),
                   nb::handle(values[kVocab]), **keywords);
}

// The state of one call.
struct Arrays {
  LoadedArray dy, ids, rows, rows_ids, count, workspace;
  std::int64_t vocab;
};

DType dtype_of(PyObject* const* values, const Arrays& arrays) {
  const DType dy = arrays.dy.view.dtype;
  if (!given(values[kDtype])) return dy;
  const DType dtype = floating_from_python(values[kDtype], {kName, "dtype"});
  MEMBOUND_CHECK((dtype == DType::kFloat64) == (dy == DType::kFloat64), TypeMismatch, kName,
                 "argument 'dtype' must be ",
                 dy == DType::kFloat64 ? "float64" : "float16, bfloat16 or float32",
                 " for a dy of ", dtype_name(dy), ", got ", dtype_name(dtype));
  return dtype;
}

// The array that the caller gave for rows of the gradient, or a new one.
nb::object make_rows(const ArrayCall& call, PyObject* const* values, PyObject* out,
                     std::int64_t count, Arrays& arrays) {
  const TensorView& dy = arrays.dy.view;
  const DType dtype = dtype_of(values, arrays);
  if (given(out)) {
    call.read_output(out, "out", arrays.rows);
    MEMBOUND_CHECK(!given(values[kDtype]) || arrays.rows.view.dtype == dtype, TypeMismatch, kName,
                   "argument 'out' must be ", dtype_name(dtype), " as 'dtype' says, got ",
                   dtype_name(arrays.rows.view.dtype));
    return nb::borrow(out);
  }
  TensorView wanted = dy;
  wanted.dtype = dtype;
  wanted.rank = 2;
  wanted.shape[1] = dy.shape[dy.rank - 1];
  wanted.shape[0] = count;
  return call.new_as(values[kDy], wanted, "out", arrays.rows);
}

// Like make_rows, for integers. The name is that of the C++ argument.
nb::object make_integers(const ArrayCall& call, PyObject* const* values, PyObject* out,
                         const TensorView& wanted, const char* argument, LoadedArray& loaded) {
  if (!given(out)) return call.new_as(values[kDy], wanted, argument, loaded);
  call.read_output(out, argument, loaded);
  return nb::borrow(out);
}

// Keeps the GIL for a launch, and releases it while the CPU computes.
template <class Run>
void without_gil(const TensorView& dy, const TensorView& rows, Run run) {
  const GilRelease released(is_long_on_cpu(rows) || is_long_on_cpu(dy));
  run();
}

nb::object call_sparse(const ArrayCall& call, PyObject* const* values,
                       const EmbeddingBackwardOptions& options, const TensorView* workspace,
                       Arrays& arrays) {
  PyObject* outs[3] = {};
  if (PyObject* out = values[kOut]; given(out)) {
    MEMBOUND_CHECK(PyTuple_Check(out) && PyTuple_Size(out) == 3, TypeMismatch, kName,
                   "argument 'out' must be a tuple (rows_ids, rows, count) with sparse=True");
    for (int i = 0; i < 3; ++i) outs[i] = PyTuple_GetItem(out, i);
  }
  const TensorView &dy = arrays.dy.view, &ids = arrays.ids.view;
  const TensorView wanted_ids(nullptr, ids.dtype, ids.device, {ids.size()});
  const TensorView wanted_count(nullptr, DType::kInt64, ids.device, {});
  const nb::object rows_ids =
      make_integers(call, values, outs[0], wanted_ids, "rows_ids", arrays.rows_ids);
  const nb::object rows = make_rows(call, values, outs[1], ids.size(), arrays);
  const nb::object count =
      make_integers(call, values, outs[2], wanted_count, "count", arrays.count);
  const StreamView stream = call.stream(dy.device);
  without_gil(dy, arrays.rows.view, [&] {
    embedding_backward_sparse(dy, ids, arrays.vocab, options, arrays.rows_ids.view,
                              arrays.rows.view, arrays.count.view, workspace, stream);
  });
  call.mark_written({outs[0], outs[1], outs[2]});
  return nb::make_tuple(rows_ids, rows, count);
}

nb::object call_dense(const ArrayCall& call, PyObject* const* values,
                      const EmbeddingBackwardOptions& options, const TensorView* workspace,
                      Arrays& arrays) {
  MEMBOUND_CHECK(!options.accumulate || given(values[kOut]), InvalidArgument, kName,
                 "argument 'out' must be given with accumulate=True");
  const TensorView& dy = arrays.dy.view;
  const nb::object out = make_rows(call, values, values[kOut], arrays.vocab, arrays);
  const TensorView& rows = arrays.rows.view;
  MEMBOUND_CHECK(rows.rank == 2 && rows.shape[0] == arrays.vocab, InvalidArgument, kName,
                 "argument 'out' must have 2 axes and ", arrays.vocab, " rows, as 'vocab' says");
  const StreamView stream = call.stream(dy.device);
  without_gil(dy, rows,
              [&] { embedding_backward(dy, arrays.ids.view, options, rows, workspace, stream); });
  call.mark_written({values[kOut]});
  return out;
}

nb::object call(PyObject* const* values) {
  const ArrayCall call(kName, values[kDy], "dy", values[kStream]);
  if (call.is_jax()) return call_jax(call, values);
  const bool sparse = flag_or(values[kSparse], false, {kName, "sparse"});
  Arrays arrays;
  arrays.vocab = integer_from_python(values[kVocab], {kName, "vocab"});
  MEMBOUND_CHECK(arrays.vocab >= 1 && arrays.vocab < (std::int64_t{1} << 31) - 1, InvalidArgument,
                 kName, "argument 'vocab' must be from 1 to 2**31 - 2, got ", arrays.vocab);
  const EmbeddingBackwardOptions options = options_of(values, arrays.vocab);
  call.read_input(values[kDy], "dy", arrays.dy);
  call.read_input(values[kIds], "ids", arrays.ids);
  const TensorView& dy = arrays.dy.view;
  MEMBOUND_CHECK(dy.rank >= 1, InvalidArgument, kName, "argument 'dy' must have an axis, got none");
  const std::int64_t bytes = embedding_backward_workspace(dy, arrays.vocab);
  const nb::object memory = call.new_workspace(values[kDy], dy.device, bytes, arrays.workspace);
  const TensorView* workspace = memory.is_valid() ? &arrays.workspace.view : nullptr;
  return sparse ? call_sparse(call, values, options, workspace, arrays)
                : call_dense(call, values, options, workspace, arrays);
}

}  // namespace

const Op kEmbeddingBackward{
    kName,
    kText,
    {"dy", "ids", "vocab", "padding_idx", "scale", "scale_grad_by_freq", "vocab_start", "validate",
     "sparse", "dtype", "out", "accumulate", "stream"},
    3,
    3,
    call};

}  // namespace membound::python
