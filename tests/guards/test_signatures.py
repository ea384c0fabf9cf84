"""Guard: the public names of `pliant`, their signatures, and the tree of errors.

A change here can break a program that imports pliant. PUBLIC and CLASSES list the public names. When a module
is renamed, only the imports below change; the golden text stays. An argument may be added with a default; one
that goes, moves or changes its default needs a line in CHANGELOG.md. Update by
`pytest tests/guards/test_signatures.py --update-golden`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from inspect import getsource
from typing import Any

import pliant
from pliant.api.open_cluster import MemberStatus
from pliant.cluster.lead.plan_inputs import Switch
from pliant.cluster.lead.run_log import Fault
from pliant.cluster.session.cluster_details import ClusterDetails
from pliant.cluster.session.cluster_plan import ClusterPlan
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.cluster.watch.fault_attribution import Verdict
from pliant.errors import PliantError
from pliant.ir.cost import Span
from pliant.ir.device import DeviceProfile
from pliant.ir.dilation import Dilation
from pliant.ir.partition import Partition, Share
from pliant.ir.reply import Reply
from pliant.plan.plan import Plan
from pliant.plan.submodel.plan_options import PlanOptions
from pliant.run.array_sessions.graph_session import GraphSession
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.call_profile import Profile
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from tests.guards.forms import shown_signature, shown_type

# `pliant.compile` and `pliant.load` are functions under the name of a module, for a little longer.
from pliant.api.compile_onnx import compile as compile_model  # isort: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "compile": compile_model,
    "load": pliant.load,
    "open": pliant.open,
}
CLASSES = (
    pliant.Cluster, ClusterDetails, ClusterPlan, ClusterSession, DeviceProfile, Dilation, ElasticDetails,
    ElasticSession, Fault, GraphSession, MemberStatus, MemoryBudget, OnnxSession, Partition, Plan,
    PlanOptions, Profile, RecurrentSession, Reply, SessionOptions, Share, Span, Switch, Verdict,
)  # fmt: skip
"""What these functions take and return."""
BUILT = (pliant.Cluster, MemoryBudget)
"""Classes whose objects a user makes; the others come from functions."""
_ASSIGNED = re.compile(r"^ {8}(self\..*?) = ", re.MULTILINE)
_OWN = re.compile(r"self\.([a-z]\w*)")
_CALLS = ("__call__", "__enter__", "__exit__")


def test_the_package_exports_what_it_did() -> None:
    """`from pliant import *` and completion; every name leads somewhere."""
    assert sorted(pliant.__all__) == sorted(["Cluster", "PliantError", "__version__", *FUNCTIONS])
    assert all(getattr(pliant, name) is not None for name in pliant.__all__)
    for name in pliant.__all__:
        assert callable(getattr(pliant, name)) or name == "__version__"


def test_functions_and_classes_have_the_signatures_they_had(golden: Callable[[str, str], None]) -> None:
    """Names, order, types and defaults of arguments; of results, fields and properties too."""
    lines = [f"pliant.{name}{shown_signature(function)}" for name, function in FUNCTIONS.items()]
    for one in CLASSES:
        lines += ["", *_class(one)]
    golden("guards/signatures.txt", "\n".join(lines) + "\n")


def _class(one: type) -> Iterator[str]:
    if not is_dataclass(one):
        yield f"class {one.__name__}{shown_signature(one) if one in BUILT else ''}"
    else:
        yield f"dataclass {one.__name__}"
        for field in one.__dataclass_fields__.values():
            yield f"  {field.name}: {shown_type(field.type)}"
    for name in _attributes(one):
        yield f"  .{name}"
    members = {name: item for base in reversed(one.__mro__[:-1]) for name, item in vars(base).items()}
    fields = getattr(one, "__dataclass_fields__", {})
    for name in sorted(members):
        item = members[name]
        if (name.startswith("_") and name not in _CALLS) or name in fields:
            continue
        if isinstance(item, property):
            yield f"  .{name} -> {shown_signature(item.fget).rpartition(' -> ')[2]}"  # type: ignore[arg-type]
        elif callable(item) or isinstance(item, classmethod | staticmethod):
            yield f"  .{name}{shown_signature(getattr(one, name))}"


def _attributes(one: type) -> list[str]:
    """Public names that a class that is no dataclass gives its objects."""
    if is_dataclass(one):
        return []
    assigned = _ASSIGNED.findall("".join(getsource(base) for base in one.__mro__[:-1]))
    return sorted({name for targets in assigned for name in _OWN.findall(targets)})


def test_the_tree_of_errors_is_as_it_was(golden: Callable[[str, str], None]) -> None:
    """A handler of a class also catches its subclasses: a class that moves up is no longer caught."""
    golden("guards/errors.txt", "\n".join(_tree(PliantError, 0)) + "\n")


def _tree(one: type[Exception], depth: int) -> Iterator[str]:
    of_package = [sub for sub in one.__subclasses__() if sub.__module__ == PliantError.__module__]
    yield "  " * depth + one.__name__ + ("" if "__init__" not in vars(one) else shown_signature(one))
    for sub in sorted(of_package, key=lambda sub: sub.__name__):
        yield from _tree(sub, depth + 1)
