"""What every store promises: one test each, the name of the test is the promise. Needs pytest and pytest-asyncio."""

from infinite_scheduler.testing.store_contract.accepting import (
    AcceptingContract,
    BatchingContract,
    DeduplicatingBatchesContract,
    DeduplicatingContract,
)
from infinite_scheduler.testing.store_contract.auditing import AuditingContract, TokensContract
from infinite_scheduler.testing.store_contract.changing import ChangingContract, RetryingContract
from infinite_scheduler.testing.store_contract.contract_bench import Bench, Promises
from infinite_scheduler.testing.store_contract.counting import CountingContract
from infinite_scheduler.testing.store_contract.foreseeing import DescribingContract, ForeseeingContract
from infinite_scheduler.testing.store_contract.ingesting import (
    DeadLettersContract,
    ForgettingContract,
    IngestingContract,
)
from infinite_scheduler.testing.store_contract.looking import LookingContract
from infinite_scheduler.testing.store_contract.marking import MarkingContract
from infinite_scheduler.testing.store_contract.operating import OperatingContract
from infinite_scheduler.testing.store_contract.owning import OwningContract
from infinite_scheduler.testing.store_contract.refusing import RefusingContract
from infinite_scheduler.testing.store_contract.scanning import ScanningContract, ScanningMovedContract
from infinite_scheduler.testing.store_contract.searching import SearchingContract
from infinite_scheduler.testing.store_contract.settling import SettlingContract
from infinite_scheduler.testing.store_contract.waking import WakingContract

__all__ = ["Bench", "Promises", "StoreContract"]


class StoreContract(
    AcceptingContract,
    BatchingContract,
    DeduplicatingContract,
    DeduplicatingBatchesContract,
    OwningContract,
    MarkingContract,
    WakingContract,
    ScanningContract,
    ScanningMovedContract,
    SettlingContract,
    ChangingContract,
    RetryingContract,
    LookingContract,
    SearchingContract,
    OperatingContract,
    IngestingContract,
    DeadLettersContract,
    ForgettingContract,
    CountingContract,
    ForeseeingContract,
    DescribingContract,
    AuditingContract,
    TokensContract,
    RefusingContract,
):
    """Promises of `Store` and all its ports; to test a store, say how it is created.

    Each class is about one ability, and counts for stores that declare it (`Promises.needs`); the others are skipped.

    ```python
    class TestMyStore(StoreContract):
        @pytest.fixture(autouse=True)
        def place(self, tmp_path: Path) -> None:
            self.path = tmp_path / "jobs.db"

        def make_store(self, clock: Clock) -> Store:
            return MyStore(self.path, clock)
    ```

    `make_store` is called once for each process that a test simulates; all of one test share their data. Each test
    begins with an empty store. The tests move their clock by hand and never sleep.
    """
