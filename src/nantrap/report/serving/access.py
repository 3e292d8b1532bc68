"""Access control: read-only, this host's names, no other site, and a token where other machines can reach the
server."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

COOKIE = "nantrap_token"
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[\w.-]+))(?::\d{1,5})?", re.ASCII)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AccessControl:
    """Wraps the application. Holds the token and the allowed host names.

    Args:
        app: what answers.
        hosts: names in the Host header that are answered; with a token every name is, since a page of another site
            does not have the token.
        token: what a request must carry; `None` on a loopback address.
    """

    def __init__(self, app: Any, *, hosts: Iterable[str], token: str | None = None) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope)
        refused = self._refusal(request)

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = {name for name, _ in message["headers"]}
                extra = [
                    (n.lower().encode(), c.encode()) for n, c in _HEADERS.items() if n.lower().encode() not in kept
                ]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        await (refused or self._app)(scope, receive, sent)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that is refused, or `None`.

        A page of another site must not read the run: not by a name that leads here, and not by a request from a script.
        """
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("read-only: only GET is answered", 405, headers={"Allow": "GET, HEAD"})
        host = _name(request.headers.get("host", ""))
        if self._token is None and host not in self._hosts:
            return PlainTextResponse("this name is not served here; open the address that nantrap serve printed", 421)
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
            return PlainTextResponse("requests from other sites are not answered", 403)
        site = request.headers.get("sec-fetch-site")
        if site in ("cross-site", "same-site") and request.headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("requests from other sites are not answered", 403)
        return self._without_token(request)

    def _without_token(self, request: Request) -> Response | None:
        """The answer to a request without the token, or `None` if it has it: in a header or in the cookie.

        A token in the address is put into a cookie, so that it does not stay in the browser's history.
        """
        if self._token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and _same(given, self._token):
            target = request.url.path.lstrip("/")
            answer = RedirectResponse("/" + target.replace("\\", ""), 303)
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self._token):
            return None
        if _same(request.cookies.get(COOKIE, ""), self._token):
            return None
        return PlainTextResponse("a token is needed: open the address that nantrap serve printed", 401)


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _name(host: str) -> str:
    """The name in a Host header, without its port; empty for what is no name and port."""
    match = _HOST.fullmatch(host.strip().lower())
    return (match["address"] or match["name"]) if match else ""
