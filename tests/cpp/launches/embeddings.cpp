// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/embedding.hpp"
#include "membound/ops/embedding_backward.hpp"
#include "sweep.hpp"

namespace membound_test {

TEST_CASE("embedding") {
  for_each_problem(kRows, kCols, [](const Problem& p) {
    for (DType type : {DType::kInt64, DType::kInt32}) {
      const ConstTensorView ids = p.statistic(type);
      const Problem table{32000, p.cols, p.dtype, p.layout, p.gpu};
      if (table.layout == Layout::kSplit || table.layout == Layout::kHeads) return;
      const ConstTensorView weight = table.matrix(), positions = table.matrix();
      name_op("embedding");
      embedding(ids, weight, nullptr, nullptr, {}, p.matrix(), p.stream());
      embedding(ids, weight, nullptr, nullptr, {.scale = 2.0}, p.matrix(), p.stream());
      embedding(ids, weight, nullptr, &positions, {}, p.matrix(), p.stream());
      if (p.rows >= 1LL << 31) continue;  // tokens are counted in 32 bits
      name_op("embedding_backward");
      const ConstTensorView dy = p.matrix();
      const TensorView out = table.matrix();
      for (bool accumulate : {false, true}) {
        const EmbeddingBackwardOptions options{.scale_grad_by_freq = accumulate,
                                               .accumulate = accumulate};
        embedding_backward(dy, ids, options, out, nullptr, p.stream());
      }
      name_op("embedding_backward_sparse");
      const TensorView found = p.array(type, {p.rows}), count = p.array(DType::kInt64, {});
      const TensorView rows = p.array(p.dtype, {p.rows, p.cols});
      embedding_backward_sparse(dy, ids, 32000, {}, found, rows, count, nullptr, p.stream());
    }
  });
  look_for_faults();
}

}  // namespace membound_test
