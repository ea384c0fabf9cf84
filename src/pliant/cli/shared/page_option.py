"""The option `--page`: a web page of the answers of this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from pliant.ir.reply import Reply
from pliant.run.session.session import Session

Page = Annotated[
    bool,
    typer.Option(
        "--page", help="Show the answers on a web page at loopback, until Ctrl-C or Enter (extra `node`)."
    ),
]
ReplyCallback = Callable[[Reply[Any]], None]


@contextmanager
def show_on_page(session: Session[Any], *, is_wanted: bool) -> Iterator[ReplyCallback]:
    """Yield the function that adds an answer to the page, if `is_wanted`; keep it until the user ends it."""
    if not is_wanted:
        yield lambda reply: None
        return
    from pliant import __version__
    from pliant.serve.node.start_node import NodeOptions  # needs the extra; the help does not
    from pliant.serve.page.session_page import session_page

    options = NodeOptions(version=__version__, settle_s=0.0)
    with session_page(session, options) as page:
        typer.echo(f"pliant: the page is at {page.url}", err=True)
        _wait("press Enter to start the answers")
        yield lambda reply: page.feed.record_reply(reply)
        _wait("Enter ends")


def _wait(what: str) -> None:
    """Wait for Enter on a terminal; return at once without one."""
    stdin = typer.get_text_stream("stdin")
    if stdin.isatty():
        typer.echo(f"pliant: {what}", err=True)
        stdin.readline()
