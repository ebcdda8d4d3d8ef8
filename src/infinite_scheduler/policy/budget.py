"""How much memory each app may use for waiting jobs."""

from __future__ import annotations


class Budget:
    """A number of bytes that apps share; half of it is reserved, in equal parts, for the apps.

    An app that joined has a reserve of `total / (2 * apps)` that no other app can take; the rest is first come, first
    served. An app that joins while the others hold more than their part gets its reserve as they give memory back.

    An app that holds nothing may always take one job, so that no job is stuck because of its size. If such a job does
    not fit, it is counted outside the budget: the other apps lose nothing, and the total is exceeded by at most one job
    per app.
    """

    __slots__ = ("_accounts", "_claimed", "total", "used_total")

    def __init__(self, total: int) -> None:
        if total <= 0:
            raise ValueError(f"total is {total}; expected at least 1 byte")
        self.total = total
        self.used_total = 0
        self._accounts: dict[str, _Account] = {}
        self._claimed = 0  # the sum of what each account claims

    def join(self, *apps: str) -> None:
        """Give each of these apps a reserve; the reserves of the others shrink."""
        for app in apps:
            self._accounts.setdefault(app, _Account()).joined = True
        self._share()

    def leave(self, app: str) -> None:
        """End the reserve of `app`; what it still holds stays counted until it is given back."""
        account = self._joined(app)
        account.joined = False
        if not account.used:
            del self._accounts[app]
        self._share()

    def take(self, app: str, size: int) -> bool:
        """Take `size` bytes for one job if they fit, or if `app` holds nothing."""
        account = self._joined(app)
        if size > self.free(app):
            if account.used:
                return False
            account.beside = size
        self._change(account, size)
        return True

    def give(self, app: str, size: int) -> None:
        """Give back what was taken, for one job or several."""
        account = self._accounts.get(app)
        if account is None or size > account.used:
            raise ValueError(f"app {app!r} gives back {size} bytes and holds {self.used(app)}")
        self._change(account, -size)
        if not account.used and not account.joined:
            del self._accounts[app]

    def free(self, app: str) -> int:
        """How many bytes `app` could take now."""
        account = self._joined(app)
        claimed_by_others = self._claimed - account.claim
        return max(0, self.total - claimed_by_others - account.counted)

    def used(self, app: str) -> int:
        """How many bytes `app` holds."""
        account = self._accounts.get(app)
        return account.used if account else 0

    def reserve(self, app: str) -> int:
        """How many bytes are reserved for `app` alone."""
        return self._joined(app).reserve

    def _joined(self, app: str) -> _Account:
        account = self._accounts.get(app)
        if account is None or not account.joined:
            raise KeyError(f"app {app!r} has not joined the budget")
        return account

    def _change(self, account: _Account, size: int) -> None:
        self._claimed -= account.claim
        account.used += size
        self.used_total += size
        # The job outside the budget is gone if one of its size was given back (jobs of equal size are interchangeable)
        # or if what is left is smaller than it.
        if size < 0 and (account.beside == -size or account.used < account.beside):
            account.beside = 0
        self._claimed += account.claim

    def _share(self) -> None:
        """Set the reserves again after an app joined or left."""
        joined = sum(account.joined for account in self._accounts.values())
        for account in self._accounts.values():
            account.reserve = self.total // (2 * joined) if account.joined else 0
        self._claimed = sum(account.claim for account in self._accounts.values())


class _Account:
    """What one app holds and what is reserved for it."""

    __slots__ = ("beside", "joined", "reserve", "used")

    def __init__(self) -> None:
        self.joined = False
        self.reserve = 0
        self.used = 0
        self.beside = 0  # the size of a job that was taken although it did not fit

    @property
    def counted(self) -> int:
        """What is held inside the budget."""
        return self.used - self.beside

    @property
    def claim(self) -> int:
        """What no other app may take."""
        return max(self.counted, self.reserve)
