"""`fk serve`: one model behind the API of OpenAI."""

from __future__ import annotations

from typing import Any, TextIO

import click

from fastkernels.cli.e2e import engine_of, engine_options
from fastkernels.errors import MissingExtraError
from fastkernels.layout import install_line

_POSITIVE = click.IntRange(min=1)


@click.command(epilog="Example: fk serve --model llama --size tiny --port 8000")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="0.0.0.0: all of this machine's addresses."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one."
)
@click.option("--served-model-name", "name", metavar="NAME", help="What clients call it. Default: --model.")
@click.option(
    "--api-key",
    envvar="FK_API_KEY",
    metavar="KEY",
    help="What clients of /v1 must show; in FK_API_KEY other users of this machine do not see it.",
)
@click.option(
    "--chat-template",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Jinja, in place of the tokenizer's.",
)
@click.option(
    "--max-body-mb", type=_POSITIVE, default=64, show_default=True, help="Most of a request's body."
)
@click.option(
    "--max-requests", type=_POSITIVE, default=4096, show_default=True, help="Most answers that wait or run."
)
@click.option(
    "--drain-seconds",
    "drain_s",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="Time for open answers after SIGTERM.",
)
@engine_options
def command(
    host: str,
    port: int,
    name: str | None,
    api_key: str | None,
    chat_template: TextIO | None,
    max_body_mb: int,
    max_requests: int,
    drain_s: int,
    **flags: Any,
) -> None:
    """Serve one model over HTTP as OpenAI's API does: completions and chats, streamed or whole.

    SIGTERM and Ctrl-C end it when the open answers are finished.
    """
    from fastkernels.cli.progress import saying

    try:
        from fastkernels.serve.server import ServeOptions, serve
    except ImportError as error:
        raise MissingExtraError(str(error.name), install_line("serve"), "fk serve") from None
    if host not in ("127.0.0.1", "localhost", "::1") and api_key is None:
        saying(f"--host {host} without --api-key: whoever reaches this machine can use the model")
    served = ServeOptions(
        engine_of(flags),
        host=host,
        port=port,
        name=name,
        api_key=api_key,
        chat_template=None if chat_template is None else chat_template.read(),
        max_body=max_body_mb << 20,
        max_requests=max_requests,
        drain_s=drain_s,
    )
    serve(served, saying, lambda url: click.echo(f"serving {flags['model']} at {url}/v1"))
