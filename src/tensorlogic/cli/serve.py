"""``tensorlogic serve``: models of a folder behind the Open Inference Protocol."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from .common import FILE, pairs, print_json, reported

PORT = click.IntRange(0, 65535)


@click.command("serve")
@click.argument("folder", type=FILE)
@click.option(
    "--host",
    default="127.0.0.1",
    help="The address to listen on; only this machine reaches the default.",
)
@click.option("--port", default=8000, type=PORT, help="The port of HTTP; 0: any.")
@click.option("--grpc-port", type=PORT, help="The port of gRPC; without it gRPC is not served.")
@click.option("--workers", default=1, type=click.IntRange(1, 256), help="Processes that share the port.")
@click.option("--name", default="tensorlogic", help="What the server calls itself in its metadata.")
@click.option("--load", "load", multiple=True, metavar="MODEL", help="Begin with these models only.")
@click.option("--control/--no-control", default=True, help="Whether requests may load and unload models.")
@click.option("--token-file", type=FILE, help="A file of tokens, one a line; requests need one of them.")
@click.option("--tls-cert", "certificate", type=click.Path(), help="A certificate (PEM): serve over TLS.")
@click.option("--tls-key", "key", type=click.Path(), help="The key of the certificate.")
@click.option("--log-requests", is_flag=True, help="Write a line for each request to standard error.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="A limit of requests: body_bytes, flops, memory_bytes, seconds, rank, ...; repeat for several.",
)
@click.option(
    "--drain-seconds",
    default=30.0,
    help="How long requests may take once the server is told to end.",
)
@click.option("--trace", type=FILE, help="Record every request and step, and write them to a Chrome trace at the end.")
@reported
def serve_command(
    folder: Path,
    workers: int,
    load: tuple[str, ...],
    token_file: Path | None,
    limits: tuple[str, ...],
    trace: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Serve the models of FOLDER/NAME/VERSION/ until told to end.

    \b
    Examples:
      tensorlogic serve models/
      tensorlogic serve models/ --port 8000 --grpc-port 8001 --workers 4
      tensorlogic serve models/ --token-file tokens.txt --tls-cert cert.pem --tls-key key.pem --host 0.0.0.0
    """  # noqa: D301
    from ..observe.trace import trace as record
    from ..serve.server import ServerConfig, read_tokens, run

    tokens = tuple(read_tokens(token_file)) if token_file else ()
    config = ServerConfig(str(folder), tokens=tokens, load=load or None, limits=_limits(limits), **settings)

    def started(server: Any) -> None:
        url = f"{'https' if config.certificate else 'http'}://{config.host}:{server.port}"
        if as_json:
            print_json({"url": url, "grpc_port": server.grpc_port})
        else:
            click.echo(f"serving on {url}" + (f", gRPC on port {server.grpc_port}" if server.grpc_port else ""))

    if workers > 1:
        from ..serve import workers as several

        if trace is not None:
            raise click.UsageError("--trace records one process: leave out --workers")
        several.run(config, workers, started)
        return
    with nullcontext() if trace is None else record() as found:
        run(config, started)
    if found is not None and trace is not None:
        found.save(trace)


def _limits(texts: tuple[str, ...]) -> Any:
    import msgspec

    from ..errors import InputError
    from ..serve.limits import Limits

    given: dict[str, Any] = {}
    for name, text in pairs(texts, "--limit").items():
        given[name] = None if text == "none" else float(text) if "." in text else int(text) if text.isdigit() else text
    try:
        return msgspec.convert(given, Limits)
    except msgspec.ValidationError as error:
        known = ", ".join(Limits.__struct_fields__)
        raise InputError(f"--limit: {error}", f"known: {known}", code="E490") from None
