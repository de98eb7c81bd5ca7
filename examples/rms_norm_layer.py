# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The RMSNorm layer in place of torch.nn's: same weights, values and gradients, other time.

    python examples/rms_norm_layer.py              # on the GPU if torch sees one
    python examples/rms_norm_layer.py --rows 16384 --cols 4096 --dtype bfloat16

Needs torch.
"""

from __future__ import annotations

import argparse

import torch
from interleaved import medians

import membound.torch as mt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    options = parser.parse_args()
    dtype, device = getattr(torch, options.dtype), options.device

    torch.manual_seed(0)
    theirs = torch.nn.RMSNorm(options.cols, eps=1e-6, device=device, dtype=dtype)
    torch.nn.init.normal_(theirs.weight, 1.0, 0.1)
    ours = mt.RMSNorm(options.cols, eps=1e-6, device=device, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())

    x = torch.randn(options.rows, options.cols, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn_like(x)
    found, right = ours(x), theirs(x)
    print(f"largest difference of y: {(found - right).abs().max().item():.3g}")
    for name, mine, other in zip(
        ("dx", "dweight"),
        torch.autograd.grad(found, [x, ours.weight], dy),
        torch.autograd.grad(right, [x, theirs.weight], dy),
        strict=True,
    ):
        apart = (mine - other).abs().max() / other.abs().max()
        print(f"largest difference of {name}, of its largest element: {apart.item():.3g}")

    print(f"{'':<12} {'torch.nn, ms':>14} {'membound, ms':>14}")
    for name, step in {
        "forward": lambda layer: layer(x.detach()),
        "and backward": lambda layer: layer(x).backward(dy),
    }.items():
        layers = {"torch.nn": theirs, "membound": ours}
        calls = {who: lambda layer=layer, step=step: step(layer) for who, layer in layers.items()}
        taken = medians(calls, device, desc=name)
        print(f"{name:<12} {taken['torch.nn'] * 1e3:14.3f} {taken['membound'] * 1e3:14.3f}")


if __name__ == "__main__":
    main()
