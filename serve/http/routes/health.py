"""GET /health, /ready and /metrics."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from serve.http.errors import ApiError, retry_after
from serve.http.metrics import CONTENT_TYPE
from serve.http.model import RETRY_LOADING
from serve.http.routes.context import Context

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """Whether the process is worth keeping: 503 when the engine has broken down."""
    state = Context.of(request).model.state
    if state == "broken":
        raise ApiError(503, "the engine has broken down; restart the server", code="engine_broken")
    return JSONResponse({"status": "ok", "engine": state})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Whether requests for text are taken: 503 while the model loads and while the server shuts down."""
    model = Context.of(request).model
    if model.ready:
        return JSONResponse({"status": "ready", "model": model.name})
    what = "shutting down" if model.leaving else f"not ready: {model.progress}"
    raise ApiError(503, f"the server is {what}", code="not_ready", headers=retry_after(RETRY_LOADING))


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus's text format."""
    return Response(Context.of(request).metrics.text(), media_type=CONTENT_TYPE)
