"""The models of `pliant node` from its command line and file."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pliant.cli.shared.model_arguments import MeasuredBytes, ModelArguments, parse_model
from pliant.cli.shared.node_file import SECRETS, FileOptions, ModelCheck, NodeCheck, read_node_file
from pliant.cli.shared.refuse_options import option_text
from pliant.cli.shared.weight_bits import parse_weights
from pliant.errors import InputError, NodeError, PliantError
from pliant.ir.dilation import Dilation
from pliant.quantities import parse_bytes, parse_seconds
from pliant.route.choice.objective import Objective, parse_objective
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import check_node_name
from pliant.secret_sources import secret_path
from pliant.serve.access.credentials import TokenFiles
from pliant.serve.access.rates import parse_rates
from pliant.serve.access.security import Tls, parse_address, read_tokens
from pliant.serve.node.power import check_power, read_radio
from pliant.serve.repository.model_entry import ModelEndpoints, ModelEntry, ModelKey, distinct
from pliant.serve.repository.model_folder import models_in
from pliant.serve.upstream.callback import parse_callbacks
from pliant.serve.upstream.client import checked_url
from pliant.settings import thread_count

if TYPE_CHECKING:
    from pliant.cli.node import NodeArguments

_LOG = logging.getLogger("pliant.serve")
TOKEN_FILES = ("token_file", "peer_token_file", "operator_token_file")
TERMS = ("latency", "accuracy_floor", "best_effort", "objective")
"""Options that are defaults of requests."""
_ENDPOINTS = ("upstream", "discover", "announce", *TERMS)
"""Options of a node that a model in its file may override."""
_COMMON = ("threads", "dilate", "power")
"""Options of a node that apply to each of several models."""
_OF_ONE = (
    *("model_name", "cluster", "workers", "worker_power", "cluster_radio", "worker_radio", "key", "preload"),
    *("depths", "weights", "compute", "tolerance", "announce", "discover"),
)
"""Options of a node that several models cannot share."""
_NOT_IN_FILE = ("model", "config", "model_name", "named")
"""Options of a node that its file cannot have."""
_NO_POWER = "counts joules, which needs the power of this device"
TomlTable = Mapping[str, Any]


def _check_cluster_address(text: str) -> None:
    from pliant.cluster.net.zmq_sockets import host_and_port  # needs pyzmq

    host_and_port(text)


_PARSERS: Mapping[str, Callable[[Any], object]] = {
    **{name: lambda path: secret_path(Path(path)) for name in SECRETS},
    **dict.fromkeys(TOKEN_FILES, lambda path: read_tokens(secret_path(Path(path)))),
    **dict.fromkeys(("listen", "grpc"), parse_address),
    **dict.fromkeys(("memory", "preload"), parse_bytes),
    "cluster": _check_cluster_address,
    "address": checked_url,
    "upstream": lambda urls: [checked_url(url) for url in urls],
    "peer_network": parse_callbacks,
    "client_rate": lambda text: parse_rates(text, None),
    "client_bandwidth": lambda text: parse_rates(None, text),
    "latency": lambda text: Terms(parse_seconds(text)),
    "settle": parse_seconds,
    "name": check_node_name,
    "threads": thread_count,
    "dilate": Dilation,
    "weights": parse_weights,
    "objective": parse_objective,
    "power": check_power,
    **dict.fromkeys(("radio", "cluster_radio"), read_radio),
}
"""Parsers of the options of a node, which raise PliantError for a wrong value."""
_PARSERS_OF_MODEL: Mapping[str, Callable[[Any], object]] = {
    **_PARSERS,
    "name": ModelKey,
    "version": lambda version: ModelKey("model", version),
    "memory": lambda text: text.startswith("@") or parse_bytes(text),  # of a cluster: @FILE
}


def read_options(args: "NodeArguments") -> tuple["NodeArguments", tuple[TomlTable, ...]]:
    """Return the options, those of the command line before those of `config`, and the models of that file.

    Raises InputError for a file with mistakes, and if no model is named.
    """
    args = replace(args, **_secrets(args))
    if args.config is None:
        if not args.model and args.models is None:
            raise InputError(
                "no model is named: give MODEL, such as sst2, a file with --config, or a folder with "
                "--models."
            )
        return args, ()
    ours, theirs = _file_options(type(args))
    found = read_node_file(args.config, ours, _check_of_node(args), theirs, _check_of_models())
    if not args.model and not found.models and args.models is None and "models" not in found.node:
        raise InputError(f'{args.config} names no model: add a section [[model]] with source = "sst2".')
    default = {one.name: one.default for one in fields(args)}
    types = get_type_hints(type(args))
    said = {
        name: _parse_value(value, types[name])
        for name, value in found.node.items()
        if name not in args.named and getattr(args, name) == default[name]
    }
    return replace(args, **said), found.models


def _file_options(node: type[Any]) -> tuple[FileOptions, FileOptions]:
    """Return the options that the file may have for the node, with arguments of type `node`, and a model."""
    types = get_type_hints(node, include_extras=True)
    ours = {name: kind for name, kind in types.items() if name not in _NOT_IN_FILE}
    names = (*get_type_hints(ModelArguments), *_ENDPOINTS)
    theirs = get_type_hints(ModelArguments) | {name: types[name] for name in names if name in types}
    return FileOptions(ours, _PARSERS), FileOptions(theirs, _PARSERS_OF_MODEL)


def _check_of_node(args: "NodeArguments") -> NodeCheck:
    """Return the check of the node's options in the file, with those of the command line, `args`."""
    default = {one.name: one.default for one in fields(args)}

    def check(table: TomlTable, n_tables: int) -> Iterator[tuple[str, str]]:
        n_named = len(args.model or ())
        said = {name: value for name, value in table.items() if name not in args.named}
        for name in _OF_ONE if n_tables or n_named != 1 else ():
            is_of_one = n_tables + n_named > 1 or name not in _ENDPOINTS
            if is_of_one and said.get(name, default[name]) not in (default[name], []):
                shown = name.replace("_", "-")
                yield name, f"{shown} is an option of one model: write it into its [[model]]."
        counts_joules = "objective" in said and parse_objective(said["objective"]).per_joule
        if counts_joules and args.power is None and "power" not in said:
            above = ", above the first [[model]]" if n_tables else ""
            yield "objective", f'objective {_NO_POWER}: add power, such as power = "4.5"{above}.'

    return check


