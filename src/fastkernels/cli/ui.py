"""`fk ui`: MLflow's own page on the store that runs are logged to."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys

import click

from fastkernels.errors import MissingExtraError, UsageError


@click.command(epilog="Example: fk ui --port 5000")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address that it listens on.")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
def command(host: str, port: int) -> None:
    """Serve MLflow's page on what was logged here, until Ctrl-C. Of a server that MLFLOW_TRACKING_URI names,
    the address is printed: it has its page already.
    """
    from fastkernels.report import mlflow, store

    uri = mlflow.tracking_uri()
    if uri.startswith("http"):
        click.echo(f"The server's page: {uri.rpartition('@')[2]}")
        return
    if importlib.util.find_spec("flask") is None:  # mlflow-skinny brings the client alone
        raise MissingExtraError("MLflow's server", "pip install mlflow", "fk ui")
    store.require_store()
    _require_free(host, port)
    click.echo(f"MLflow's page on {mlflow.place()}: http://{host}:{port} (Ctrl-C ends it)")
    raise SystemExit(_serve(host, port, uri))


def _require_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"{host}:{port} cannot be listened on: {why}. Name another --port") from None


def _serve(host: str, port: int, uri: str) -> int:
    """In a group of processes of its own, which ends with this one."""
    from fastkernels.report import mlflow

    where = ["--backend-store-uri", uri, "--host", host, "--port", str(port), "--workers", "1"]
    command = [sys.executable, "-W", "ignore", "-m", "mlflow", "ui", *where]
    server = subprocess.Popen(command, env=mlflow.environment(), start_new_session=True)
    try:
        return 3 if server.wait() else 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
