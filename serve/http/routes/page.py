"""The web page, and the rules under which a browser shows it."""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from serve.http.errors import ApiError

FOLDER = Path(__file__).parent.parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
HEADERS = {
    # Scripts, styles and requests of this server only; nobody may frame it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index() -> Response:
    """The page."""
    return _file("index.html")


@router.get("/page/{name}")
async def file(name: str) -> Response:
    """A file that belongs to it."""
    return _file(name)


def _file(name: str) -> Response:
    # Only names that are in the folder are opened, whatever was asked for.
    found = {path.name: path for path in FOLDER.glob("*") if path.suffix in TYPES and path.is_file()}
    if name not in found:
        raise ApiError(404, f"the page has no file {name[:100]!r}", code="not_found")
    return FileResponse(found[name], media_type=TYPES[found[name].suffix], headers=HEADERS)