def _check_of_models() -> ModelCheck:
    """Return the check of one model after the other: its source has its options, and no two have one name."""
    known: list[ModelEntry] = []

    def check(table: TomlTable) -> Iterator[tuple[str, str]]:
        try:
            entry = ModelArguments(**_model_fields(table)).entry(ModelEndpoints())
        except PliantError as error:
            yield "source", str(error)
            return
        try:
            known[:] = distinct([*known, entry])
        except InputError as error:
            yield "name", str(error)

    return check


def model_entries(args: "NodeArguments", tables: Sequence[TomlTable]) -> list[ModelEntry]:
    """Return the entries for the repository. Raises PliantError for an invalid model or option."""
    check_model_options(args, tables)
    named, common = args.model or [], {name: getattr(args, name) for name in _COMMON}
    if _is_one(args, tables):
        own = [f.name for f in fields(ModelArguments) if hasattr(args, f.name) and f.name != "name"]
        common = {name: getattr(args, name) for name in own}
        common |= {name: tuple(getattr(args, name) or ()) for name in ("worker_power", "worker_radio")}
        common |= {"name": args.model_name}
        common |= {"memory": None if shares_memory(args) else args.memory}

    def entry_of(model: ModelArguments, own: ModelEndpoints) -> ModelEntry:
        upstreams = args.upstream if own.upstreams is None else own.upstreams
        discovers = args.discover if own.discovers is None else own.discovers
        are_others = bool(upstreams or discovers)
        return model.entry(own, has_upstreams=are_others, compute_workers=args.compute_workers)

    entries = [entry_of(ModelArguments(**common | parse_model(text)), ModelEndpoints()) for text in named]
    for table in tables:
        announce = {"announce": table.get("announce", args.announce)}
        model = ModelArguments(**common | announce | _model_fields(table))
        entries.append(entry_of(model, _endpoints(table)))
    return entries


