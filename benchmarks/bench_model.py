# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A whole model in training and decoding: eager, compiled, patched by Liger-Kernel and by membound.

    python benchmarks/bench_model.py              # 1B parameters, on a GPU
    python benchmarks/bench_model.py --tiny       # a small one, on whatever is here
    python benchmarks/bench_model.py --decoding   # decoding alone, the cases in turn

The model comes from a configuration, with random weights in bfloat16 and SDPA attention. A training
step is forward, loss, backward and a fused AdamW step on synthetic tokens; a decoding step is one
token after 1,024 cached ones. Figures are medians of a step's wall time, with a synchronisation at
the end. The cases run one after the other in one process; Liger-Kernel's is the last, because its
patches of functions cannot be undone.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import membound
from membound._table import markdown, render

CACHED = 1024
WARM = 5  # steps of decoding before those that count
ROUNDS = 12  # of all cases in turn
SIZES = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
MODELS = {  # class of transformers: what differs from SIZES (Llama 3.2 1B, Qwen3 1.7B, Gemma 3 1B)
    "Llama": {},
    "Qwen3": {
        "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
        "head_dim": 128, "vocab_size": 151936,
    },
    "Gemma3": {
        "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One way to run the model."""

    name: str
    patch: Callable[[Any], Any] = lambda _: None
    compiled: str = ""  # "model", or "layers": each decoder layer separately
    needs: str = "torch"
    loss: Callable[[Any, Any], Any] | None = None  # (model, tokens); default: the model's


@dataclass
class Figures:
    case: str
    training_ms: float
    peak_gib: float
    decoding_ms: float
    loss: float


def patch_with_membound(model: Any) -> None:
    import membound.torch

    print(membound.torch.patch(model))


def loss_without_logits(model: Any, tokens: Any) -> Any:
    """The model's own loss, computed from hidden states and the last layer's weight."""
    import membound.torch

    hidden = model.model(input_ids=tokens).last_hidden_state
    return membound.torch.linear_cross_entropy(hidden[:, :-1], model.lm_head.weight, tokens[:, 1:])


def patch_with_liger(model: Any, *, fused_loss: bool = False) -> None:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(
        rope=True, rms_norm=True, swiglu=True, cross_entropy=False,
        fused_linear_cross_entropy=fused_loss, model=model,
    )  # fmt: skip


LINEAR = "linear cross-entropy"
WITH_LIGER = {"patch": patch_with_liger, "needs": "liger_kernel"}
CASES = (
    Case("eager"),
    Case("membound", patch_with_membound),
    Case(f"membound, {LINEAR}", patch_with_membound, loss=loss_without_logits),
    Case("torch.compile", compiled="model"),
    Case("torch.compile of each layer", compiled="layers"),
    Case("membound, torch.compile", patch_with_membound, compiled="model"),
    Case("membound, torch.compile of each layer", patch_with_membound, compiled="layers"),
    Case("Liger-Kernel: norm, rotary, gated MLP", **WITH_LIGER),
    Case(
        f"Liger-Kernel, {LINEAR}",
        functools.partial(patch_with_liger, fused_loss=True),
        needs="liger_kernel",
    ),
)


def compiled(model: Any, what: str, mode: str | None = None) -> Any:
    """Compile layer by layer: masks are built outside, so attention uses its causal kernels."""
    if what == "model":
        return torch.compile(model, mode=mode)
    if what == "layers":
        for layer in model.model.layers:
            layer.compile(mode=mode)
    return model


class Bench:
    def __init__(self, options: argparse.Namespace):
        self.device = options.device
        self.family = options.model
        self.sizes = TINY if options.tiny else SIZES | MODELS[self.family]
        if options.layers:
            self.sizes = {**self.sizes, "num_hidden_layers": options.layers}
        self.batch, self.seq = (2, 32) if options.tiny else (2, 4096)
        self.cached = 16 if options.tiny else CACHED
        self.steps = options.steps

    def model(self) -> Any:
        import transformers

        model = getattr(transformers, f"{self.family}ForCausalLM")
        config = model.config_class(
            **self.sizes, max_position_embeddings=8192, attn_implementation="sdpa", use_cache=False,
            tie_word_embeddings=True,
        )  # fmt: skip
        torch.manual_seed(0)
        with torch.device(self.device):
            return model(config).to(torch.bfloat16)

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def median_ms(self, step: Callable[[], Any], warm: int) -> float:
        return statistics.median(self.times_ms(step, warm))

    def times_ms(self, step: Callable[[], Any], warm: int) -> list[float]:
        for _ in range(warm):
            step()
        times = []
        for _ in range(self.steps):
            self.synchronize()
            start = time.perf_counter()
            step()
            self.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        return times

    def time_and_peak(self, step: Callable[[], Any]) -> tuple[float, float]:
        """Milliseconds of a step, and GiB at the peak."""
        if self.device == "cpu":
            return self.median_ms(step, warm=3), 0.0
        torch.cuda.reset_peak_memory_stats()
        taken = self.median_ms(step, warm=3)
        return taken, torch.cuda.max_memory_allocated() / 2**30

    def training(self, model: Any, case: Case) -> tuple[float, float, float]:
        """Milliseconds of a step, GiB at the peak, and the loss after all steps."""
        model.train()
        run = compiled(model, case.compiled)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=self.device != "cpu")
        generator = torch.Generator().manual_seed(1)
        shape = (self.batch, self.seq)
        tokens = torch.randint(0, self.sizes["vocab_size"], shape, generator=generator)
        tokens = tokens.to(self.device)
        loss = torch.zeros(())

        def step() -> None:
            nonlocal loss
            given = case.loss
            loss = given(run, tokens) if given else run(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return *self.time_and_peak(step), loss.item()

    @torch.no_grad()
    def decoding_step(self, model: Any, what: str, steps: int) -> Callable[[], None]:
        """A step after the cached tokens; at most that many are taken."""
        from transformers import StaticCache

        model.eval()
        cache = StaticCache(config=model.config, max_cache_len=self.cached + max(steps, 64))
        past = torch.zeros((1, self.cached), dtype=torch.int64, device=self.device)
        model(input_ids=past, past_key_values=cache, use_cache=True)
        token = past[:, :1]
        position = torch.tensor([[self.cached]], device=self.device)
        run = compiled(model, what, "reduce-overhead" if what == "model" else None)

        @torch.no_grad()
        def step() -> None:
            if what == "model":
                torch.compiler.cudagraph_mark_step_begin()
            run(input_ids=token, position_ids=position, past_key_values=cache, use_cache=True)

        return step

    def decoding(self, model: Any, what: str) -> float:
        return self.median_ms(self.decoding_step(model, what, WARM + self.steps), WARM)

    def decoding_in_turn(self, cases: list[Case]) -> list[list[float]]:
        """Milliseconds of each case's steps; hosts change their speed, which all cases share."""
        steps = []
        for case in cases:
            model = self.model()
            case.patch(model)
            most = WARM + ROUNDS * self.steps
            steps.append(self.decoding_step(model, case.compiled, most))
        times: list[list[float]] = [[] for _ in steps]
        for at in range(ROUNDS):
            for found, step in zip(times, steps, strict=True):
                found += self.times_ms(step, warm=0 if at else WARM)
        return times

    def run(self, case: Case) -> Figures:
        torch.compiler.reset()
        model = self.model()
        case.patch(model)
        decoding = self.decoding(model, case.compiled)
        torch.compiler.reset()
        training, peak, loss = self.training(model, case)
        del model
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()
        return Figures(case.name, training, peak, decoding, loss)


HEADER = ("case", "training step, ms", "peak, GiB", "decoding step, ms", "loss")


def cells(rows: list[Figures]) -> list[list[str]]:
    return [
        [
            r.case,
            f"{r.training_ms:.1f}",
            f"{r.peak_gib:.1f}",
            f"{r.decoding_ms:.2f}",
            f"{r.loss:.4f}",
        ]
        for r in rows
    ]


def wanted(names: str, cases: Iterable[Any] = CASES) -> Iterator[Any]:
    """Those of these names whose package is here; all names by default."""
    for case in cases:
        if names and case.name not in names.split(";"):
            continue
        if importlib.util.find_spec(case.needs) is None:
            print(f"{case.name}: {case.needs} is not installed", file=sys.stderr)
            continue
        yield case


def print_decoding(bench: Bench, cases: list[Case]) -> None:
    """Cases of Liger-Kernel come after the others, whose functions it would exchange too."""
    times = []
    for with_liger in (False, True):
        chosen = [case for case in cases if (case.needs == "liger_kernel") == with_liger]
        times += zip([case.name for case in chosen], bench.decoding_in_turn(chosen), strict=True)
    first = statistics.median(times[0][1])
    lines = [
        [
            name,
            f"{statistics.median(t):.3f}",
            f"{min(t):.3f}",
            f"{statistics.median(t) / first:.3f}",
        ]
        for name, t in times
    ]
    print(render(("case", "decoding step, ms", "least", f"of {times[0][0]}"), lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    parser.add_argument("--model", choices=MODELS, default="Llama")
    parser.add_argument("--tiny", action="store_true", help="a small model")
    parser.add_argument("--layers", type=int, help="in place of the model's number of them")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cases", default="", help="names between semicolons; all by default")
    parser.add_argument("--decoding", action="store_true", help="decoding alone, cases in turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    bench, rows = Bench(options), []
    if options.decoding:
        print_decoding(bench, list(wanted(options.cases)))
        return 0
    for case in wanted(options.cases):
        rows.append(bench.run(case))
        print(render(HEADER, cells(rows[-1:])), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if options.markdown:
        on_gpu = options.device != "cpu"
        where = torch.cuda.get_device_name(options.device) if on_gpu else "the CPU"
        command = (
            f"`{' '.join(sys.argv)}`, membound {membound.__version__}, torch {torch.__version__}"
        )
        text = f"# A Llama of 1B parameters on {where}\n\n{command}\n\n"
        options.markdown.write_text(text + markdown(HEADER, cells(rows)) + "\n")
    print(render(HEADER, cells(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
