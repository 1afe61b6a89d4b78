"""The OpenAPI description: bodies are read by hand, so their forms are described by hand as well."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from serve.http.schema.chat import ChatRequest
from serve.http.schema.completions import CompletionRequest
from serve.http.schema.tokens import DetokenizeRequest, TokenizeRequest

FORMS = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
REFERENCE = "#/components/schemas/{model}"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
STATUSES = {
    400: "The request cannot be served; the error names the field.",
    401: "The API key is missing or not known.",
    403: "The Host header is not this server's.",
    404: "There is no such model, or nothing at this path.",
    405: "The path takes another method.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    429: "Too many requests; Retry-After says when to come back.",
    500: "This request failed; others are not affected.",
    503: "Not now; Retry-After says when to come back.",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": REFERENCE.format(model="Error")}}},
    }
    for status, text in STATUSES.items()
}


def takes(form: type[BaseModel]) -> dict[str, Any]:
    """For a route whose body has this form."""
    schema = {"$ref": REFERENCE.format(model=form.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole description."""
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, definitions = models_json_schema([(form, "validation") for form in FORMS], ref_template=REFERENCE)
    for path in made["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # what is wrong is always a 400
    made.setdefault("components", {})["schemas"] = definitions["$defs"] | {"Error": ERROR}
    return made
