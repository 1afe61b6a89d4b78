"""What handlers need of the server, and of the model that a request names."""

import dataclasses
from typing import Any

from fastapi import Request

from serve.http.errors import ApiError
from serve.http.metrics import Metrics
from serve.http.model import Parts, ServedModel
from serve.http.observing import Observation
from serve.http.settings import Settings


@dataclasses.dataclass(frozen=True)
class Context:
    """One request's surroundings."""

    model: ServedModel
    settings: Settings
    metrics: Metrics
    facts: dict[str, Any]  # for the log

    @classmethod
    def of(cls, request: Request) -> "Context":
        """From the application and the layers around it."""
        state = request.app.state
        return cls(state.model, state.settings, state.metrics, request.scope["state"]["facts"])

    def parts(self, name: str | None) -> Parts:
        """The model's. Raises ApiError for the name of another, and EngineStopped while it is loading."""
        if name is not None and name != self.model.name:
            raise ApiError(
                404,
                f"there is no model {name[:200]!r} here, only {self.model.name!r}",
                param="model",
                code="model_not_found",
            )
        return self.model.parts

    def observe(self) -> Observation:
        """Begins to note how a request for text goes."""
        return Observation(self.metrics, self.facts)

    def note_prompt(self, prompt: Any) -> None:
        """For the log, if it may hold such things."""
        if self.settings.log_prompts:
            self.facts["prompt"] = prompt
