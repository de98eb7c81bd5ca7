// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "embedding.hpp"

#include "call.hpp"
#include "membound/ops/embedding.hpp"
#include "torch/options.hpp"

namespace membound::python::torch {

namespace {

constexpr const char* kOp = "embedding";

struct Numbers {
  std::optional<std::int64_t> padding_idx;
  double scale;
  std::int64_t vocab_start;
  bool validate;
  std::optional<Text> dtype;
  using Members =
      MembersOf<std::optional<std::int64_t>, double, std::int64_t, bool, std::optional<Text>>;

  DType dtype_for(const TensorView& weight) const {
    if (!dtype || dtype->view() == dtype_name(weight.dtype)) return weight.dtype;
    return parse_in_python(
        *dtype, [](PyObject* value) { return floating_from_python(value, {kOp, "dtype"}); });
  }
};

Tensor embedding_forward(const Tensor& ids, const Tensor& weight, const MaybeTensor& position_ids,
                         const MaybeTensor& position_weight, const Numbers& numbers) {
  check_embedding_weight(weight.view());
  if (numbers.padding_idx) {
    padding_id(kOp, *numbers.padding_idx, weight.view().shape[0], numbers.vocab_start);
  }
  Tensor out =
      new_like(embedding_rows(ids.view(), weight.view(), numbers.dtype_for(weight.view())));
  embedding(ids.input(), weight.input(), input_of(position_ids), input_of(position_weight),
            {numbers.scale, numbers.vocab_start, numbers.validate}, out.view(),
            current_stream(weight.view()));
  return out;
}

}  // namespace

// The backward stays in Python, because torch computes the positions that it needs.
void add_embedding_kernels(Kernels& all) {
  all.push_back(kernel<&embedding_forward>("embedding_forward"));
}

}  // namespace membound::python::torch
