"""Shapes and dtypes of annotated arrays are checked when functions are called, by jaxtyping's import hook.

What names no array in its annotations is left out, as modules without arrays are: mypy alone checks it. Of
the functions in modules with arrays these are two thirds, and checks of all their calls double the time of a
plan. Functions inside functions are left out as well: each call of the outer one makes them anew, and
jaxtyping would wrap them anew, for 4 ms each. The modules that write IR have many.
"""

import ast
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

import jaxtyping
from beartype import beartype as beartype
from jaxtyping import AbstractArray, _import_hook, install_import_hook

_Transformer = _import_hook.JaxtypingTransformer
_visit = _Transformer.visit_FunctionDef
_jaxtyped = jaxtyping.jaxtyped


def install(modules: Sequence[str]) -> None:
    """Check `modules` from their import on."""
    _Transformer.visit_FunctionDef = _visit_outermost
    jaxtyping.jaxtyped = _jaxtyped_with_arrays  # what transformed code calls
    # Not `beartype.beartype`: the name is a part of the file names under which transformed code is kept.
    install_import_hook(modules, "tests.shape_checks.beartype")


def _visit_outermost(self: _import_hook.JaxtypingTransformer, node: ast.FunctionDef) -> ast.FunctionDef:
    is_inner = any(isinstance(parent, ast.FunctionDef) for parent in self._parents)
    self._no_type_check_level += is_inner
    _visit(self, node)
    self._no_type_check_level -= is_inner
    return node


def _jaxtyped_with_arrays(*, typechecker: Any) -> Callable[[Any], Any]:
    """jaxtyping's decorator of functions and dataclasses; nothing is done to those that name no array."""
    jaxtyped = _jaxtyped(typechecker=typechecker)
    return lambda one: jaxtyped(one) if names_array(one) else one


def names_array(one: Any) -> bool:
    """Whether an annotation of a function, or of a field of a dataclass, names an array."""
    function = one.__init__ if isinstance(one, type) else one
    return any(map(_has_array, getattr(function, "__annotations__", {}).values()))


def _has_array(annotation: Any) -> bool:
    """Also within unions, containers and callables; a string may stand for anything."""
    if isinstance(annotation, list):
        return any(map(_has_array, annotation))
    if isinstance(annotation, str):
        return True
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return True
    return get_origin(annotation) is not Literal and any(map(_has_array, get_args(annotation)))
