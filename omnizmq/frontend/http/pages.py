"""The pages for a browser: `/`, where one talks with the deployment, `/deployment`, which shows it, and `/docs`, which
shows the API.

They are files of the package (`pages/`), served as they are: no build step, nothing from elsewhere. What they show they
ask of the same API as everybody, so they need no key to be loaded, and one to be of use where there are keys.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

PATHS = {"/": "index.html", "/deployment": "deployment.html", "/docs": "docs.html"}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    # Scripts, styles and requests of this origin alone, and nothing inline: a text that became markup could do nothing.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Kept, but asked for each time by its etag: a page never meets the scripts of another version.
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class _File:
    body: bytes
    media_type: str
    etag: str


def routes() -> APIRouter:
    """For pages and all that they load."""
    router = APIRouter(include_in_schema=False)
    kept = {file.name: _file(file.name, file.read_bytes()) for file in (files(__package__) / "pages").iterdir()}
    for name, file in kept.items():
        _add(router, f"/pages/{name}", file)
    for path, name in PATHS.items():
        _add(router, path, kept[name])
    return router


def _file(name: str, body: bytes) -> _File:
    return _File(body, _TYPES[name.rpartition(".")[2]], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _add(router: APIRouter, path: str, file: _File) -> None:
    async def page(request: Request) -> Response:
        headers = {**_HEADERS, "etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(None, 304, headers)
        return Response(file.body, 200, headers, file.media_type)

    router.add_api_route(path, page, methods=["GET", "HEAD"])
