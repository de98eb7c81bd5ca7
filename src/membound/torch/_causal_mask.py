# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Replacements of transformers' mask functions for calls without a mask, positions or a cache.

It is imported only with a model of transformers, because compiled code follows no import.
"""

from __future__ import annotations

from typing import Any

from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from membound.torch._patch_mask import DECIDES

# The arguments of a purely causal call; the cache is new, as the caller gave none.
_PLAIN = {"config", "inputs_embeds", "input_embeds", *DECIDES}


# Functions rather than partials: the compiler looks a partial's function up by its global name.
def causal(*args: Any, **given: Any) -> Any:
    plain = not args and _is_plain(given)
    return None if plain else create_causal_mask(*args, **given)


def sliding(*args: Any, **given: Any) -> Any:
    plain = not args and _is_plain(given) and _length(given) < given["config"].sliding_window
    return None if plain else create_sliding_window_causal_mask(*args, **given)


OURS = {create_causal_mask: causal, create_sliding_window_causal_mask: sliding}


def _length(given: dict[str, Any]) -> int:
    name = "inputs_embeds" if "inputs_embeds" in given else "input_embeds"
    return given[name].shape[1]


def _is_plain(given: dict[str, Any]) -> bool:
    config = given["config"]
    if config._attn_implementation != "sdpa" or not getattr(config, "is_causal", True):
        return False
    masked = given.get("attention_mask") is not None
    return not masked and all(given[name] is None for name in given if name not in _PLAIN)
