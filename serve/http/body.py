"""A request's body, read and checked; every fault is an answer that names the field."""

import asyncio

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from serve.http.errors import ApiError, ClientGone, refused
from serve.http.schema.common import Body
from serve.http.schema.refused import refusal
from serve.http.settings import Settings

MAX_SHOWN = 3  # faults of one body that its error tells


async def read_body[B: Body](request: Request, form: type[B]) -> B:
    """Raises ApiError: 400, 408, 413 or 415."""
    settings: Settings = request.app.state.settings
    _check_type(request)
    try:
        async with asyncio.timeout(settings.body_timeout):
            data = await request.body()
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {settings.body_timeout:g} seconds", code="timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    return parse(data, form)


def parse[B: Body](data: bytes, form: type[B]) -> B:
    """Raises ApiError for what is no JSON object of this form."""
    try:
        body = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise refused(f"the body is not valid JSON: {error}", None, "invalid_json") from None
    if not isinstance(body, dict):
        raise refused(f"the body is a JSON {type(body).__name__}, wanted an object", None, "invalid_json")
    if (found := refusal(body, form.refusals)) is not None:
        name, why = found
        raise refused(f"{name} is not supported: {why}", name, "unsupported_parameter")
    try:
        return form.model_validate(body)
    except ValidationError as error:
        raise _of_validation(error) from None


def _check_type(request: Request) -> None:
    kind, *options = (part.strip().lower() for part in request.headers.get("content-type", "").split(";"))
    if kind != "application/json":
        raise ApiError(
            415, f"the content type is {kind[:80]!r}, wanted application/json", code="unsupported_media_type"
        )
    for option in options:
        name, _, value = option.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8"):
            raise ApiError(415, "the charset must be utf-8, the only one of JSON", code="unsupported_media_type")
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise ApiError(415, f"the content encoding is {coding[:80]!r}, wanted none", code="unsupported_media_type")


def _of_validation(error: ValidationError) -> ApiError:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    # An unknown field is told first: it is often why another one is missing.
    faults.sort(key=lambda fault: fault["type"] != "extra_forbidden")
    first = faults[0]
    code = {"extra_forbidden": "unknown_parameter", "missing": "missing_parameter"}.get(first["type"], "invalid_value")
    shown = "; ".join(map(_sentence, faults[:MAX_SHOWN]))
    if len(faults) > MAX_SHOWN:
        shown += f"; and {len(faults) - MAX_SHOWN} more faults"
    return refused(shown, _place(first) or None, code)


def _place(fault: ErrorDetails) -> str:
    """Of ("messages", 0, "role"): messages[0].role."""
    place = ""
    for part in fault["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    return place[:200]


def _sentence(fault: ErrorDetails) -> str:
    place, what = _place(fault), fault["msg"]
    if fault["type"] == "extra_forbidden":
        return f"{place} is unknown or not supported; leave it out"
    if fault["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {what[:1].lower()}{what[1:]}" if place else what
