# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The class of a patched module: a subclass of its own, with the same name and methods of ours.

A method receives the module that is called, so copies (copy.copy, replicas of DataParallel) compute
with their own weights; a function stored as an attribute of one module would not. torch's
parametrizations and FSDP2 do the same. Pickles hold the original class and the recipes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

_OURS = "_membound_recipes"


@dataclass(frozen=True)
class Recipe:
    """Creates a method: a module-level function and its arguments, hashable and picklable."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


Recipes = tuple[tuple[str, Recipe], ...]  # by the name of the method that they make


def patched_class(module: nn.Module) -> type[nn.Module] | None:
    """Our subclass, which others may have subclassed since; None if not patched."""
    return next((cls for cls in type(module).__mro__ if _OURS in vars(cls)), None)


def recipes_of(module: nn.Module) -> dict[str, Recipe]:
    return dict(getattr(type(module), _OURS, ()))


def install(module: nn.Module, recipes: dict[str, Recipe]) -> None:
    """Give the module these methods."""
    module.__class__ = _patched(type(module), tuple(recipes.items()))


def uninstall(module: nn.Module) -> None:
    module.__class__ = type(module).__bases__[0]


@functools.cache  # equal modules share a class, and so a graph of torch.compile
def _patched(cls: type[nn.Module], recipes: Recipes) -> type[nn.Module]:
    def reduce(self: nn.Module, protocol: Any) -> Any:
        make, arguments, *state = cls.__reduce_ex__(self, protocol)
        if type(self) is patched:
            make, arguments = _empty, (cls, recipes)
        return make, arguments, *state

    methods = {name: recipe.make(*recipe.arguments) for name, recipe in recipes}
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    body = {**names, **methods, _OURS: recipes, "__reduce_ex__": reduce}
    patched = type(cls)(cls.__name__, (cls,), body)
    return patched


def _empty(cls: type[nn.Module], recipes: Recipes) -> nn.Module:
    patched = _patched(cls, recipes)
    return patched.__new__(patched)
