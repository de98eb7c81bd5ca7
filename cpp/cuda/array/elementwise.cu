// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/array/elementwise_narrow.cuh"

namespace membound::cuda {

void array_elementwise(const ArrayElementwise& problem, StreamView stream) {
  dispatch_arithmetic<false>(problem.dtype, [&]<class A>() {
    const auto launch_with = [&]<int kOperands>() {
      constexpr bool kIsFloat = scalar::kSameType<A, float>;
      const auto p = elementwise_params<kOperands>(problem.op, problem.dims, problem.result,
                                                   problem.operands, kIsFloat);
      if constexpr (kIsFloat) {
        if (p.is_narrow) return launch_narrow<A>(p, stream);
      }
      launch_elementwise<A>(p, stream);
    };
    if (problem.operand_count == 1) {
      launch_with.template operator()<1>();
    } else if (problem.operand_count == 2) {
      launch_with.template operator()<2>();
    } else if constexpr (!scalar::kSameType<A, bool>) {
      launch_with.template operator()<3>();
    }
  });
}

}  // namespace membound::cuda
