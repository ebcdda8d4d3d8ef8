"""What every store promises: one test each, the name of the test is the promise. Needs pytest and pytest-asyncio."""

from infinite_scheduler.testing.store_contract.accepting import Accepting
from infinite_scheduler.testing.store_contract.bench import Bench
from infinite_scheduler.testing.store_contract.changing import Changing
from infinite_scheduler.testing.store_contract.ingesting import Forgetting, Ingesting
from infinite_scheduler.testing.store_contract.looking import Looking
from infinite_scheduler.testing.store_contract.owning import Owning
from infinite_scheduler.testing.store_contract.scanning import Scanning
from infinite_scheduler.testing.store_contract.settling import Settling
from infinite_scheduler.testing.store_contract.waking import Waking

__all__ = ["Bench", "StoreContract"]


class StoreContract(Accepting, Owning, Waking, Scanning, Settling, Changing, Looking, Ingesting, Forgetting):
    """Promises of `Store`, `Ownership` and `Inbox`; to test a store, say how it is created.

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
