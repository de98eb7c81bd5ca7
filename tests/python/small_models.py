# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Small random models of every class of transformers, and inputs for them.

A configuration is made small by the names of its fields. What that leaves inconsistent is set
right in `FIXES`, by model type.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

VOCAB = 128
WIDTH = 64

# Small values and the fields that take them: the first pattern that matches a whole name applies.
# None keeps the default.
_RULES: list[tuple[int | None, str]] = [
    (None, r".*(init_std|initializer_range|_eps|epsilon|theta|_coef|_weight|scale|_factor|alpha)"),
    (VOCAB, r"(.*_)?vocab_size(_.*)?|.*_vocabulary_size|.*codebook_size|num_tokens"),
    (128, r"n_positions|(.*_)?max_position_embeddings|max_seq_len|n_ctx"),
    (128, r"max_(source|target)_positions"),
    (None, r"(.*_)?(num_)?mtp_.*|num_nextn_predict_layers"),
    (1, r"first_k_dense_replace|n_shared_experts|moe_num_shared_experts|n_group|topk_group"),
    (2, r"(.*_)?(num|n)_(hidden_|encoder_|decoder_|attention_)?layers?|n_layer|depth"),
    (2, r"(.*_)?(encoder|decoder)_layers|(.*_)?num_(blocks|.*_layers)|.*_num_(hidden_)?layers"),
    (2, r"(.*_)?(num_)?(key_value|kv)_heads|multi_query_group_num|n_kv_heads|kv_n_heads"),
    (4, r"(.*_)?(num_)?(attention_)?heads|n_heads?|.*_num_heads|num_.*_heads"),
    (8, r"rotary_dim"),
    (16, r"(.*_)?head_dim|kv_channels|d_kv|(.*_)?head_size|attention_key_size"),
    (16, r"(q|kv|o)_lora_rank|.*_rank|.*low_rank.*|lora_r"),
    (96, r"d_ff|d_inner|n_inner|(.*_)?ffn_dim|(.*_)?ffn_hidden_size|mlp_dim|ffn_.*dim|moe_.*_size"),
    (96, r"(.*_)?(intermediate|inner)_(size|dim)|.*_intermediate_size(_.*)?|.*feedforward_.*"),
    (WIDTH, r"(.*_)?hidden_(size|dim)|(.*_)?d_model|n_embd|(.*_)?embed_dim|dim|d_embed|width"),
    (WIDTH, r"(.*_)?(embedding|hidden)_(size|dim|channels)|(.*_)?(projection|output|proj)_dim"),
    (WIDTH, r"(en|de)coder_hidden.*|hidden_size_per_layer_input|upsample_groups"),
    (4, r"(num|n)_(local_|routed_|moe_)?experts|moe_num_experts"),
    (2, r"num_experts_per_tok(en)?|moe_(k|topk|top_k)|top_k_experts|num_selected_experts"),
    (32, r"image_size|img_size|input_size"),
    (8, r"patch_size"),
    (4, r".*sliding_window.*"),
]

