"""What every store promises: one test each, the name of the test is the promise. Needs pytest and pytest-asyncio."""

from infinite_scheduler.testing.store_contract.accepting import Accepting, Batching, Deduplicating, DeduplicatingBatches
from infinite_scheduler.testing.store_contract.bench import Bench, Promises
from infinite_scheduler.testing.store_contract.changing import Changing, Retrying
from infinite_scheduler.testing.store_contract.ingesting import Forgetting, Ingesting
from infinite_scheduler.testing.store_contract.looking import Looking, Searching
from infinite_scheduler.testing.store_contract.marking import Marking
from infinite_scheduler.testing.store_contract.operating import Operating
from infinite_scheduler.testing.store_contract.owning import Owning
from infinite_scheduler.testing.store_contract.refusing import Refusing
from infinite_scheduler.testing.store_contract.scanning import Scanning, ScanningMoved
from infinite_scheduler.testing.store_contract.settling import Settling
from infinite_scheduler.testing.store_contract.waking import Waking

__all__ = ["Bench", "Promises", "StoreContract"]


class StoreContract(
    Accepting,
    Batching,
    Deduplicating,
    DeduplicatingBatches,
    Owning,
    Marking,
    Waking,
    Scanning,
    ScanningMoved,
    Settling,
    Changing,
    Retrying,
    Looking,
    Searching,
    Operating,
    Ingesting,
    Forgetting,
    Refusing,
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
