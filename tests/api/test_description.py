"""The API describes itself: OpenAPI, a page, and the reference of the docs, all from one table."""

import re
from pathlib import Path

import pytest

from infinite_scheduler.api.http_reference import http_reference
from infinite_scheduler.api.operation import Operation
from infinite_scheduler.api.operations import OPERATIONS
from infinite_scheduler.api.problem import STATUSES, problem_type
from infinite_scheduler.api.refusal import REFUSALS
from infinite_scheduler.errors import ErrorKind, InvalidRequest, UnknownApp
from infinite_scheduler.store.ledger import Role
from tests.api.api_rig import ApiRig

ROOT = Path(__file__).parents[2]


def test_the_reference_is_as_the_code_is() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    command = "python -m infinite_scheduler.api.http_reference > docs/reference/http.md"
    assert page.rstrip("\n") == http_reference().rstrip("\n"), f"run {command}"


def test_every_kind_of_error_has_a_status() -> None:
    assert set(STATUSES) == set(ErrorKind)


def test_types_of_problems_are_stable_words() -> None:
    assert problem_type(UnknownApp) == "urn:infinite-scheduler:problem:unknown-app"
    assert problem_type(InvalidRequest) == "urn:infinite-scheduler:problem:invalid-request"
    assert len({kind.word for kind in REFUSALS}) == len(REFUSALS)


def test_names_and_paths_are_unique() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_what_changes_something_needs_more_than_the_role_read(operation: Operation) -> None:
    if operation.by_page:
        assert operation.path in {"/login", "/logout"}
        return
    assert (operation.role in {Role.SUBMIT, Role.OPERATE}) is operation.changes
    assert operation.role is not None or operation.path.startswith("/health/")


async def test_openapi_names_every_operation_and_resolves(api: ApiRig) -> None:
    answer = await api.get("/openapi.json")
    document = answer.value
    assert document["openapi"] == "3.1.0"
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == {(operation.method, operation.path) for operation in OPERATIONS}
    names = set(re.findall(r'"#/components/schemas/(\w+)"', answer.content.decode()))
    assert names == set(document["components"]["schemas"]) & names
    job = document["paths"]["/v1/jobs"]["post"]
    assert {parameter["name"] for parameter in job["parameters"]} == {"Idempotency-Key", "X-Request-ID", "traceparent"}
    assert {"201", "200", "404", "409", "413", "422", "429", "503"} <= set(job["responses"])


async def test_the_page_needs_nothing_from_elsewhere(api: ApiRig) -> None:
    page = await api.get("/docs")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    text = page.content.decode()
    assert all(operation.path in text for operation in OPERATIONS)
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text
    assert "style=" not in text
    assert (await api.get("/docs.css")).headers["Content-Type"] == "text/css; charset=utf-8"
