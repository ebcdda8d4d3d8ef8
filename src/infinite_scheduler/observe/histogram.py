"""How values are spread: counts in buckets that grow with the value, whatever the number of values."""

from collections.abc import Iterable, Mapping
from typing import Final, Self


class Histogram:
    """Counts whole numbers in buckets, each at most an eighth wide: exact below 16."""

    BUCKETS: Final = 368  # up to 48 bits

    __slots__ = ("count", "counts", "largest", "total")

    def __init__(self) -> None:
        self.counts = [0] * self.BUCKETS
        self.count = 0
        self.total = 0
        self.largest = 0

    @classmethod
    def of(cls, buckets: Mapping[int, int]) -> Self:
        """The histogram with these counts, by bucket; its total and its largest value are only known about."""
        histogram = cls()
        for bucket, count in buckets.items():
            if 0 <= bucket < cls.BUCKETS and count > 0:
                histogram.counts[bucket] += count
                histogram.count += count
                histogram.total += count * upper(bucket)
                histogram.largest = max(histogram.largest, upper(bucket))
        return histogram

    def add(self, values: Iterable[int]) -> None:
        """Add these; negative values count as 0."""
        counts = self.counts
        seen = [max(0, value) for value in values]
        for value in seen:
            if value < 16:
                counts[value] += 1
            else:
                shift = value.bit_length() - 4
                counts[min((shift << 3) + (value >> shift), self.BUCKETS - 1)] += 1
        if seen:
            self.count += len(seen)
            self.total += sum(seen)
            self.largest = max(self.largest, *seen)

    def quantile(self, fraction: float) -> int:
        """The value that this fraction did not exceed: never too small, and at most an eighth too large."""
        rank = fraction * self.count
        reached = 0
        for bucket, count in enumerate(self.counts):
            reached += count
            if count and reached >= rank:
                return min(upper(bucket), self.largest)
        return 0

    def sparse(self) -> dict[int, int]:
        """Few buckets instead of many, without the empty ones: two per power of two, each counted in its last one.

        Quantiles of them are at most a half too large.
        """
        found: dict[int, int] = {}
        for bucket, count in enumerate(self.counts):
            if count:
                last = _LAST[bucket]
                found[last] = found.get(last, 0) + count
        return found

    def below(self, exponents: Iterable[int]) -> list[int]:
        """How many values are below each of these growing powers of two, at which buckets begin: exact."""
        reached, start, found = 0, 0, []
        for exponent in exponents:
            end = 1 << exponent if exponent < 4 else (exponent - 2) << 3
            reached += sum(self.counts[start:end])
            found.append(reached)
            start = end
        return found


def _last_of_half(bucket: int) -> int:
    """The last bucket of the same half of a power of two: exact below 4, then 4-5, 6-7, 8-11, 12-15…"""
    if bucket < 4:
        return bucket
    if bucket < 16:
        half = 1 << (bucket.bit_length() - 2)
        return bucket | (half - 1)
    return bucket | 3


def upper(bucket: int) -> int:
    """The largest value in this bucket."""
    if bucket < 16:
        return bucket
    shift, step = (bucket >> 3) - 1, 8 + (bucket & 7)
    return ((step + 1) << shift) - 1


_LAST: Final = tuple(_last_of_half(bucket) for bucket in range(Histogram.BUCKETS))
