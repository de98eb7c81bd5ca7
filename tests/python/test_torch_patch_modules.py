# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Patched modules behave as others: pickled, copied, patched within a model, in any dtype."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")
nn = torch.nn


class LlamaRMSNorm(nn.Module):
    """As in transformers: it promotes if the weight is wider than x."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class GatedMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(self, name, nn.Linear(width, width))
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    def rotated(x):
        first, second = x.chunk(2, -1)
        half = torch.cat((-second, first), -1)
        return x * cos.unsqueeze(unsqueeze_dim) + half * sin.unsqueeze(unsqueeze_dim)

    return rotated(q), rotated(k)


class Attention(nn.Module):
    def forward(self, x):
        heads = x.view(1, 2, -1, 8)
        angles = torch.arange(heads.shape[2] * 8.0).view(1, -1, 8) % 4
        return apply_rotary_pos_emb(heads, heads, angles.cos(), angles.sin())[1].reshape(x.shape)


class BrokenRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states):
        raise KeyError(hidden_states.shape)


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(10, 8), LlamaRMSNorm(8), nn.LayerNorm(8), GatedMLP(8), nn.RMSNorm(8),
        Attention(),
    )  # fmt: skip


IDS = torch.arange(8) % 5


def saved_and_loaded(patched):
    file = io.BytesIO()
    torch.save(patched, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "again", [saved_and_loaded, lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy]
)
def test_copies_are_patched_and_stand_alone(again):
    plain, patched = model(), model()
    assert mt.patch(patched).replaced == 6
    twin = again(patched)
    right = patched(IDS)
    assert all("forward" in vars(type(module)) for module in twin)
    assert torch.equal(twin(IDS), right)
    with torch.no_grad():
        for parameter in patched.parameters():  # the copy does not share them
            parameter.zero_()
    assert torch.equal(twin(IDS), right)
    assert mt.unpatch(twin) == 6
    assert torch.equal(twin(IDS), plain(IDS))
    assert mt.patch(twin).replaced == 6


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.device("meta"),
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.inference_mode,
        contextlib.nullcontext,
    ],
)
def test_patched_wherever_the_call_stands(context):
    one = model()
    with context():
        report = mt.patch(one)
    assert report.replaced == 6, str(report)
    torch.testing.assert_close(one(IDS), model()(IDS))


def test_a_module_that_raises_is_left_and_the_others_are_not():
    one = nn.Sequential(nn.LayerNorm(8), BrokenRMSNorm(8), nn.LayerNorm(8))
    report = mt.patch(one)
    assert report.replaced == 2
    assert "it computes something else than our norms" in str(report)


class ClampedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states).clamp(-64.0, 64.0)


def test_a_norm_that_limits_its_result_is_left():
    norm = nn.Sequential(ClampedRMSNorm(8))
    report = mt.patch(norm)
    assert report.replaced == 0
    assert "where values are large" in str(report)


@pytest.mark.parametrize("kind", [LlamaRMSNorm, nn.RMSNorm])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's
def test_dtypes_that_differ_give_what_the_module_gives(kind):
    norm = kind(8, eps=1e-6)
    nn.init.normal_(norm.weight)
    mt.patch(norm)
    for weight, given in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        norm.to(weight)
        x = torch.randn(3, 8).to(given)
        found, right = norm(x), kind.forward(norm, x)
        torch.testing.assert_close(found, right, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eps_is_the_modules_own(dtype):
    """Also if it is torch's default, and if it changes after the patch."""
    x = torch.full((2, 8), 1e-3, dtype=dtype)
    for norm, name in ((nn.RMSNorm(8), "eps"), (LlamaRMSNorm(8, 0), "variance_epsilon")):
        cls = type(norm)
        norm.to(dtype)
        assert mt.patch(norm).replaced == 1
        for eps in (getattr(norm, name), 1e-5, 100.0):
            setattr(norm, name, eps)
            torch.testing.assert_close(norm(x), cls.forward(norm, x))


def held_by_autograd(mlp, x):
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        y = mlp(x)
    inputs = {x.data_ptr(), *(p.data_ptr() for p in mlp.parameters())}
    return y, {t.data_ptr() for t in held} - inputs


def test_patched_mlp_keeps_no_activation():
    """Gate and up alone; the gradients are those of the module."""
    plain, patched = GatedMLP(8), GatedMLP(8)
    patched.load_state_dict(plain.state_dict())
    mt.patch(patched)
    x = torch.randn(4, 8)
    (right, more), (found, few) = held_by_autograd(plain, x), held_by_autograd(patched, x)
    assert (len(few), len(more)) == (2, 4)
    right.sum().backward()
    found.sum().backward()
    for got, wanted in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_full_backward_pre_hook"])
