"""`nantrap serve`: the live page."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import secrets
import socket
import sys
from pathlib import Path

from nantrap.errors import MissingExtraError, UsageError
from nantrap.incident.wording import escaped


class ServeCommand:
    """Show runs in the browser while they train: health at a glance, live curves, incidents.

    RUNS_DIR is a folder of runs, or one run (default: runs, or here). The page is read-only and answers only this
    machine; with --host it can be reached from others and then needs the token that is printed. /metrics is for
    Prometheus. Needs no torch, but nantrap[serve]. Exit code 0 when it is interrupted; 2: wrong use.
    """

    name = "serve"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("runs_dir", nargs="?", metavar="RUNS_DIR", help="a folder of runs, or a run")
        parser.add_argument("--port", type=int, default=8765, metavar="N", help="default: 8765; 0 takes a free one")
        parser.add_argument(
            "--host", default="127.0.0.1", metavar="H", help="the address to bind (default: this machine)"
        )
        parser.add_argument("--token", metavar="T", help="the token to ask for (default: a new one if one is needed)")
        parser.add_argument("--no-cache", action="store_true", help="keep the index in memory, write no file")

    def run(self, arguments: argparse.Namespace) -> int:
        """Serve until it is interrupted."""
        root = _root(arguments.runs_dir)
        if not 0 <= arguments.port <= 65535:
            raise UsageError(f"--port {arguments.port}: from 0 to 65535")
        try:
            import uvicorn

            from nantrap.report.serving.access import is_loopback
            from nantrap.report.serving.app import LiveServer
            from nantrap.report.serving.connections import LimitedConnection
            from nantrap.report.serving.index import Index
        except ModuleNotFoundError as error:
            raise MissingExtraError(str(error.name), extra="serve") from None
        token = arguments.token
        if token is not None and len(token) < 8:
            raise UsageError("--token: at least 8 characters")
        if token is None and not is_loopback(arguments.host):
            token = secrets.token_urlsafe(24)
        index = Index(root, cache=None if arguments.no_cache else _cache(root))
        application = LiveServer(index).application(
            hosts=("127.0.0.1", "localhost", "::1", arguments.host), token=token
        )
        listening = _bound(arguments.host, arguments.port)
        with contextlib.closing(listening), contextlib.closing(index):
            port = listening.getsockname()[1]
            host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
            address = f"http://{host}:{port}/" + (f"?token={token}" if token else "")
            print(f"serving {escaped(str(root), most=1000)}, read-only; press Ctrl-C to stop", file=sys.stderr)
            if arguments.host in ("0.0.0.0", "::"):
                print(f"from another machine: this machine's name in place of {host}", file=sys.stderr)
            print(address, flush=True)
            config = uvicorn.Config(
                application,
                http=LimitedConnection,
                log_level="error",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
            )
            with contextlib.suppress(KeyboardInterrupt):
                uvicorn.Server(config).run(sockets=[listening])
        return 0


def _root(given: str | None) -> Path:
    root = Path(given) if given else Path("runs") if Path("runs").is_dir() else Path()
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; give the folder in which runs are written")
    return root


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket at this address; raises `UsageError` if it cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)  # the printed address can be opened at once: it waits until the server is ready
    except OSError as error:
        raise UsageError(f"{host}:{port} cannot be used: {error.strerror or error}; choose another --port") from None
    return listening


def _cache(root: Path) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return Path(base) / "nantrap" / f"serve-{name}.sqlite"
