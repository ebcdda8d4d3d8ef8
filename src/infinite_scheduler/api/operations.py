"""The table: every operation of the API. Routes, OpenAPI, the page and the reference are made from it."""

from typing import Final

from infinite_scheduler.api.access_operations import ACCESS_OPERATIONS
from infinite_scheduler.api.bulk_operations import BULK_OPERATIONS
from infinite_scheduler.api.change_operations import CHANGE_OPERATIONS
from infinite_scheduler.api.cluster_operations import CLUSTER_OPERATIONS
from infinite_scheduler.api.description_operations import description_operations
from infinite_scheduler.api.health_operations import HEALTH_OPERATIONS
from infinite_scheduler.api.job_operations import JOB_OPERATIONS
from infinite_scheduler.api.ledger_operations import LEDGER_OPERATIONS
from infinite_scheduler.api.letter_change_operations import LETTER_CHANGE_OPERATIONS
from infinite_scheduler.api.letter_operations import LETTER_OPERATIONS
from infinite_scheduler.api.operation import Operation
from infinite_scheduler.api.status_operations import STATUS_OPERATIONS
from infinite_scheduler.api.store_operations import STORE_OPERATIONS

_WORKING: Final = (
    *JOB_OPERATIONS,
    *BULK_OPERATIONS,
    *CHANGE_OPERATIONS,
    *CLUSTER_OPERATIONS,
    *LETTER_OPERATIONS,
    *LETTER_CHANGE_OPERATIONS,
    *LEDGER_OPERATIONS,
    *STORE_OPERATIONS,
    *STATUS_OPERATIONS,
    *ACCESS_OPERATIONS,
    *HEALTH_OPERATIONS,
)

OPERATIONS: Final[tuple[Operation, ...]] = (*_WORKING, *description_operations(_WORKING))