def test_hooks_of_a_patched_projection_are_called(hook):
    mlp, calls = GatedMLP(8), []
    mt.patch(mlp)
    getattr(mlp.down_proj, hook)(lambda *_: calls.append(1))
    mlp(torch.randn(4, 8)).sum().backward()
    assert calls
    mlp.down_proj = nn.Sequential(mlp.down_proj)  # as an adapter replaces it
    mlp(torch.randn(4, 8)).sum().backward()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("act", "kind"), [(nn.ReLU(), "relu"), (nn.Sigmoid(), "sigmoid"), (nn.SiLU(), "silu")], ids=str
)
def test_activations_are_found_by_their_values(act, kind):
    mlp, x, dy = GatedMLP(8), *torch.randn(2, 5, 8)
    mlp.act_fn = act
    leaves = [x.requires_grad_(), *mlp.parameters()]
    wanted = [mlp(x), *torch.autograd.grad(mlp(x), leaves, dy)]
    (row,) = mt.patch(mlp).rows
    assert row.replaced_by == f"gated_activation, kind='{kind}'"
    torch.testing.assert_close([mlp(x), *torch.autograd.grad(mlp(x), leaves, dy)], wanted)


def test_an_activation_in_place_is_left():
    mlp = GatedMLP(8)
    mlp.act_fn = nn.ReLU(inplace=True)
    (row,) = mt.patch(mlp).rows
    assert row.why_left == "its activation ReLU changes the gate in place"


class Dropping(GatedMLP):
    def forward(self, x):
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        hidden = nn.functional.dropout(hidden, 0.5, self.training)
        return self.down_proj(hidden)


class Limited(GatedMLP):
    limit = 0.1

    def forward(self, x):
        gate = self.gate_proj(x).clamp(max=self.limit)
        up = self.up_proj(x).clamp(min=-self.limit, max=self.limit)
        return self.down_proj(self.act_fn(gate) * up)


@pytest.mark.parametrize("kind", [Dropping, Limited])
@pytest.mark.parametrize("training", [True, False])
def test_gated_mlps_keep_dropout_and_limits(kind, training):
    mlp, x = kind(8).train(training), torch.randn(5, 8) * 1e3
    torch.manual_seed(1)
    right = mlp(x)
    assert mt.patch(mlp).replaced == 1
    torch.manual_seed(1)
    torch.testing.assert_close(mlp(x=x), right, rtol=1e-4, atol=1e-4)


