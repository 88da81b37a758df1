"""Storage URIs as text: which ones are well-formed, and what they name. Pure: nothing is opened here.

Local paths are taken literally: no `~`, no percent decoding, no patterns. Remote paths must be plain too, because
fsspec would expand patterns and chains (`zip://...::https://...`) in them.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from multigraft.api.reasons import Reason, RefusalError
from multigraft.api.rules import climbs

LOCAL = "file"
REMOTE_SCHEMES = ("s3", "gs", "hf", "abfs", "memory")
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface-hub", "abfs": "adlfs"}

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")
_MAX_SHOWN = 120
# Characters that change how the rest of a line is shown: the direction marks of Unicode's bidirectional algorithm.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ODD_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")


@dataclass(frozen=True)
class ParsedUri:
    """A URI in parts: a scheme, and path parts without empty ones, `.` and `..`."""

    scheme: str  # `file` for local paths, with or without scheme
    parts: tuple[str, ...]  # for remote ones the first is the bucket, container or owner
    is_relative: bool  # a local path without leading slash

    @property
    def path(self) -> str:
        """Give the path as fsspec's file systems take it: absolute if local, from the bucket on if remote."""
        prefix = "/" if self.scheme == LOCAL and not self.is_relative else ""
        return prefix + "/".join(self.parts)

    def is_within(self, root: ParsedUri) -> bool:
        """Tell whether this is `root` or lies below it, part by part."""
        return self.scheme == root.scheme and self.parts[: len(root.parts)] == root.parts


def parse_uri(uri: str, *, field: str) -> ParsedUri:
    """Parse a storage URI.

    Args:
        field: The field that holds it, for the message.

    Raises:
        RefusalError: `StorageNotAllowed` for `..`, odd characters, credentials, patterns, chains and unknown schemes.
    """
    if climbs(uri):
        raise refuse(field, uri, "holds `..` or a backslash, maybe written %2e or %5c; write the path without it")
    for character in uri:
        if unicodedata.category(character) in _ODD_CATEGORIES or character in _BIDI:
            code = f"U+{ord(character):04X}"
            raise refuse(field, uri, f"holds the character {code}; control and direction characters are not allowed")
    match = _SCHEME.match(uri)
    if match is None:
        return _build(LOCAL, uri, field, uri, is_relative=not uri.startswith("/"))
    scheme = match[1].lower()
    rest = uri[match.end() :]
    if scheme not in (LOCAL, *REMOTE_SCHEMES):
        allowed = ", ".join((LOCAL, *REMOTE_SCHEMES[:-1]))
        raise refuse(field, uri, f"has the scheme {scheme[:20]!r}; allowed: a path, or one of {allowed}")
    if not rest.startswith("/"):
        raise refuse(field, uri, f"must be written {scheme}://...")
    rest = rest[1:]
    if scheme != LOCAL:
        _check_remote(scheme, rest, field, uri)
    elif not rest.startswith("/"):
        raise refuse(field, uri, "names a host; local files are file:///... or a path")
    return _build(scheme, rest, field, uri, is_relative=False)


def refuse(field: str, uri: str, what: str, reason: Reason = Reason.STORAGE_NOT_ALLOWED) -> RefusalError:
    """Build the refusal of a URI: field, value (shortened, without credentials), what is wrong."""
    return RefusalError(reason, f"{field} {show_uri(uri)} {what}")


def show_uri(uri: str) -> str:
    """Give a URI for a message: quoted, odd characters escaped, at most about 120 characters, no `user:password@`."""
    shown = re.sub(r"://[^/@]*:[^/@]*@", "://***@", uri)
    shown = ascii(shown) if not shown.isprintable() else f"'{shown}'"
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN // 2]}...{shown[-_MAX_SHOWN // 2 :]}"


def _check_remote(scheme: str, rest: str, field: str, uri: str) -> None:
    authority = rest.partition("/")[0]
    if not authority:
        raise refuse(field, uri, "names no bucket")
    # abfs writes container@account.dfs.core.windows.net
    if ":" in authority or ("@" in authority and scheme != "abfs"):
        raise refuse(field, uri[: uri.find("://")] + "://***", "holds credentials or a port; use a Secret")
    if "::" in rest or any(character in "*?[]{}\\" for character in rest):
        raise refuse(field, uri, "holds a pattern character (one of *?[]{}\\ or ::); name one object")
    if "//" in rest:
        raise refuse(field, uri, "holds an empty path part (//)")


def _build(scheme: str, rest: str, field: str, uri: str, *, is_relative: bool) -> ParsedUri:
    parts = tuple(part for part in rest.split("/") if part not in ("", "."))
    if scheme != LOCAL and "." in rest.split("/"):
        raise refuse(field, uri, "holds an empty path part (.)")
    return ParsedUri(scheme, parts, is_relative)
