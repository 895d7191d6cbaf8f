"""The status page: one HTML file without anything from elsewhere; its policy lets only its own script and style run."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

PAGE = files(__package__).joinpath("status.html").read_bytes()


def _digest(tag: bytes) -> str:
    text = PAGE.split(b"<" + tag + b">", 1)[1].split(b"</" + tag + b">", 1)[0]
    return "'sha256-" + base64.b64encode(hashlib.sha256(text).digest()).decode() + "'"


POLICY = (
    f"default-src 'none'; script-src {_digest(b'script')}; style-src {_digest(b'style')}; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    f"Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Cache-Control: no-cache\r\n"
).encode()
