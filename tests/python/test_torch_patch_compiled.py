# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Patched models under torch.compile: the model's own code in inference, our operators else."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
from test_torch_patch import MODELS, build

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers warns about is not ours
NAMES = ("Llama", "Qwen3", "Gemma3Text", "GPTNeoX", "Phi3")
IDS = torch.arange(18).reshape(2, 9)


@pytest.fixture(autouse=True)
def _anew():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Graphs:
    """A backend that counts the operators of each graph, forward and backward."""

    def __init__(self):
        self.counts = []
        from torch._dynamo.backends.common import aot_autograd

        self.backend = aot_autograd(fw_compiler=self.count)

    def count(self, graph, _):
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        self.counts.append(Counter(str(node.target) for node in calls))
        return graph.forward

    def ours(self):
        """Names of our operators, in all graphs."""
        found = sum(self.counts, Counter())
        return {name.split(".")[1] for name in found if name.startswith("membound")}


def compiled(function, **options):
    graphs = Graphs()
    return torch.compile(function, backend=graphs.backend, fullgraph=True, **options), graphs


def decode(model, **options):
    """The graphs of a decoding step after nine cached tokens, and its logits."""
    from transformers import StaticCache

    step, graphs = compiled(model, **options)
    with torch.no_grad():
        cache = StaticCache(config=model.config, max_cache_len=16)
        model(input_ids=IDS, past_key_values=cache)
        logits = step(input_ids=IDS[:, :1], past_key_values=cache).logits
    return graphs.counts, logits


@pytest.mark.parametrize("name", NAMES)
def test_patched_decoding_has_the_graph_of_the_model(name, seed):
    plain = build(name, torch.bfloat16, seed)
    patched = copy.deepcopy(plain)
    assert mt.patch(patched).replaced == MODELS[name][1]
    wanted, logits = decode(plain)
    assert sum(wanted, Counter())
    torch.compiler.reset()
    found, patched_logits = decode(patched)
    assert found == wanted
    torch.testing.assert_close(patched_logits, logits, rtol=2e-2, atol=2e-2)


def guards(model):
    """How many conditions of a compiled decoding step each call checks."""
    seen = []

    def count(entries):
        seen.append(len(entries))
        return [True] * len(entries)

    decode(model, options={"guard_filter_fn": count})
    torch.compiler.reset()
    return seen[-1]


@pytest.mark.parametrize("name", NAMES)
def test_patched_layers_add_at_most_one_guard_to_decoding(name, seed):
    def of_two_layers(patch):
        models = [build(name, torch.float32, seed, num_hidden_layers=count) for count in (2, 4)]
        for model in models if patch else ():
            mt.patch(model)
        few, many = map(guards, models)
        return many - few

    assert of_two_layers(patch=True) <= of_two_layers(patch=False) + 2


@pytest.mark.parametrize("name", NAMES)
def test_recorded_graphs_have_our_operators(name, seed):
    model = build(name, torch.float32, seed)
    mt.patch(model)
    step, graphs = compiled(model)
    loss = step(input_ids=IDS, labels=IDS).loss
    eager = model(input_ids=IDS, labels=IDS).loss
    torch.testing.assert_close(loss, eager)
    norm = "layer_norm" if name == "GPTNeoX" else "rms_norm"
    wanted = {norm, "rope", "embedding"} | ({"gated_activation"} if norm == "rms_norm" else set())
    found = graphs.ours()
    assert all(any(one.startswith(op) for one in found) for op in wanted), found
    loss.backward()
    assert any(one.startswith(f"{norm}_backward") for one in graphs.ours())


def test_one_graph_for_all_batches(seed):
    model = build("Llama", torch.float32, seed)
    mt.patch(model)
    step, graphs = compiled(model, dynamic=True)
    for batch in (2, 3, 5):
        ids = IDS[:1].expand(batch, 9)
        with torch.no_grad():
            logits = step(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(logits, model(ids, use_cache=False).logits)
    assert len(graphs.counts) == 1
    assert not graphs.ours()


def test_eager_calls_and_exports_run_our_operators(seed):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.add(str(function).split(".")[1])
            return function(*args, **(kwargs or {}))

    model = build("Llama", torch.float32, seed)
    mt.patch(model)
    called: set[str] = set()
    with torch.no_grad(), Log():
        model(IDS, use_cache=False)
    ours = {"rms_norm", "rope", "embedding", "gated_activation"}
    assert all(any(one.startswith(op) for one in called) for op in ours), called
    norm = model.model.norm
    with torch.no_grad():
        program = torch.export.export(norm, (torch.randn(2, 64),))
    assert "membound.rms_norm" in str(program.graph)


def test_direct_calls_stay_operators_of_ours():
    model = mt.RMSNorm(16)
    for function in (mt.rms_norm, model):
        step, graphs = compiled(function)
        with torch.no_grad():
            step(torch.randn(2, 16))
        assert graphs.ours() == {"rms_norm_inference"}


def test_frozen_weights_record_what_flows_through(seed):
    """Adapters train with frozen norms, whose input requires grad."""
    model = build("Llama", torch.float32, seed)
    mt.patch(model)
    norm = model.model.norm.requires_grad_(False)
    step, graphs = compiled(norm)
    step(torch.randn(2, 64))
    assert not graphs.ours()
    step(torch.randn(2, 64, requires_grad=True))
    assert "rms_norm" in graphs.ours()
