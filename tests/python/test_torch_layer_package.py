# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The layers that Hugging Face's `kernels` library puts in place of those of transformers.

`nox -s layer_package` runs all of this; with the packages of the other sessions the tests that need
`kernels` are skipped, as it brings 50 MB of packages for signatures.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")
huggingface = pytest.importorskip("membound.torch.huggingface")
layers = pytest.importorskip("membound.torch.layer_package.layers")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # what kernels and transformers warn about is not ours
    pytest.mark.filterwarnings("error:membound"),
]
NORMS = {"Llama": layers.RMSNorm, "Olmo2": layers.RMSNormRoundedOnce}
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture
def kernels() -> Any:
    """The kernels library; skips the test if transformers does not accept its version."""
    library = pytest.importorskip("kernels")
    available = pytest.importorskip("transformers.utils").is_kernels_available()
    if not available:
        version, of = library.__version__, pytest.importorskip("transformers").__version__
        pytest.skip(f"transformers {of} does not take kernels {version}")
    return library


def build(name: str, seed: int) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed % 2**31)
    config = getattr(transformers, f"{name}Config")(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # weights of 1 hide where a result is rounded
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model


def norms_of(model: Any) -> list[Any]:
    return [m for m in model.modules() if "RMSNorm" in type(m).__name__]


def run(model: Any, ids: Any) -> tuple[Any, list[Any]]:
    model.zero_grad()
    logits = model(ids).logits
    logits.float().square().mean().backward()
    return logits.detach(), [p.grad.clone() for p in model.parameters()]


def in_place_of(model: Any) -> set[str]:
    """Our layers that a kernelized model calls."""
    called = [m.forward for m in model.modules() if "forward" in m.__dict__]
    for module in model.modules():
        called += [f.forward for f in getattr(module, "_kernel_funcs", {}).values()]
    return {f.__qualname__ for f in called if f.__module__ == layers.__name__}


def test_what_the_folder_holds():
    metadata = json.loads((huggingface.LAYERS / "metadata.json").read_text())
    assert metadata.keys() >= {"name", "id", "version", "license", "python-depends", "backend"}
    assert metadata["python-depends"] == []
    assert (huggingface.LAYERS / "__init__.py").is_file()
    for layer in (*NORMS.values(), layers.RotaryPosEmb):
        own = {name for name in vars(layer) if not name.startswith("__")}
        assert own == {"can_torch_compile", "has_backward", "forward"}
        assert layer.__init__ is torch.nn.Module.__init__
        assert layer.can_torch_compile


@pytest.mark.parametrize("name", NORMS)
def test_norms_have_the_bits_of_the_model(name, seed):
    for norm in norms_of(build(name, seed).bfloat16()):
        x = torch.randn(7, norm.weight.shape[0], dtype=torch.bfloat16)
        assert torch.equal(NORMS[name].forward(norm, x), type(norm).forward(norm, x))


def test_bad_rounding():
    with pytest.raises(ValueError, match=r"kernel_mapping: argument 'rounding' must be one of"):
        huggingface.kernel_mapping("twice")


@pytest.mark.parametrize("name", NORMS)
def test_same_numbers(kernels, name, seed):
    model, ids = build(name, seed), torch.randint(0, 128, (2, 9))
    before, slopes = run(model, ids)
    mapping = huggingface.kernel_mapping("before_weight" if name == "Llama" else "once")
    mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        kernels.kernelize(model, mode=mode)
    # Not every model lets its rotary function be replaced.
    assert in_place_of(model) >= {f"{NORMS[name].__name__}.forward"}
    assert name != "Llama" or "RotaryPosEmb.forward" in in_place_of(model)
    after, kernel_slopes = run(model, ids)
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(kernel_slopes, slopes)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    again, compiled_slopes = run(compiled, ids)
    torch.compiler.reset()
    torch.testing.assert_close(again, before)
    torch.testing.assert_close(compiled_slopes, slopes)


def test_models_that_use_kernels(kernels, seed):
    """transformers' own switch, with its mapping in addition to ours."""
    model = build("Llama", seed)
    with kernels.use_kernel_mapping(huggingface.kernel_mapping()):
        model.use_kernels = True
    assert in_place_of(model) == {"RMSNorm.forward", "RotaryPosEmb.forward"}


def test_on_gpus_ours_go_first(kernels, seed, monkeypatch):
    hub_kernels = pytest.importorskip("transformers.integrations.hub_kernels")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda **_: (9, 0))
    theirs = hub_kernels.register_kernel_mapping_transformers

    def ours() -> None:
        kernels.register_kernel_mapping(huggingface.kernel_mapping())

    for registered in ((theirs, ours), (ours, theirs)):
        model = build("Llama", seed)
        model.model.layers[0].mlp = torch.nn.Identity()  # their kernels would be downloaded
        model.model.layers[1].mlp = torch.nn.Identity()
        with kernels.use_kernel_mapping({}, inherit_mapping=False):
            for register in registered:
                register()
            kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cuda")
        assert in_place_of(model) == {"RMSNorm.forward", "RotaryPosEmb.forward"}
