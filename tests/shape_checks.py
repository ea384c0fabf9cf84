"""Shapes and dtypes of annotated arrays are checked when functions are called, by jaxtyping's import hook.

Functions inside functions are left out: each call of the outer one makes them anew, and jaxtyping would
wrap them anew, for 4 ms each. The modules that write IR have many.
"""

import ast
from collections.abc import Sequence

from beartype import beartype as beartype
from jaxtyping import _import_hook, install_import_hook

_Transformer = _import_hook.JaxtypingTransformer
_visit = _Transformer.visit_FunctionDef


def install(modules: Sequence[str]) -> None:
    """Check `modules` from their import on."""
    _Transformer.visit_FunctionDef = _visit_outermost
    # Not `beartype.beartype`: the name is a part of the file names under which transformed code is kept.
    install_import_hook(modules, "tests.shape_checks.beartype")


def _visit_outermost(self: _import_hook.JaxtypingTransformer, node: ast.FunctionDef) -> ast.FunctionDef:
    is_inner = any(isinstance(parent, ast.FunctionDef) for parent in self._parents)
    self._no_type_check_level += is_inner
    _visit(self, node)
    self._no_type_check_level -= is_inner
    return node
