// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/embedding.hpp"

#include "call.hpp"
#include "core/check.hpp"
#include "embedding.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "embedding";

enum Parameter {
  kIds,
  kWeight,
  kPositionIds,
  kPositionWeight,
  kPaddingIdx,
  kScale,
  kVocabStart,
  kValidate,
  kDtype,
  kOut,
  kStream,
};

constexpr const char* kText =
    R"(embedding($module, ids, weight, *, position_ids=None, position_weight=None, padding_idx=None, scale=1.0, vocab_start=0, validate=False, dtype=None, out=None, stream=None)
--

The rows of a table that ids name: ``weight[ids]``, scaled and with positions added if wanted.

In full, ``out = weight[ids - vocab_start] * scale + position_weight[position_ids]``. With a scale
of 1, no positions and one dtype the bytes of the rows are copied, as torch's ``embedding`` does;
otherwise product and sum are each rounded to float32 (float64 for float64), and the result once to
its dtype. Gemma's models scale by the root of the width; GPT-2 and BERT add positions.

Args:
    ids: int32 or int64, of any shape and strides, from the framework and device of ``weight``.
    weight: ``(vocab, dim)``, float16, bfloat16, float32 or float64, with any strides, from torch,
        JAX, CuPy or NumPy.
    position_ids: which row of ``position_weight`` a token gets: int32 or int64, of the shape of
        ``ids``. None: its place along the last axis of ``ids``. With ``position_weight`` alone.
    position_weight: ``(positions, dim)`` of the dtype of ``weight``; None: nothing is added.
    padding_idx: the id whose row gets no gradient; a negative one counts from the end of the table.
        Its row is returned as any other, as torch does.
    scale: multiplies the row of the id, not that of the position; finite.
    vocab_start: the id of the first row of ``weight``, where that is one rank's part of the rows
        (tensor parallelism): a token of another rank gets zeros, without its position too, so that
        the results of all ranks add up to the whole.
    validate: look at ids and positions (CPU arrays only) and raise ValueError where one is outside.
    dtype: of the result: that of ``weight``, or with 16 and 32 bits any of float16, bfloat16 and
        float32; its name, or the framework's own object. None: of ``out``, else of ``weight``.
    out: where to write: ``(*ids.shape, dim)``, of the framework and device of ``weight``. It may
        overlap nothing else. Not for JAX arrays.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``out``, or a new C-contiguous array of ``(*ids.shape, dim)``.

    An id outside of ``[vocab_start, vocab_start + vocab)`` gives zeros, negative ones too, and a
    position that the table does not have adds nothing; nothing is read out of bounds.

Raises:
    TypeError: a dtype, a type or a framework that does not fit.
    ValueError: shapes, devices, options or an overlap that do not fit; with ``validate`` an id or
        a position that is outside.
    RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out`` or
        ``stream`` is given, with which none can be. Without them the call is that of
        :func:`membound.torch.embedding`, which records it.
    CudaError: CUDA reports an error.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> weight = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    >>> mb.embedding(np.array([2, 0]), weight)
    array([[4., 5.],
           [0., 1.]])
    >>> mb.embedding(np.array([2, 0]), weight, scale=2.0, vocab_start=1)
    array([[4., 6.],
           [0., 0.]])
)";

// An optional input.
class Input {
 public:
  Input(const ArrayCall& call, PyObject* array, const char* argument) : given_(given(array)) {
    if (!given_) return;
    call.read_input(array, argument, loaded_);
    view_ = loaded_.view;
  }
  operator const ConstTensorView*() const { return given_ ? &view_ : nullptr; }

 private:
  LoadedArray loaded_;
  ConstTensorView view_;
  bool given_;
};

EmbeddingOptions options_of(PyObject* const* values) {
  EmbeddingOptions options;
  options.scale = number_or(values[kScale], 1.0, {kName, "scale"});
  options.validate = flag_or(values[kValidate], false, {kName, "validate"});
  if (values[kVocabStart] != nullptr) {
    options.vocab_start = integer_from_python(values[kVocabStart], {kName, "vocab_start"});
  }
  return options;
}

// padding_idx only selects the row without a gradient; the forward does not depend on it.
void check_padding(PyObject* padding_idx, const TensorView& weight, std::int64_t vocab_start) {
  if (!given(padding_idx)) return;
  const std::int64_t id = integer_from_python(padding_idx, {kName, "padding_idx"});
  padding_id(kName, id, weight.shape[0], vocab_start);
}

nb::object call_jax(const ArrayCall& call, PyObject* const* values) {
  call.check_jax_absent(values[kOut], "out", "which cannot be written");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  nb::dict keywords;
  keywords["position_ids"] = call.check_jax_input(values[kPositionIds], "position_ids");
  keywords["position_weight"] = call.check_jax_input(values[kPositionWeight], "position_weight");
  for (const auto& [value, argument] : {std::pair{values[kPaddingIdx], "padding_idx"},
                                        {values[kScale], "scale"},
                                        {values[kVocabStart], "vocab_start"},
                                        {values[kValidate], "validate"},
                                        {values[kDtype], "dtype"}}) {
    if (value != nullptr) keywords[argument] = nb::handle(value);
  }
  return nb::module_::import_("membound.jax")
      .attr(kName)(call.check_jax_input(values[kIds], "ids"), nb::handle(values[kWeight]),
                   **keywords);
}

// The array that the caller gave, or a new one of the rows' shape.
nb::object make_out(const ArrayCall& call, PyObject* const* values, const ConstTensorView& ids,
                    const TensorView& weight, LoadedArray& loaded) {
  const bool names_dtype = given(values[kDtype]);
  const DType dtype =
      names_dtype ? floating_from_python(values[kDtype], {kName, "dtype"}) : weight.dtype;
  if (given(values[kOut])) {
    call.read_output(values[kOut], "out", loaded);
    MEMBOUND_CHECK(!names_dtype || loaded.view.dtype == dtype, TypeMismatch, kName,
                   "argument 'out' must be ", dtype_name(dtype), " as 'dtype' says, got ",
                   dtype_name(loaded.view.dtype));
    return nb::borrow(values[kOut]);
  }
  return call.new_as(values[kWeight], embedding_rows(ids, weight, dtype), "out", loaded);
}

nb::object call(PyObject* const* values) {
  const ArrayCall call(kName, values[kWeight], "weight", values[kStream]);
  if (call.is_jax()) return call_jax(call, values);
  const EmbeddingOptions options = options_of(values);
  LoadedArray ids, weight, out;
  call.read_input(values[kWeight], "weight", weight);
  call.read_input(values[kIds], "ids", ids);
  const Input position_ids(call, values[kPositionIds], "position_ids");
  const Input position_weight(call, values[kPositionWeight], "position_weight");
  check_embedding_weight(weight.view);
  check_padding(values[kPaddingIdx], weight.view, options.vocab_start);
  const nb::object result = make_out(call, values, ids.view, weight.view, out);
  {
    const StreamView stream = call.stream(weight.view.device);
    const GilRelease released(is_long_on_cpu(out.view));
    embedding(ids.view, weight.view, position_ids, position_weight, options, out.view, stream);
  }
  call.mark_written({values[kOut]});
  return result;
}

}  // namespace

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

const Op kEmbedding{kName,
                    kText,
                    {"ids", "weight", "position_ids", "position_weight", "padding_idx", "scale",
                     "vocab_start", "validate", "dtype", "out", "stream"},
                    2,
                    2,
                    call};

}  // namespace membound::python
