"""``tensorlogic serve``: models of a folder behind the Open Inference Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .common import reported


@click.command("serve")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; only this machine reaches the default.",
)
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="The port of HTTP; 0: any."
)
@click.option("--grpc-port", type=click.IntRange(0, 65535), help="The port of gRPC; left out, there is none.")
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(1, 256), help="Processes that share the port."
)
@click.option("--name", default="tensorlogic", show_default=True, help="What the server calls itself in its metadata.")
@click.option("--load", "load", multiple=True, metavar="MODEL", help="Begin with these models only.")
@click.option(
    "--control/--no-control", default=True, show_default=True, help="Whether requests may load and unload models."
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="A file of tokens, one a line; requests need one of them."
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="A certificate (PEM): serve over TLS.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The key of the certificate.")
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
    show_default=True,
    help="How long requests may take once the server is told to end.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Record every request and step, and write them to a Chrome trace at the end.",
)
@reported
def serve_command(
    folder: Path,
    host: str,
    port: int,
    grpc_port: int | None,
    workers: int,
    name: str,
    load: tuple[str, ...],
    control: bool,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    log_requests: bool,
    limits: tuple[str, ...],
    drain_seconds: float,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Serve the models of FOLDER/NAME/VERSION/ until told to end.

    \b
    Examples:
      tensorlogic serve models/
      tensorlogic serve models/ --port 8000 --grpc-port 8001 --workers 4
      tensorlogic serve models/ --token-file tokens.txt --tls-cert cert.pem --tls-key key.pem --host 0.0.0.0
    """  # noqa: D301
    from ..serve.server import ServerConfig, read_tokens, run

    config = ServerConfig(
        str(folder),
        host,
        port,
        grpc_port,
        name,
        tuple(read_tokens(token_file)) if token_file else (),
        str(tls_cert) if tls_cert else None,
        str(tls_key) if tls_key else None,
        control,
        load or None,
        log_requests,
        drain_seconds,
        _limits(limits),
    )
    scheme = "https" if tls_cert else "http"
    if workers > 1:
        from ..serve import workers as several

        if trace is not None:
            raise click.UsageError("--trace records one process: leave out --workers")
        several.run(config, workers, lambda chosen: _say(f"{scheme}://{host}:{chosen.port}", chosen.grpc_port, as_json))
        return
    if trace is None:
        run(config, lambda server: _say(f"{scheme}://{host}:{server.port}", server.grpc_port, as_json))
        return
    from ..observe.trace import trace as record

    with record() as found:
        run(config, lambda server: _say(f"{scheme}://{host}:{server.port}", server.grpc_port, as_json))
    found.save(trace)


def _say(url: str, grpc_port: int | None, as_json: bool) -> None:
    from .common import print_json

    if as_json:
        print_json({"url": url, "grpc_port": grpc_port})
    else:
        click.echo(f"serving on {url}" + (f", gRPC on port {grpc_port}" if grpc_port else ""))


def _limits(texts: tuple[str, ...]) -> Any:
    import msgspec

    from ..errors import InputError
    from ..serve.limits import Limits
    from .common import pairs

    given: dict[str, Any] = {}
    for name, text in pairs(texts, "--limit").items():
        given[name] = None if text == "none" else float(text) if "." in text else int(text) if text.isdigit() else text
    try:
        return msgspec.convert(given, Limits)
    except msgspec.ValidationError as error:
        known = ", ".join(Limits.__struct_fields__)
        raise InputError(f"--limit: {error}", f"known: {known}", code="E490") from None
