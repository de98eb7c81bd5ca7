# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A model before and after `patch`: results, loss, gradients, dropout, generation, copies."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import small_models
import torch

import membound.torch as mt
from membound.torch._patch_class import patched_class

EPS = torch.finfo(torch.float32).eps


@dataclass
class Outcome:
    """The outcome for one model class."""

    name: str
    built: str = ""  # why it was not tested; empty if it was
    failed: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    parts: dict[str, dict[str, int]] = field(default_factory=dict)  # by function
    left: dict[str, dict[str, int]] = field(default_factory=dict)  # by module and reason
    seconds: float = 0.0


@dataclass
class Case:
    """One call of the model."""

    name: str
    given: dict[str, Any]
    train: bool = False


def floats(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """The floating tensors of an output, each once, in order."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from floats(item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from floats(item, seen)


def run(model: Any, case: Case) -> dict[str, torch.Tensor]:
    """Results of the call and the gradients of all parameters, by name."""
    model.train(case.train)
    model.zero_grad()
    torch.manual_seed(1)
    output = model(**copy.deepcopy(case.given))
    found = list(floats(output))
    named = {f"output {index}": t.detach().clone() for index, t in enumerate(found)}
    generator = torch.Generator().manual_seed(2)
    total = torch.zeros(())
    for t in found:
        if t.requires_grad:
            along = torch.randn(t.shape, generator=generator)
            total = total + (torch.where(t.isfinite(), t, 0.0) * along).sum()
    if total.requires_grad:
        total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            named[f"gradient of {name}"] = parameter.grad.clone()
    return named


def _size(t: torch.Tensor) -> float:
    t = t.double()
    return torch.where(t.isfinite(), t, 0.0).abs().max().item() if t.numel() else 0.0


def differences(got: dict[str, Any], wanted: dict[str, Any]) -> dict[str, float]:
    """The largest difference by name, relative to the effect of rounding; above 1 is wrong."""
    if got.keys() != wanted.keys():
        return {f"not in both: {sorted(got.keys() ^ wanted.keys())[:3]}": float("inf")}
    kinds: dict[bool, float] = {}
    for name, t in wanted.items():
        kind = name.startswith("gradient")
        kinds[kind] = max(kinds.get(kind, 0.0), _size(t))
    found = {}
    for name, right in wanted.items():
        mine = got[name]
        if mine.shape != right.shape or mine.dtype != right.dtype:
            found[f"{name}: {mine.dtype}{tuple(mine.shape)}"] = float("inf")
            continue
        if not torch.equal(mine.isfinite(), right.isfinite()):
            found[f"{name}: not finite where the other is"] = float("inf")
            continue
        floor = 1e-2 * kinds[name.startswith("gradient")]
        bound = 64 * EPS * max(_size(right), floor)
        apart = _size(mine.double() - right.double())
        found[name] = apart / bound if bound else (float("inf") if apart else 0.0)
    return found


def wrong(got: Any, wanted: Any, nudged: Callable[[], Any]) -> str:
    """Describe the worst difference, if any. `nudged` gives the result for weights one unit off.

    A model that amplifies rounding amplifies that nudge too: only a difference more than eight
    times as large is a fault.
    """
    apart = {name: d for name, d in differences(got, wanted).items() if not d <= 1}
    if not apart:
        return ""
    allowed = differences(nudged(), wanted)
    apart = {name: d for name, d in apart.items() if not d <= 1 + 8 * allowed.get(name, 0.0)}
    if not apart:
        return ""
    name = max(apart, key=lambda n: apart[n])
    return f"{name} is off by {apart[name]:.3g} of its bound ({len(apart)} of {len(wanted)})"


def _nudge(model: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p.mul_(1 + EPS * torch.randn(p.shape, generator=generator))
    return model


def _labels(model: Any, given: dict[str, Any]) -> Iterator[Any]:
    """Candidates for the labels of the model."""
    generator = torch.Generator().manual_seed(4)
    for name in ("decoder_input_ids", "input_ids"):
        if name in given:
            tokens = given[name].clone()
            tokens[0, 2:4] = -100
            yield tokens
            yield torch.randint(0, 2, tokens.shape, generator=generator)
    yield torch.tensor([0, 1])
    yield torch.tensor([1])


def _runs(model: Any, given: dict[str, Any], train: bool = False) -> str:
    try:
        with torch.no_grad():
            model.train(train)
            torch.manual_seed(1)
            model(**copy.deepcopy(given))
    except Exception as error:  # noqa: BLE001 - whatever a stranger's model raises
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"
    finally:
        model.eval()
    return ""


def cases_of(model: Any, given: dict[str, Any]) -> Iterator[Case]:
    """The calls that the unpatched model accepts."""
    names = inspect.signature(model.forward).parameters
    yield Case("evaluation", given)
    full = dict(given)
    ids = given.get("input_ids")
    if ids is not None and ids.dim() == 2 and "attention_mask" in names:
        mask = torch.ones_like(ids)
        mask[0, :2] = 0
        if not _runs(model, {**full, "attention_mask": mask}):
            full["attention_mask"] = mask
    found = "labels" in names and next(
        (t for t in _labels(model, given) if not _runs(model, {**full, "labels": t})), None
    )
    if found is not False and found is not None:
        full["labels"] = found
    if full.keys() != given.keys():
        yield Case(" and ".join(["evaluation", *(full.keys() - given.keys())]), full)
    if not _runs(model, full, train=True):
        yield Case("training", full, train=True)
    if ids is not None and ids.shape == (2, 9) and "position_ids" in names:
        packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]]).expand(2, 9)
        if not _runs(model, {**given, "position_ids": packed}):
            yield Case("packed positions", {**given, "position_ids": packed})
    images = small_models.with_image(model)
    if images and not _runs(model, images):
        yield Case("image", images)
        if not _runs(model, images, train=True):
            yield Case("image in training", images, train=True)


def _tokens(model: Any, given: dict[str, Any]) -> Any:
    if not model.can_generate():
        return None
    given = {k: v for k, v in given.items() if k != "decoder_input_ids"}
    try:
        torch.manual_seed(1)
        return model.generate(**given, max_new_tokens=5, do_sample=False, use_cache=True)
    except Exception:  # noqa: BLE001 - it wants more than its forward
        return None


def compare(outcome: Outcome, cls: Any) -> None:
    try:
        model, given = small_models.build(cls)
    except NotImplementedError as error:
        outcome.built = str(error)
        return
    # Some models keep tensors with gradients from a call, and cannot be copied after it.
    twin, before = copy.deepcopy(model), copy.deepcopy(model)
    cases = list(cases_of(before, given))
    wanted = [run(before, case) for case in cases]
    tokens = _tokens(before.eval(), given)
    report = mt.patch(model)
    _compare_copy(outcome, model.eval(), given)
    for row in report.rows:
        found = (outcome.parts if row.replaced_by else outcome.left).setdefault(row.part, {})
        said = (row.replaced_by or "").partition(",")[0] or f"{row.module}: {row.why_left}"
        found[said] = found.get(said, 0) + row.count
    for case, right in zip(cases, wanted, strict=True):
        outcome.cases.append(case.name)
        try:
            got = run(model, case)
        except Exception as error:  # noqa: BLE001 - every one is a fault of ours
            outcome.failed.append(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
            continue
        fault = wrong(got, right, lambda c=case: run(_nudge(copy.deepcopy(twin)), c))
        if fault and _same_in_float64(twin, case):  # rounding chose another expert or group
            outcome.cases[-1] += " in float64"
        elif fault:
            outcome.failed.append(f"{case.name}: {fault}")
    _compare_uses(outcome, model.eval(), given, tokens)


def _same_in_float64(model: Any, case: Case) -> bool:
    """Whether model and patched model agree far below float32's rounding when run in float64."""
    given = {
        name: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for name, t in case.given.items()
    }
    ours, theirs = (copy.deepcopy(model).double() for _ in range(2))
    mt.patch(ours)
    got, wanted = (run(m, Case(case.name, given, case.train)) for m in (ours, theirs))
    return all(d < 1e-4 for d in differences(got, wanted).values())


def _compare_copy(outcome: Outcome, model: Any, given: dict[str, Any]) -> None:
    outcome.cases.append("copy")
    case = Case("copy", given)
    try:
        copied = copy.deepcopy(model)
        right, got = run(model, case), run(copied, case)
        if not all(torch.equal(got[n].nan_to_num(), right[n].nan_to_num()) for n in right):
            outcome.failed.append("copy: other bits")
    except Exception as error:  # noqa: BLE001
        outcome.failed.append(f"copy: {type(error).__name__}: {str(error)[:300]}")


def _compare_uses(outcome: Outcome, model: Any, given: dict[str, Any], tokens: Any) -> None:
    """Generation, keyword arguments."""
    if tokens is not None and isinstance(tokens, torch.Tensor):
        outcome.cases.append("generate")
        got = model.generate(
            **{k: v for k, v in given.items() if k != "decoder_input_ids"},
            max_new_tokens=5, do_sample=False, use_cache=True,
        ) if _seeded() else None  # fmt: skip
        same = torch.equal(got, tokens) if tokens.dtype == torch.long else torch.allclose(
            got, tokens, rtol=1e-3, atol=1e-3)  # fmt: skip
        if not same:
            outcome.failed.append("generate: other tokens")
    for name, fault in keyword_faults(model, given).items():
        outcome.failed.append(f"keywords of {name}: {fault}")


def _seeded() -> bool:
    torch.manual_seed(1)
    return True


def keyword_faults(model: Any, given: dict[str, Any]) -> dict[str, str]:
    """Modules whose patched forward does not take its arguments by name, one of each class."""
    calls: dict[str, tuple[Any, Any, Any]] = {}

    def note(module: Any, args: Any, keywords: Any) -> None:
        # Copied, since a cache among the arguments grows in the call.
        calls.setdefault(type(module).__name__, (module, *copy.deepcopy((args, keywords))))

    ours = [m for m in model.modules() if patched_class(m) and not hasattr(m, "config")]
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in ours]
    with torch.no_grad():
        torch.manual_seed(1)
        model(**copy.deepcopy(given))
    for handle in handles:
        handle.remove()
    faults = {}
    for name, (module, args, keywords) in calls.items():
        signature = inspect.signature(patched_class(module).__base__.forward)
        bound = signature.bind(module, *args, **keywords).arguments
        variable = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
            continue
        flat = {k: v for k, v in list(bound.items())[1:] if k not in variable}
        for variadic in variable:
            flat |= bound.get(variadic, {})
        try:
            with torch.no_grad():
                module(**flat)
        except Exception as error:  # noqa: BLE001
            faults[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return faults
