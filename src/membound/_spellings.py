# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Suggests what an unknown name was meant to be; used only in error texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Other libraries' names for one argument.
_SYNONYMS = (
    {"eps", "epsilon", "variance_epsilon", "layer_norm_eps", "rms_norm_eps", "norm_eps"},
    {"x", "input", "inputs", "hidden_states", "gate", "logits", "q"},
    {"weight", "gamma", "table", "embedding"},
    {"bias", "beta"},
    {"labels", "target", "targets"},
    {"out", "output", "dst"},
    {"ids", "input", "input_ids", "indices"},
    {"position_ids", "positions", "pos_ids", "offsets"},
    {"q", "query"},
    {"k", "key"},
    {"v", "value"},
    {"dy", "grad_output", "grad", "dout"},
    {"softcap", "logit_softcap", "logits_soft_cap", "final_logit_softcapping"},
    {"label_smoothing", "smoothing"},
    {"interleaved", "rotary_interleaved"},
    {"inverse", "conjugate"},
    {"stream", "cuda_stream"},
)

# Names that are not in membound itself, and where they are.
_MODULES = ("torch", "jax")
_OF_TORCH = (
    "Embedding",
    "GatedActivation",
    "GatedRMSNorm",
    "LayerNorm",
    "RMSNorm",
    "RotaryEmbedding",
    "gated_linear",
    "linear_cross_entropy",
    "linear_log_probs",
    "patch",
    "unpatch",
)


def keyword_hint(keyword: str, parameters: Iterable[str]) -> str:
    """The end of the error for an unexpected keyword: "; did you mean 'eps'?", or nothing."""
    parameters = list(parameters)
    same = [n for names in _SYNONYMS if keyword in names for n in parameters if n in names]
    close = same or difflib.get_close_matches(keyword, parameters, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def missing_attribute(name: str, known: Iterable[str], module: str = "membound") -> AttributeError:
    """The error of ``module.<name>``, which suggests a similar name or where it is defined."""
    text = f"module '{module}' has no attribute '{name}'"
    if module == "membound" and name in _MODULES:
        text += f": it is a module of its own, import membound.{name}"
    elif module == "membound" and name in _OF_TORCH:
        text += f": it is in membound.torch, from membound.torch import {name}"
    else:
        spelt = (difflib.get_close_matches(n, list(known), n=1) for n in (name, name.lower()))
        close = next(filter(None, spelt), None)
        text += f"; did you mean '{close[0]}'?" if close else ""
    return AttributeError(text, name=name)