def _model_fields(table: TomlTable) -> dict[str, Any]:
    """Return the fields of ModelArguments that the table has."""
    types = get_type_hints(ModelArguments)
    return {k: _parse_value(v, types[k]) for k, v in table.items() if k not in _ENDPOINTS}


def terms_of(args: "NodeArguments") -> Terms:
    """Return the default terms of requests. Raises InputError."""
    deadline_s = None if args.latency is None else parse_seconds(args.latency)
    return Terms(deadline_s, args.accuracy_floor, args.best_effort or None)


def objective_of(args: "NodeArguments") -> Objective:
    """Return the objective of requests. Raises PliantError, also for joules of an unknown power."""
    objective = parse_objective(args.objective)
    if objective.per_joule and args.power is None:
        raise NodeError(f"--objective {_NO_POWER}: add --power.")
    return objective


def token_files_of(args: "NodeArguments") -> TokenFiles:
    """Return the token files of each role."""
    return TokenFiles(args.token_file, args.peer_token_file, args.operator_token_file)


def tls_of(args: "NodeArguments") -> Tls:
    """Return the certificates and authorities. Raises NodeError for a certificate without a key."""
    return Tls(args.tls_cert, args.tls_key, args.ca, args.client_ca)


def shares_memory(args: "NodeArguments") -> bool:
    """Whether `--memory` limits several models together, including those that may come later."""
    return args.config is not None or args.models is not None or len(args.model or ()) > 1


def check_model_options(args: "NodeArguments", tables: Sequence[TomlTable]) -> None:
    """Raise InputError for options of a single model, unless the only model is one of the command line."""
    if _is_one(args, tables):
        return
    n_models = len(args.model or ()) + len(tables)
    names = [name for name in _OF_ONE if n_models > 1 or name not in _ENDPOINTS]
    options = [one for one in fields(args) if one.name in names]
    given = [one.name for one in options if getattr(args, one.name) not in (one.default, [])]
    if given:
        said = ", ".join(option_text(name, getattr(args, name)) for name in given)
        whose = f"{n_models} models" if n_models > 1 else "models of a file or folder"
        raise InputError(
            f"{whose} cannot share the option {said}: leave it out, or write a [[model]] that has it "
            "into a file for --config. --memory limits all models together."
        )


def _is_one(args: "NodeArguments", tables: Sequence[TomlTable]) -> bool:
    return len(args.model or ()) == 1 and not tables


def found_models(args: "NodeArguments") -> Callable[[], Sequence[ModelEntry]]:
    """Return the function that lists the models in `--models`. Raises InputError if it is not a folder."""
    folder = args.models
    if folder is None:
        return lambda: ()
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: create it, or name another one with --models.")
    common = {name: getattr(args, name) for name in _COMMON}
    measured = defaultdict[ModelKey, MeasuredBytes](MeasuredBytes)

    def find() -> Sequence[ModelEntry]:
        found = []
        for key, source in models_in(folder):
            options = ModelArguments(
                source=str(source), name=key.name, version=key.version, load=False, **common
            )
            found.append(options.found(key, measured[key], args.compute_workers))
        return found

    return find


def _endpoints(table: TomlTable) -> ModelEndpoints:
    """Raises PliantError for invalid addresses and terms."""
    deadline_s = parse_seconds(table["latency"]) if "latency" in table else None
    terms = Terms(deadline_s, table.get("accuracy_floor"), table.get("best_effort"))
    upstreams = table.get("upstream")
    return ModelEndpoints(
        None if upstreams is None else tuple(checked_url(url) for url in upstreams),
        table.get("discover"),
        table.get("announce"),
        terms,
        parse_objective(table["objective"]) if "objective" in table else None,
    )


def _secrets(args: "NodeArguments") -> dict[str, Any]:
    """Return the secret files named on the command line. Raises NodeError for an invalid credential."""
    named = {name: getattr(args, name) for name in SECRETS}
    return {name: secret_path(path) for name, path in named.items() if path is not None}


def _parse_value(value: Any, wanted: Any) -> Any:
    if isinstance(value, str) and Path in (wanted, *getattr(wanted, "__args__", ())):
        return secret_path(Path(value))
    return tuple(value) if isinstance(value, list) and "tuple" in str(wanted) else value
