// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/embedding/embedding_kernels.cuh"
#include "cuda/launch/launch.hpp"

namespace membound::cuda {

namespace {

template <class T>
bool table_takes_vectors(const RowTable& table) {
  return table.data == nullptr ||
         (table.col_stride == 1 && (table.rows == 1 || table.row_stride % kPack<T> == 0) &&
          reinterpret_cast<std::uintptr_t>(table.data) % kVectorBytes == 0);
}

template <class T>
bool all_take_vectors(const EmbeddingProblem& p) {
  bool fits = p.dtype == p.out_dtype && p.dim % kPack<T> == 0 && p.out_col_stride == 1 &&
              reinterpret_cast<std::uintptr_t>(p.out) % kVectorBytes == 0 &&
              table_takes_vectors<T>(p.weight) && table_takes_vectors<T>(p.position_weight);
  for (int axis = 0; axis < p.out_rows.rank; ++axis) {
    fits = fits && p.out_rows.strides[axis] % kPack<T> == 0;
  }
  return fits;
}

}  // namespace

void embedding(const EmbeddingProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "embedding", [&]<class T>() {
    const bool vectors = all_take_vectors<T>(problem);
    EmbeddingParams p{};
    p.problem = problem;
    p.copies = problem.copies();
    p.words = static_cast<int>(sizeof(T) / sizeof(UnalignedCopy::Word));
    const bool unaligned =
        p.copies && problem.weight.col_stride == 1 && problem.out_col_stride == 1;
    p.units = vectors || unaligned ? (problem.dim + kPack<T> - 1) / kPack<T> : problem.dim;
    p.config = tuning::gated_activation_config(
        problem.tokens, p.units,
        unaligned && !vectors ? tuning::kUnalignedEmbeddingUnits : tuning::kEmbeddingUnits);
    const LaunchShape shape{p.config.blocks, p.config.threads};
    const int device = current_device();
    if (vectors) {
      launch<embedding_vectors_kernel<T>>(shape, stream, device, p);
    } else if (unaligned) {
      launch<embedding_unaligned_kernel>(shape, stream, device, p);
    } else {
      launch<embedding_elements_kernel<accumulate_t<T>>>(shape, stream, device, p);
    }
  });
}

}  // namespace membound::cuda
