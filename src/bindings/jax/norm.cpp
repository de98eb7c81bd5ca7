// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "jax_handlers.hpp"
#include "norm_ops.hpp"

namespace membound::python::jax {

void run(const Norm& a, StreamView stream) {
  run_norm({{a.eps, a.weight_offset, Rounding(a.rounding)}, a.centred, a.norm_before_gate},
           {&a.x.value(), pointer(a.residual), pointer(a.z), pointer(a.weight), pointer(a.bias),
            &a.out.value(), pointer(a.residual_out), pointer(a.mean), pointer(a.rstd)},
           stream);
}

void run(const NormBackward& a, StreamView stream) {
  const bool is_added = a.x_name == std::string_view("residual_out");
  run_norm_backward(
      {{a.weight_offset, Rounding(a.rounding), /*accumulate=*/false}, a.norm_before_gate, is_added},
      {&a.dy.value(), pointer(a.dresidual_out), &a.x.value(), pointer(a.z), pointer(a.weight),
       pointer(a.mean), &a.rstd.value(), pointer(a.dx), pointer(a.dresidual), pointer(a.dz),
       pointer(a.dweight), pointer(a.dbias), pointer(a.workspace)},
      stream);
}

void run(const NormQuant& a, StreamView stream) {
  run_norm_quant({a.eps, a.weight_offset, Rounding(a.rounding), a.group_size, a.scale_upper_bound},
                 {&a.x.value(), pointer(a.residual), pointer(a.weight), pointer(a.scale),
                  &a.out.value(), pointer(a.residual_out), pointer(a.scale_out)},
                 stream);
}

}  // namespace membound::python::jax