# By model type, corrections of fields that the rules leave inconsistent.
_RECURRENT = {"num_heads": 8, "n_groups": 2}
FIXES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "dbrx": {},
    "gemma3n_text": {
        "intermediate_size": [96, 96], "activation_sparsity_pattern": [0.95, 0.0],
        "num_kv_shared_layers": 0,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": _RECURRENT,
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip
# Rotary sections of 16 columns that the defaults of a class give for 128.
_SECTIONS = {
    "glm4v_text": [2, 3, 3], "glm4v_moe_text": [1, 1, 2], "glm_ocr_text": [2, 3, 3],
    "glm_image_text": [2, 3, 3], "qwen2_vl_text": [2, 3, 3], "qwen2_5_vl_text": [2, 3, 3],
    "paddleocr_vl_text": [2, 3, 3], "qwen2_5_omni_text": [2, 3, 3],
}  # fmt: skip


def _rule(name: str, value: Any, variant: frozenset[str]) -> Any:
    """The small value of a field, of its default's type; the default itself if no rule fits."""
    if re.search("dropout|drop_rate|drop_path|pdrop|drop_prob", name) and isinstance(
        value, (int, float)
    ):
        return value if "dropout" in variant else 0.1
    if name == "head_dim" and value is None:
        return 16
    for small, pattern in _RULES:
        if not re.fullmatch(pattern, name):
            continue
        if isinstance(value, bool) or small is None:
            return value
        if small == 2 and "heads" in name and "heads" in variant:
            small = 4
        if isinstance(value, int):
            return min(small, value) if value > 0 else value
        if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
            return type(value)(min(small, v) for v in value)
        return value
    if re.fullmatch(r".*(_token_id|_token_index|_id)", name) and isinstance(value, int):
        return value if value < VOCAB else 100 + hash_of(name) % 28
    return value


def hash_of(text: str) -> int:
    return sum(ord(letter) * (index + 1) for index, letter in enumerate(text))


def small_values(config: Any, variant: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The fields of a configuration that differ in a small one.

    A variant names the rules that some models do not support: "dropout", "heads" (fewer of keys and
    values), "layers" (one of each kind).
    """
    found: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name in ("transformers_version", "rope_parameters"):
            continue
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            found[name] = small(value, variant)
            continue
        less = _rule(name, value, variant)
        if less is not value and less != value:
            found[name] = less
    layers = found.get("num_hidden_layers", getattr(config, "num_hidden_layers", None))
    for field in ("layer_types", "mlp_layer_types", "layers_block_type", "block_types"):
        kinds = vars(config).get(field)
        if not isinstance(kinds, (list, tuple)) or not kinds or not layers:
            continue
        few = list(dict.fromkeys(kinds))
        if "layers" in variant:
            few = list(kinds[:layers])
        found[field] = few + [few[-1]] * (layers - len(few))
        if field == "layer_types" or len(few) > layers:
            layers = found["num_hidden_layers"] = len(found[field])
    for name in list(found):
        if isinstance(getattr(type(config), name, None), property):
            del found[name]
    if getattr(config, "pad_token_id", 0) is None:
        found["pad_token_id"] = 0
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and rope:
        found["rope_parameters"] = _small_rope(rope)
        if config.model_type in _SECTIONS:
            found["rope_parameters"]["mrope_section"] = _SECTIONS[config.model_type]
    return found


def _small_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """Sections of 16 columns; one dictionary for each kind of layers where there are several."""
    rope = {k: _small_rope(v) if isinstance(v, dict) else v for k, v in rope.items()}
    if rope.get("mrope_section"):
        rope["mrope_section"] = [2, 3, 3][: len(rope["mrope_section"])]
    return rope


def small(config: Any, variant: frozenset[str] = frozenset()) -> Any:
    """A small configuration of the same class."""
    values = small_values(config, variant) | FIXES.get(config.model_type, {})
    return type(config)(**values)


def transformers_models() -> Path:
    (where,) = importlib.util.find_spec("transformers").submodule_search_locations
    return Path(where, "models")


def model_classes() -> Iterator[tuple[str, str]]:
    """Module and name of every class that could be a model, read from the sources."""
    for file in sorted(transformers_models().glob("*/modeling_*.py")):
        module = f"transformers.models.{file.parent.name}.{file.stem}"
        for node in ast.parse(file.read_text()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and target.id == "__all__":
                names = [e.value for e in node.value.elts]
                yield from ((module, n) for n in names if not n.endswith("PreTrainedModel"))


def load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


VARIANTS = [frozenset(names.split()) for names in (
    "", "heads", "dropout", "layers", "heads dropout", "heads layers", "heads dropout layers"
)]  # fmt: skip


def build(cls: Any, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """The class's model of a small configuration, every weight random and none zero; its inputs."""
    faults = []
    for variant in VARIANTS:
        try:
            model = _random(cls, variant, seed)
            for given in inputs(model, seed):
                try:
                    with torch.no_grad():
                        model(**given)
                except Exception as error:  # noqa: BLE001 - whatever a stranger's model raises
                    faults.append(f"does not run: {_short(error)}")
                else:
                    return model, given
        except Exception as error:  # noqa: BLE001
            faults.append(f"does not build: {_short(error)}")
    raise NotImplementedError(faults[0])


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"


def _random(cls: Any, variant: frozenset[str], seed: int) -> Any:
    torch.manual_seed(seed)
    model = cls(small(cls.config_class(), variant))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            if parameter.dim() == 1:
                centre = 0.0 if name.endswith("bias") else parameter.float().mean().nan_to_num()
                parameter.normal_(0.0, 0.1).add_(centre)
            elif parameter.std() < 1e-3 or not parameter.isfinite().all():
                parameter.normal_(0.0, 0.05)
    return model.eval()


# ---------------------------------------------------------------------------------------- inputs


def _ids(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(5, 90, shape, generator=generator)


def inputs(model: Any, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Inputs for the model's forward, by the names of its parameters."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    names = inspect.signature(model.forward).parameters
    required = [
        n for n, p in names.items()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]  # fmt: skip
    given: dict[str, Any] = {}
    main = model.main_input_name
    wanted = [main] if main in names else []
    wanted += [n for n in required if n not in wanted]
    if not wanted:
        wanted = list(names)[:1]
    for name in wanted:
        given[name] = _value(name, config, generator)
    if "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", False):
        yield {
            **given,
            "decoder_input_ids": _ids(
                generator, *given.get("input_ids", [[0] * 5] * 2)[:, :5].shape
            )
            if "input_ids" in given
            else _ids(generator, given[main].shape[0], 5),
        }
    yield given
    if main == "input_ids" and "pixel_values" in names:
        yield {**given, "pixel_values": _value("pixel_values", config, generator)}
    if "input_features" in given:
        yield {**given, "input_features": given["input_features"].transpose(1, 2)}
    eos = getattr(config, "eos_token_id", None)
    if "input_ids" in given and isinstance(eos, int):  # some look for the last token
        ended = given["input_ids"].clone()
        ended[:, -1] = eos
        yield {**given, "input_ids": ended}
    if "input_ids" in given and given["input_ids"].dim() == 2:  # of several choices
        yield {**given, "input_ids": given["input_ids"][:, None].repeat(1, 2, 1)}


def _of(config: Any, *names: str, default: Any = None) -> Any:
    for name in names:
        for holder in (
            config,
            *(getattr(config, s, None) for s in getattr(config, "sub_configs", ())),
        ):
            value = getattr(holder, name, None)
            if value is not None:
                return value
    return default


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        return size["height"], size["width"]
    return tuple(size) if isinstance(size, (list, tuple)) else (size, size)


def _value(name: str, config: Any, generator: torch.Generator) -> Any:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    if name == "pixel_values":
        height, width = _pair(_of(config, "image_size", "img_size", default=32))
        channels = _of(config, "num_channels", "in_channels", "in_chans", default=3)
        return draw(2, channels, height, width)
    if name == "pixel_values_videos":
        return draw(1, 4, 3, *_pair(_of(config, "image_size", "crop_size", default=32)))
    if name == "input_features":
        bins = _of(
            config,
            "num_mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "input_dim",
            default=80,
        )
        length = 2 * _of(config, "max_source_positions", default=32)
        return (
            draw(1, bins, length) if _of(config, "max_source_positions") else draw(1, length, bins)
        )
    if name == "input_values":
        return draw(1, 4000)
    if name in ("inputs_embeds", "hidden_states", "encoder_hidden_states"):
        return draw(2, 9, _of(config, "hidden_size", "d_model", default=WIDTH))
    if name == "bbox":
        return torch.tensor([10, 20, 30, 40]).expand(2, 9, 4)
    if name.endswith("mask"):
        return torch.ones(2, 9, dtype=torch.long)
    return _ids(generator, 2, 9)


def with_image(model: Any) -> dict[str, Any]:
    """Tokens with the slots of one image and its pixels, for a language model that reads both."""
    names = inspect.signature(model.forward).parameters
    inner = next(
        (m for m in (model, getattr(model, "model", None)) if hasattr(m, "get_image_features")),
        None,
    )
    config = model.config
    token = _of(config, "image_token_id", "image_token_index")
    vision = getattr(config, "vision_config", None)
    if not {"pixel_values", "input_ids"} <= {*names} or None in (inner, vision, token):
        return {}
    generator = torch.Generator().manual_seed(5)
    for more in _images(
        vision, {*inspect.signature(inner.get_image_features).parameters}, generator
    ):
        try:
            with torch.no_grad():
                features = inner.get_image_features(**more)
        except Exception:  # noqa: BLE001, S112 - another form of pixels
            continue
        for key in ("pooler_output", "last_hidden_state"):
            if hasattr(features, key) and getattr(features, key) is not None:
                features = getattr(features, key)
                break
        if isinstance(features, (list, tuple)):
            features = torch.cat([f.reshape(-1, f.shape[-1]) for f in features])
        if not isinstance(features, torch.Tensor):
            continue
        slots = features.reshape(-1, features.shape[-1]).shape[0]
        ids = _ids(generator, 1, slots + 6)
        ids[ids == token] = 5
        ids[0, 2 : 2 + slots] = token
        given = {"input_ids": ids, **more}
        kinds = (ids == token).long()
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in names:
                given[name] = kinds
        return given
    return {}


def _images(vision: Any, takes: set[str], generator: torch.Generator) -> Iterator[dict[str, Any]]:
    """Pixels of one image in the formats that models use."""
    height, width = _pair(_of(vision, "image_size", "img_size", default=32))
    channels = _of(vision, "num_channels", "in_channels", default=3)
    patch = _pair(_of(vision, "patch_size", default=8))[0]
    if "image_grid_thw" in takes:
        deep = _of(vision, "temporal_patch_size", default=1)
        columns = channels * deep * patch * patch
        yield {
            "pixel_values": torch.randn(16, columns, generator=generator),
            "image_grid_thw": torch.tensor([[1, 4, 4]]),
        }
    pixels = torch.randn(1, channels, height, width, generator=generator)
    if "image_sizes" in takes:
        yield {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]])}
        yield {
            "pixel_values": pixels[:, None].repeat(1, 5, 1, 1, 1),
            "image_sizes": torch.tensor([[height, width]]),
        }
    yield {"pixel_values": pixels}
    yield {"pixel_values": pixels[:, None]}
