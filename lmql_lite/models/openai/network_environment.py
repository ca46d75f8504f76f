"""Proxy and trusted certificates that the environment names for a server. A server on this machine needs neither."""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import ssl
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from lmql_lite.errors import ModelError
from lmql_lite.redaction import HIDDEN

if TYPE_CHECKING:
    import httpx2

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that name trusted certificates, in the order in which they count."""
_USER = re.compile(r"(?<=:)//.*@")
"""User and password of a proxy, which may contain any character."""
_ANOTHER_WAY = "correct or unset {}, or leave the proxy out for this server: NO_PROXY={}"


@dataclass(frozen=True, slots=True)
class EnvironmentProxy:
    """Proxy for one server. `url` may hold a password, `shown` does not; `variable` is the name of its setting."""

    url: str = field(repr=False)
    shown: str
    variable: str
    host: str
    """Host of the server."""

    @classmethod
    def of(cls, url: str) -> EnvironmentProxy | None:
        """Proxy for the server at an address; None if requests go there directly."""
        parts, proxies = urlsplit(url), getproxies()
        kind = next((kind for kind in (parts.scheme, "all") if proxies.get(kind, "").strip()), None)
        host = parts.hostname or ""
        if kind is None or is_on_this_machine(host) or _is_excepted(host, parts.port, proxies.get("no", "")):
            return None
        found = proxies[kind].strip()
        names = (f"{kind}_proxy", f"{kind.upper()}_PROXY")
        variable = next((name for name in names if os.environ.get(name)), "the proxy of the system's settings")
        url = found if "://" in found else f"http://{found}"
        return cls(url, _USER.sub(f"//{HIDDEN}@", url), variable, host)

    def settings(self, trusted: ssl.SSLContext) -> httpx2.Proxy:
        """Settings of the client. Raises ModelError for a proxy that cannot be used."""
        import httpx2

        scheme, _, rest = self.url.partition("://")
        scheme = scheme.lower()
        if scheme not in ("http", "https", "socks", "socks5", "socks5h"):
            raise self._refused(f"is of a kind that is not supported, {scheme}://", "use http:// or socks5://, or ")
        try:
            parts = urlsplit(self.url)
            if not parts.hostname or parts.port == 0:
                raise self._refused("is not an address")
            made = httpx2.Proxy(
                f"{'socks5' if scheme == 'socks' else scheme}://{rest}",
                ssl_context=trusted if scheme == "https" else None,
            )
        except (ValueError, httpx2.InvalidURL):
            raise self._refused("is not an address") from None
        if scheme.startswith("socks") and find_spec("socksio") is None:
            raise self._refused("needs the package socksio, which is not installed", "pip install socksio, or ")
        return made

    def _refused(self, why: str, first: str = "") -> ModelError:
        hint = first + _ANOTHER_WAY.format(self.variable, self.host)
        return ModelError(f"the proxy {self.shown!r}, which {self.variable} names, {why}", hint=hint)


def is_on_this_machine(host: str) -> bool:
    """True for `localhost` and the addresses of this machine's own network, 127.0.0.0/8 and ::1."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def trusted_certificates(url: str) -> ssl.SSLContext:
    """Certificates that are trusted: those that the environment names, else those of the system.

    What the environment names is not needed for a server on this machine, nor without https. Raises ModelError for
    certificates that are needed and cannot be read.
    """
    parts = urlsplit(url)
    is_needed = parts.scheme == "https" and not is_on_this_machine(parts.hostname or "")
    named = tuple(os.environ.get(name) or None for name in CERTIFICATES)
    try:
        return _context(*named)
    except OSError as error:
        if not is_needed:
            return _context(None, None)
        variable, value = next((name, value) for name, value in zip(CERTIFICATES, named, strict=True) if value)
        why = "holds no certificate" if isinstance(error, ssl.SSLError) else str(error.strerror).lower()
        raise ModelError(
            f"{variable} names {value!r}, from which no certificates can be read: {why}",
            hint=f"let it name trusted certificates in PEM format, or unset {variable}",
        ) from None


@functools.lru_cache(8)
def _context(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Context of these certificates. They are kept, because each event loop would read them again."""
    import httpx2

    if file is None and folder is not None:
        os.listdir(folder)  # OpenSSL takes any name for that of a folder
    return httpx2.create_ssl_context(trust_env=file is not None or folder is not None)


def _is_excepted(host: str, port: int | None, exceptions: str) -> bool:
    """True if NO_PROXY names the host: by its name, that of its domain, its address or network, or `*`."""
    if proxy_bypass(host):
        return True
    for entry in (entry.strip().lower() for entry in exceptions.split(",")):
        name = entry.partition("://")[2] or entry
        if name == "*":
            return True
        if _is_in(host, name):
            return True
        name, _, number = name.rpartition(":") if name.count(":") == 1 else (name, "", "")
        name = name.removeprefix("*").removeprefix(".")
        if name and (host == name or host.endswith(f".{name}")) and number in ("", str(port)):
            return True
    return False


def _is_in(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network.replace("[", "").replace("]", ""), False)
    except ValueError:
        return False
