"""GET /v1/models."""

from typing import Any

from fastapi import APIRouter, Request

from serve.http.errors import ApiError
from serve.http.routes.context import Context

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The one model."""
    return {"object": "list", "data": [_described(Context.of(request))]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """The model of this name."""
    context = Context.of(request)
    if name != context.model.name:
        raise ApiError(404, f"there is no model {name[:200]!r} here", param="model", code="model_not_found")
    return _described(context)


def _described(context: Context) -> dict[str, Any]:
    served = context.model
    length = {"max_model_len": served.parts.context} if served.opened else {}
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "dspine-jax"} | length