class Experts(nn.Module):
    """The gate of gpt-oss's experts."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.ones(2, 8, 16))
        self.alpha, self.limit = 1.702, 7

    def _apply_gate(self, gate_up):
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return (up + 1) * gate * torch.sigmoid(gate * self.alpha)

    def forward(self, x):
        return self._apply_gate(x)


class SwitchedExperts(Experts):
    flag = 1

    def _apply_gate(self, gate_up):
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        return (up + 1) * gate * torch.sigmoid(gate) if self.flag else gate


class SteepExperts(Experts):
    def _apply_gate(self, gate_up):
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        return (up + 1) * gate * torch.sigmoid(gate * self.alpha * self.limit)


class ActingExperts(Experts):
    act_fn = nn.SiLU()

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, -1)
        gate = self.act_fn(gate)
        return gate.clone() * up


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_of_experts_is_found_as_a_formula(dtype):
    experts, x = Experts(), (9 * torch.randn(5, 32)).to(dtype).requires_grad_()
    (row,) = mt.patch(experts).rows
    options = "packing='interleaved', alpha=1.702, limit=7, up_offset=1.0"
    assert row.replaced_by == f"gated_activation, {options}"
    for experts.alpha, experts.limit in ((1.702, 7), (0.5, 2.0), (0.5, -1.0)):
        wanted, got = Experts._apply_gate(experts, x.double()), experts(x)
        unit = torch.finfo(dtype).eps
        torch.testing.assert_close(got.double(), wanted, rtol=4 * unit, atol=4 * unit)
        (slope,) = torch.autograd.grad(got.sum(), x)
        (right,) = torch.autograd.grad(wanted.sum(), x)
        torch.testing.assert_close(slope, right, rtol=4 * unit, atol=16 * unit)


@pytest.mark.parametrize("kind", [SwitchedExperts, SteepExperts, ActingExperts])
def test_gates_of_experts_that_are_no_formula_of_ours_are_left(kind):
    (row,) = mt.patch(kind()).rows
    assert row.why_left == "it has no product of the form act(gate) * up"


def test_another_activation_and_its_hooks_are_used():
    mlp, x, calls = GatedMLP(8), torch.randn(3, 8), []
    mlp.act_fn.register_forward_hook(lambda *_: calls.append(1))
    mt.patch(mlp)
    assert not calls
    mlp(x)
    assert calls == [1]
    mlp.act_fn = nn.Tanh()
    torch.testing.assert_close(mlp(x), GatedMLP.forward(mlp, x))


def test_shallow_copies_compute_with_their_own_weights():
    for one in (LlamaRMSNorm(8), GatedMLP(8)):
        mt.patch(one)
        twin, x = copy.copy(one), torch.randn(3, 8)
        zeros = {name: nn.Parameter(torch.zeros(8)) for name in one._parameters}
        layers = {name: nn.Linear(8, 8) for name in one._modules if name != "act_fn"}
        twin._parameters, twin._modules = zeros, {**one._modules, **layers}
        assert not torch.allclose(twin(x), one(x))


def test_optional_second_tensors_are_taken():
    class AddingRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states, residual=None):
            if residual is not None:
                hidden_states = hidden_states + residual
            return super().forward(hidden_states)

    norm, x = AddingRMSNorm(8), torch.randn(3, 8)
    plain, added, named = norm(x), norm(x, x.flip(0)), norm(hidden_states=x)
    mt.patch(norm)
    torch.testing.assert_close(norm(x), plain)
    torch.testing.assert_close(norm(x, x.flip(0)), added)
    torch.testing.assert_close(norm(hidden_states=x), named)


class Switching(LlamaRMSNorm):
    flag = False

    def forward(self, hidden_states):
        return super().forward(hidden_states) * (2 if self.flag else 1)


class SwitchingByName(Switching):
    def forward(self, hidden_states):
        return LlamaRMSNorm.forward(self, hidden_states) * (1 + getattr(self, "flag"))  # noqa: B009


class SwitchingInMethod(Switching):
    def forward(self, hidden_states):
        return LlamaRMSNorm.forward(self, self._prepared(hidden_states))

    def _prepared(self, x):
        return x.flip(-1) if self.flag else x


@pytest.mark.parametrize("kind", [Switching, SwitchingByName, SwitchingInMethod])
def test_an_attribute_that_decides_may_change(kind):
    norm, x = kind(8), torch.randn(3, 8)
    nn.init.normal_(norm.weight)
    assert mt.patch(norm).replaced == 1
    for norm.flag in (True, False):
        torch.testing.assert_close(norm(x), kind.forward(norm, x))


class ByAxes(LlamaRMSNorm):
    def forward(self, hidden_states):
        axes = len(hidden_states.shape)
        if hidden_states.shape[-1] != self.weight.shape[0]:
            raise ValueError(hidden_states.shape)
        return super().forward(hidden_states) * (2 if axes == 4 or hidden_states.dim() == 1 else 1)


class ByAutocast(LlamaRMSNorm):
    def forward(self, hidden_states):
        factor = 2 if torch.is_autocast_enabled("cpu") else 1
        return super().forward(hidden_states) * factor


@pytest.mark.parametrize("kind", [ByAxes, ByAutocast])
@pytest.mark.parametrize("autocast", [True, False])
def test_the_number_of_axes_and_autocast_may_decide(kind, autocast):
    norm = kind(8)
    assert mt.patch(norm).replaced == 1
    for lead in ((), (3,), (2, 3), (1, 2, 3)):
        x = torch.randn(*lead, 8)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            torch.testing.assert_close(norm(x), kind.forward(norm, x))


class ByShape(LlamaRMSNorm):
    def forward(self, hidden_states):
        rows = hidden_states.shape[0]
        return super().forward(hidden_states) * (2 if rows == 7 else 1)


def _doubled(x, when):
    return x * 2 if when else x


class InFunction(LlamaRMSNorm):
    def forward(self, hidden_states):
        return _doubled(super().forward(hidden_states), hidden_states.requires_grad)


class ByConfig(LlamaRMSNorm):
    config: dict = {}  # noqa: RUF012

    def forward(self, hidden_states):
        return super().forward(hidden_states) * self.config.get("factor", 1)


class InHalf(LlamaRMSNorm):
    def forward(self, hidden_states):
        y = super().forward(hidden_states)
        return y * 2 if hidden_states.dtype == torch.float16 else y


@pytest.mark.parametrize(
    ("kind", "why_left"),
    [
        (ByShape, "its forward decides by 'rows == 7', which no trial varies"),
        (InFunction, "its forward decides by 'when', which no trial varies"),
        (ByConfig, "its forward reads 'config', which may change"),
        (InHalf, "it computes something else than our norms"),
    ],
)
def test_norms_that_decide_by_what_no_trial_shows_are_left(kind, why_left):
    (row,) = mt.patch(kind(8)).rows
    assert (row.replaced_by, row.why_left) == (None, why_left)


def test_unpatch_refuses_what_was_wrapped_since():
    norm = LlamaRMSNorm(8)
    mt.patch(norm)
    inner = norm.forward
    norm.forward = lambda x: inner(x)
    with pytest.raises(RuntimeError, match="was wrapped after patch"):
        mt.unpatch(norm)
    norm.forward = inner  # as accelerate removes its wrapper
    assert mt.unpatch(norm) == 1
    assert type(norm) is LlamaRMSNorm


@pytest.mark.parametrize("call", [mt.patch, mt.unpatch])
def test_what_is_no_module_is_refused(call):
    with pytest.raises(TypeError, match=r"argument 'model' must be a torch\.nn\.Module, got int"):
        call(5)
