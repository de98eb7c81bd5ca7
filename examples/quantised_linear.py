# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A norm that writes 8 bits in front of a scaled matrix product, and the error that this costs.

    python examples/quantised_linear.py --rows 512 --width 1024

add_rms_norm_quant adds the residual, normalises, and writes codes and scales in one pass: the bits
of the norm and a quantisation after it. The weight has a scale for each row. On a GPU of compute
capability 8.9 or later the product of float8 codes with a scale for each row is torch's scaled_mm.
Elsewhere, and for int8 and groups, float32 stands in for it; the last column says what that alone
adds. Errors are relative to the layer in float64: the root of the mean square of the difference,
over that of the result. Needs torch.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from interleaved import medians
from progress import progress

import membound.torch as mt

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


class Format(NamedTuple):
    """How rows are quantised, and the error that the layer may have with plain rows."""

    dtype: torch.dtype
    group: int | None
    allowed: float


FORMATS = (
    Format(torch.float8_e4m3fn, None, 0.05),
    Format(torch.float8_e4m3fn, 128, 0.05),
    Format(torch.int8, None, 0.02),
    Format(torch.int8, 128, 0.02),
)


def quantise(y: torch.Tensor, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales in several passes: what the fused norm does in one."""
    groups = y.float().unflatten(-1, (-1, form.group or y.shape[-1]))
    largest = groups.new_tensor(LARGEST[form.dtype])  # CUDA multiplies by the inverse of a number
    scale = (groups.abs().amax(-1, keepdim=True) / largest).clamp_min(2.0**-126)
    codes = (groups * (1 / scale)).clamp(-largest, largest)
    codes = codes.round() if form.dtype == torch.int8 else codes
    scale = scale.squeeze(-1)
    return codes.flatten(-2).to(form.dtype), scale if form.group else scale.squeeze(-1)


def spread(scale: torch.Tensor, form: Format) -> torch.Tensor:
    """The scales, for each column."""
    return scale.repeat_interleave(form.group, -1) if form.group else scale[:, None]


def has_scaled_product(x: torch.Tensor) -> bool:
    return (
        x.is_cuda
        and torch.cuda.get_device_capability() >= (8, 9)
        and hasattr(torch.nn.functional, "scaled_mm")
    )


class QuantisedLinear(torch.nn.Module):
    """linear(rms_norm(x + residual)) with 8-bit codes on both sides of the product."""

    def __init__(self, norm: torch.Tensor, weight: torch.Tensor, form: Format):
        super().__init__()
        self.norm, self.form = norm, form
        self.codes, self.scale = quantise(weight, form._replace(group=None))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, residual, scale = mt.add_rms_norm_quant(
            x, residual, self.norm, dtype=self.form.dtype, group_size=self.form.group
        )
        return self.product(codes, scale), residual

    def product(self, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        form = self.form
        if form.group is None and form.dtype == torch.float8_e4m3fn and has_scaled_product(codes):
            from torch.nn.functional import ScalingType, scaled_mm

            rows = ScalingType.RowWise
            scales = scale[:, None], self.scale[None, :]
            return scaled_mm(codes, self.codes.T, scales[0], rows, scales[1], rows)
        x = codes.float() * spread(scale, form)
        return x @ self.codes.float().T * self.scale

    def exact_product(self, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The same codes and scales in float64."""
        x = codes.double() * spread(scale, self.form).double()
        return x @ (self.codes.double() * self.scale.double()[:, None]).T


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).square().mean() / exact.square().mean()).sqrt().item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--width", type=int, default=1024, help="a multiple of 128")
    parser.add_argument("--outliers", type=float, default=30.0, help="what 4 columns grow by")
    parser.add_argument("--rounds", type=int, default=15, help="calls that a median is of")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.width % 128:
        parser.error(f"--width must be a multiple of 128, got {options.width}")
    torch.manual_seed(0)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    make = {"device": options.device, "dtype": dtype}
    plain, residual = torch.randn(2, options.rows, options.width, **make)
    weight = torch.randn(2 * options.width, options.width, **make) * options.width**-0.5
    norm = 1 + 0.1 * torch.randn(options.width, **make)
    outliers = plain.clone()
    outliers[:, :: options.width // 4] *= options.outliers

    print(f"{'':30}error of the layer{'':8}codes that  the product")
    print(f"{'codes':<14} {'a scale for':<14} plain rows  with outliers  differ      alone")
    wrong = 0
    for form in progress(FORMATS, desc="formats", leave=False):
        layer = QuantisedLinear(norm, weight, form)
        errors = []
        for x in (plain, outliers):
            exact, _ = mt.add_rms_norm(x.double(), residual.double(), norm.double())
            errors.append(error(layer(x, residual)[0], exact @ weight.double().T))
        codes, _, scale = mt.add_rms_norm_quant(
            plain, residual, norm, dtype=form.dtype, group_size=form.group
        )
        y, _ = mt.add_rms_norm(plain, residual, norm)
        differ = int((codes.float() != quantise(y, form)[0].float()).sum())
        alone = error(layer.product(codes, scale), layer.exact_product(codes, scale))
        wrong += differ > 0 or errors[0] > form.allowed
        what = f"{form.group} columns" if form.group else "each row"
        print(
            f"{str(form.dtype)[6:]:<14} {what:<14} {errors[0]:<11.2%} {errors[1]:<14.2%} "
            f"{differ:<11} {alone:.1e}"
        )

    form = FORMATS[0]
    taken = medians(
        {
            "one pass": lambda: mt.add_rms_norm_quant(plain, residual, norm, dtype=form.dtype),
            "norm, then codes": lambda: quantise(mt.add_rms_norm(plain, residual, norm)[0], form),
        },
        options.device,
        options.rounds,
        "times",
    )
    for name, spent in taken.items():
        print(f"{name:<17} {spent * 1e3:8.3f} ms")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
