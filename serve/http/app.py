"""The application: routes, and the layers that every request passes."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from dspine_jax.versions import version_of
from serve.http.description import RESPONSES, describe
from serve.http.errors import handle_errors
from serve.http.layers.auth import Auth
from serve.http.layers.body_size import BodySize
from serve.http.layers.hosts import Hosts
from serve.http.layers.rate import Rate
from serve.http.layers.requests import Requests
from serve.http.metrics import Metrics
from serve.http.model import ServedModel
from serve.http.routes import chat, completions, health, models, page, tokens
from serve.http.settings import Settings

ROUTERS = (chat.router, completions.router, tokens.router, models.router, health.router, page.router)


def create_app(model: ServedModel, settings: Settings) -> FastAPI:
    """An ASGI application that serves one model, which may still be loading."""
    app = FastAPI(
        title="dspine-jax",
        version=version_of("dspine-jax"),
        description="Speculative decoding behind OpenAI's protocol.",
        # The usual pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=RESPONSES,
    )
    metrics = Metrics(model)
    app.state.model, app.state.settings, app.state.metrics = model, settings, metrics
    handle_errors(app)
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: describe(app)
    # The last one added is the outermost.
    app.add_middleware(BodySize, limit=settings.max_body)
    app.add_middleware(Rate, per_minute=settings.rate_limit, burst=settings.rate_burst)
    app.add_middleware(Auth, keys=settings.api_keys)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Type"),
        )
    app.add_middleware(Hosts, allowed=settings.allowed_hosts)
    app.add_middleware(Requests, metrics=metrics, paths=frozenset(describe(app)["paths"]))
    return app
