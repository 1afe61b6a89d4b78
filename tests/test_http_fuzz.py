"""Requests made from the server's own description, sound and unsound ones: every answer is one that it describes."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serve.http.app import create_app
from serve.http.model import Parts, ServedModel
from serve.http.settings import Settings
from tests.http_server import NAME, chat_template, text_model
from tests.scripted_engine import ScriptedEngine, saying

EXAMPLES = 40
SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    text = text_model(folder)
    tokens = text.encode("def add(left, right):\n    return left + right\n")
    engine = ScriptedEngine(text.tokenizer.get_vocab_size(), text.eos_token_ids, saying(tokens))
    model = ServedModel(NAME)
    model.open(Parts(engine, text, chat_template(folder)))
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(model, Settings()))


FORMS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
PAGES = ("/v1/models", "/v1/models/{name}", "/health", "/ready", "/metrics")


def test_every_operation_is_tried(described):
    found = {(method.upper(), path) for path in described for method in described[path]}
    assert found == {("POST", path) for path in FORMS} | {("GET", path) for path in PAGES}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", FORMS)
def test_every_answer_to_a_form_is_described_and_no_fault_of_the_server(described, path, mode):
    tried(described[path]["POST"], mode)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_as_described(described, path):
    tried(described[path]["GET"], GenerationMode.POSITIVE)


def tried(operation, mode):
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=SLOW)
    @given(operation.as_strategy(generation_mode=mode))
    def run(case):
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = NAME  # a name drawn at random would hide everything behind it
        case.call_and_validate(checks=CHECKS)

    run()
