# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""C++ against membound's headers, compiled from Python by torch's extension loader.

    python examples/load_inline.py

The function normalises the two halves of each row apart, without a copy: its tensors are views by
shape and strides. Headers and library come from the installed package. Needs torch, ninja and a
C++17 compiler.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.utils.cpp_extension import load_inline

import membound

SOURCE = r"""
#include <ATen/core/Tensor.h>  // with the next two a third of the time of torch/extension.h
#include <ATen/ops/empty_like.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <membound/membound.hpp>

namespace mb = membound;

// Half the columns of a tensor, where they lie.
mb::TensorView half_of(const at::Tensor& t, int half) {
  const std::int64_t cols = t.size(1) / 2;
  mb::TensorView view(t.data_ptr<float>() + half * cols * t.stride(1), mb::DType::kFloat32,
                      mb::Device::cpu(), {t.size(0), cols});
  view.strides[0] = t.stride(0);
  view.strides[1] = t.stride(1);
  return view;
}

// x: (rows, 2 * cols) float32 on the CPU.
at::Tensor norm_of_halves(at::Tensor x) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) % 2 == 0 && x.scalar_type() == at::kFloat &&
                  x.device().is_cpu(),
              "norm_of_halves takes float32 of (rows, 2 * cols) on the CPU");
  at::Tensor out = at::empty_like(x);
  const mb::Stream stream(mb::Device::cpu());  // on the CPU an empty one; calls return when done
  for (int half = 0; half < 2; ++half) {
    mb::rms_norm(half_of(x, half), nullptr, {}, half_of(out, half), nullptr, stream);
  }
  return out;
}
"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print("compiling, less than a minute the first time", flush=True)
    package = Path(membound.__file__).parent
    extension = load_inline(
        "membound_example",
        SOURCE,
        functions=["norm_of_halves"],
        extra_include_paths=[str(package / "include")],
        extra_ldflags=[f"-L{package / 'lib'}", "-lmembound", f"-Wl,-rpath,{package / 'lib'}"],
        no_implicit_headers=True,
    )
    x = torch.randn(4, 16)
    out = extension.norm_of_halves(x)
    right = torch.nn.functional.rms_norm(x.unflatten(1, (2, 8)), (8,), eps=1e-6).flatten(1)
    torch.testing.assert_close(out, right)
    print("the extension's result is right:", out[0, :4].tolist())


if __name__ == "__main__":
    main()
