"""The server's socket, opened before anything else, so that a wrong address fails at once."""

from __future__ import annotations

import errno
import socket

from trnrt.errors import OptionError

BACKLOG = 2048
_REASONS = {
    errno.EADDRINUSE: ("is in use", "take another with {flag}, or any free one with {flag} 0"),
    errno.EACCES: ("is not open to this user", "take one from 1024 on with {flag}"),
    errno.EADDRNOTAVAIL: ("is no address of this machine", "name one of its addresses with --host"),
}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; connections queue from now on. OptionError if that fails."""
    listener = bind_socket(host, port, BACKLOG)
    listener.setblocking(False)
    return listener


def reserve_port(host: str, port: int) -> socket.socket:
    """A socket that holds a port for servers of this user that listen with SO_REUSEPORT, and takes no connection.

    OptionError if that fails. Other servers are kept out, unless they set SO_REUSEPORT themselves.
    """
    reserved = bind_socket(host, port, flag="--grpc-port")
    # After the bind, which must fail if anybody has the port. With SO_REUSEADDR others could bind it, too.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return reserved


def address_of(bound: socket.socket) -> str:
    """A socket's own address, HOST:PORT; an IPv6 address stands in brackets."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind_socket(host: str, port: int, backlog: int | None = None, flag: str = "--port") -> socket.socket:
    """A socket that reserves the port; it listens only if there is a ``backlog``. OptionError if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise OptionError(f"--host {host!r} is no address: {error}", hint="127.0.0.1 is this machine alone") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if backlog is not None:
            listener.listen(backlog)
    except OSError as error:
        listener.close()
        why, hint = _REASONS.get(error.errno or 0, ((error.strerror or str(error)).lower(), None))
        hint = hint and hint.format(flag=flag)
        raise OptionError(f"can't listen on {host}, port {port}: it {why}", hint=hint) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    return url_text({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def url_text(host: str, port: int) -> str:
    """The URL; an IPv6 address stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
