"""Whom a browser may bring in: Host and Origin.

Any web page may send a browser's requests to this machine: a form or ``fetch`` with text/plain asks nobody first. And a
name that its owner points to 127.0.0.1 (DNS rebinding) makes the page's requests same-origin. A key stops both, as no
page has it. Without keys:

- A server that only its own machine can reach answers only to that machine's names, and those that the operator
  allows.
- A request that changes something, and that a browser sends for another origin, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings, host_name, is_loopback

_READING = ("GET", "HEAD", "OPTIONS")
_CHANGING_MODELS = "/v2/repository/"
_ORIGIN = re.compile(r"https?://([^/?#@]+)")
_OWN = (b"same-origin", b"none")
"""Sec-Fetch-Site of a server's own page, and of what the user typed. No page can set it."""
_KNOWN_MOST = 64
_WAY_OUT = "name the host with --allowed-host if it is this server's"


class Origins:
    """Refuses requests by Host and Origin. ``count`` gets the reason of each refusal."""

    def __init__(self, settings: ServeSettings, count: Callable[[str], None]) -> None:
        self._count = count
        self._keys, self._allowed = settings.has_keys, frozenset(settings.allowed_host)
        self._loopback = is_loopback(settings.host)
        self._any_host = "*" in self._allowed or not (self._allowed or (self._loopback and not self._keys))
        self._known: set[bytes] = set()
        """Hosts that were allowed already, so that the usual one is not taken apart again."""

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Problem(421) for a Host that is not this server's, Problem(403) for another site's page, and for models
        that anyone could load or unload."""
        host = headers.get(b"host")
        if not (self._any_host or host is None or host in self._known):
            self._check_host(host)
        if self._keys:
            return
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if (origin is not None or site is not None) and method not in _READING:
            self._check_origin(host, origin, site)
        if path.startswith(_CHANGING_MODELS):
            self._check_admin(host)

    def _check_host(self, host: bytes) -> None:
        text = host.decode("latin-1")
        if not (is_loopback(host_name(text)) or self._allows(text)):
            self._count("host")
            raise Problem(421, f"this server does not answer for the host {text[:100]!a}; {_WAY_OUT}")
        if len(self._known) < _KNOWN_MOST:
            self._known.add(host)

    def _allows(self, host: str) -> bool:
        return "*" in self._allowed or not self._allowed.isdisjoint({host.lower(), host_name(host)})

    def _check_origin(self, host: bytes | None, origin: bytes | None, site: bytes | None) -> None:
        """A page of this server, by the browser's own word or as Origin and Host are the same, or of an allowed
        host."""
        if site in _OWN:
            return
        text = (origin or b"").decode("latin-1")
        found = _ORIGIN.fullmatch(text)
        if found is not None and (self._allows(found[1]) or (site is None and _same(found[1], host))):
            return
        self._count("origin")
        raise Problem(403, f"a web page of {text[:100]!a} may not do this here; {_WAY_OUT}, or set TRNRT_API_KEYS")

    def _check_admin(self, host: bytes | None) -> None:
        """Without keys, only this machine may change models: the server listens to it alone, and Host says so."""
        if self._loopback and host is not None and is_loopback(host_name(host.decode("latin-1"))):
            return
        self._count("origin")
        raise Problem(403, "without API keys, models are loaded and unloaded on this machine only; set TRNRT_API_KEYS")


def _same(origin: str, host: bytes | None) -> bool:
    """True if an origin's host is that of Host. A proxy may have taken TLS off: 443 is as good as no port."""
    return host is not None and _bare(origin) == _bare(host.decode("latin-1"))


def _bare(host: str) -> str:
    return host.lower().removesuffix(":80").removesuffix(":443")
