# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The class of a patched module: a subclass of its own, with the same name and methods of ours.

A method finds the module that is called, so copies of all kinds (copy.copy, replicas of
DataParallel) compute with their own weights; a function among the attributes of one module cannot.
torch's parametrizations and FSDP2 do the same. Pickles hold the class underneath and the recipes.
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
    """What makes a method: a module-level function and its arguments, all hashable and pickled."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


Recipes = tuple[tuple[str, Recipe], ...]  # by the name of the method that they make


def patched_class(module: nn.Module) -> type[nn.Module] | None:
    """The subclass of ours, which others may have subclassed since; None if not patched."""
    return next((cls for cls in type(module).__mro__ if _OURS in vars(cls)), None)


def recipes_of(module: nn.Module) -> dict[str, Recipe]:
    return dict(getattr(type(module), _OURS, ()))


def put(module: nn.Module, recipes: dict[str, Recipe]) -> None:
    """Gives the module these methods."""
    module.__class__ = _patched(type(module), tuple(recipes.items()))


def take_away(module: nn.Module) -> None:
    module.__class__ = type(module).__bases__[0]


@functools.cache  # modules of one form have one class, and torch.compile one graph
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
