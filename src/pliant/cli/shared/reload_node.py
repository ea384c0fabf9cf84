"""Apply the file of `pliant node` again on SIGHUP."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from pliant.cli.shared.node_file import option_lines
from pliant.cli.shared.node_models import (
    TERMS,
    TOKEN_FILES,
    model_entries,
    objective_of,
    read_options,
    terms_of,
    tls_of,
    token_files_of,
)
from pliant.errors import InputError, NodeError, PliantError
from pliant.quantities import parse_bytes
from pliant.serve.access.credentials import Credentials, CredentialSet
from pliant.serve.access.rates import parse_rates
from pliant.serve.node.node_controls import NodeConfig, NodeControls

if TYPE_CHECKING:
    from pliant.cli.node import NodeArguments

_LOG = logging.getLogger("pliant.serve")
_TLS = ("tls_cert", "tls_key", "client_ca")
_CHANGING = ("queue", "client_rate", "client_bandwidth", "upstream", "ca", *TERMS)
"""Options of a node that may change while it runs."""
_REPLACED = ("memory", *TOKEN_FILES, *_TLS)
"""Options that may change while the node runs, but neither be added nor left out."""


async def reload_node(
    given: "NodeArguments", running: "NodeArguments", controls: NodeControls
) -> "NodeArguments":
    """Read the file again and apply what may change while the node runs; raises nothing.

    Returns the options that hold now. A file with a mistake, or with a change of an option that is fixed
    while the node runs, changes nothing; the log gives the reason.
    """
    try:
        args, tables = await asyncio.to_thread(read_options, given)  # which may download models
        _check_fixed(args, running)
        credentials = await _changed_credentials(args, controls.credentials)
        config = NodeConfig(
            entries=tuple(await asyncio.to_thread(model_entries, args, tables)),
            terms=terms_of(args),
            objective=objective_of(args),
            upstreams=tuple(args.upstream or ()),
            queue=args.queue,
            rates=parse_rates(args.client_rate, args.client_bandwidth),
            memory_bytes=None if args.memory is None else parse_bytes(args.memory),
        )
        await controls.apply(config, credentials)
    except PliantError as error:
        _LOG.error("nothing was changed: %s", error)
        return running
    _LOG.warning("%s was read again", given.config)
    return args


async def _changed_credentials(args: "NodeArguments", now: Credentials) -> CredentialSet | None:
    """Read the tokens and certificates if their paths changed. Raises InputError with a line of the file."""
    files, tls = token_files_of(args), tls_of(args)
    if (files, tls) == (now.files, now.tls):
        return None
    try:
        return await now.read(files, tls)
    except NodeError as error:
        paths = {name: getattr(args, name) for name in (*TOKEN_FILES, *_TLS, "ca")}
        lines, said = _lines(args), str(error)
        named = [lines[name] for name, path in paths.items() if name in lines and str(path) in said]
        raise InputError(f"{args.config}:{min(named, default=1)}: {error}") from error


def _check_fixed(args: "NodeArguments", running: "NodeArguments") -> None:
    """Raise InputError naming each option that cannot change while the node runs, with both values."""
    values = {one.name: (getattr(running, one.name), getattr(args, one.name)) for one in fields(args)}
    fixed = {
        name: pair
        for name, pair in values.items()
        if pair[0] != pair[1] and name not in _CHANGING and (name not in _REPLACED or None in pair)
    }
    if not fixed:
        return
    lines, told = _lines(args), []
    for name, pair in fixed.items():
        before, after = ("none" if one is None else str(one) for one in pair)
        at = f"line {lines[name]}, " if name in lines else ""
        told.append(f"{name.replace('_', '-')} ({at}{before} to {after})")
    raise InputError(
        f"{args.config}: {', '.join(told)} cannot change while the node runs: restart it, or undo the change."
    )


def _lines(args: "NodeArguments") -> Mapping[str, int]:
    return {} if args.config is None else option_lines(args.config)
