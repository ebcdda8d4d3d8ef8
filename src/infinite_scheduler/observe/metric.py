"""Every metric of a node: its name, its kind, its labels and what it means."""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

PREFIX: Final = "infinite_scheduler_"


class MetricKind(enum.StrEnum):
    """What kind of values a metric has."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Metric(msgspec.Struct, frozen=True):
    """One metric; the name has no prefix, and that of a counter no `_total`."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]  # in the order of the alphabet, as they are shown
    meaning: str

    @property
    def full_name(self) -> str:
        """As it is shown."""
        return f"{PREFIX}{self.name}{'_total' if self.kind is MetricKind.COUNTER else ''}"


def _of(kind: MetricKind, *labels: str, **meanings: str) -> dict[str, Metric]:
    return {name: Metric(name, kind, labels, meaning) for name, meaning in meanings.items()}


METRICS: Final[Mapping[str, Metric]] = {
    **_of(MetricKind.GAUGE, "node", "version", node_info="Always 1: the name and the version of this process."),
    **_of(
        MetricKind.COUNTER,
        "app",
        jobs_accepted="New jobs that this process has accepted durably.",
        jobs_repeated="Requests that were answered with an earlier job, by their idempotency key.",
        jobs_handed_over="Jobs given to their handler.",
        jobs_done="Jobs that ended as done.",
        jobs_failed="Jobs that ended as failed.",
        jobs_expired="Jobs that ended as expired.",
        jobs_cancelled="Jobs cancelled by a call of this process or by their handler.",
        jobs_retried="Deliveries that are followed by another attempt.",
        attempts_failed="Attempts that failed, whether or not others follow.",
        jobs_held_back="Jobs that came back, as their destination took nothing; no attempt was counted.",
        jobs_early="Jobs taken back before the hand-over, as a clock was set back. None was handed over early.",
        jobs_swept="Jobs that memory had lost and the safety net found. Stays 0; anything else is a bug.",
        jobs_suspected="Jobs in flight when a process ended, handed over again in small batches.",
        jobs_poison="Jobs that failed because they end their process.",
        destination_away_seconds="Time for which the app was held back, as its destination took nothing.",
    ),
    **_of(
        MetricKind.HISTOGRAM,
        "app",
        lateness_seconds="From the due moment of a job to its hand-over.",
        handler_seconds="Duration of a call of the app's handler, with one job or a batch.",
    ),
    **_of(
        MetricKind.GAUGE,
        "app",
        waiting_jobs="Jobs in the store that are not settled, of the whole cluster.",
        oldest_overdue_seconds="Age of the oldest job on this node that is due and not handed over; 0: there is none.",
        jobs_in_flight="Jobs whose handlers run.",
        window_jobs="Jobs that were read ahead and wait in memory.",
        window_bytes="Memory for jobs that wait or are in flight.",
        shards_owned="Shards that this node owns.",
        destination_away="1: the app is held back, as its destination takes nothing.",
    ),
    **_of(
        MetricKind.SUMMARY,
        "operation",
        store_seconds="Duration of calls of the store, waits included: settle, scan (reading ahead), add, beat…",
    ),
    **_of(
        MetricKind.GAUGE,
        saturation="How far this node is behind with reading and settling: from 1 on it is.",
        store_away="1: the store does not answer; outcomes are kept.",
        store_clock_offset_seconds="The store's clock minus this machine's; absent if the store has none.",
        apps_without_node="Apps in the store that no running node can hand over.",
    ),
    **_of(
        MetricKind.COUNTER,
        store_outages="How often the store did not answer.",
        store_away_seconds="Time for which it did not, counted when it is over.",
        heartbeat_outages="How often heartbeats began to fail.",
        lease_lapses="How often this node stopped handing over, as it could not renew its lease.",
        shards_taken="Shards taken over.",
        shards_taken_unclean="Those of them that their former owner had not released.",
        shards_lost="Shards that another node took while this one still owned them.",
        outcomes_dropped="Outcomes of lost shards: these jobs are handed over again by another node.",
        shard_reloads="Shards read again from the store, after an answer that was lost.",
        tasks_failed="Unexpected errors in a part of the scheduler, which went on. Each is a bug.",
    ),
    **_of(
        MetricKind.COUNTER,
        "topic",
        ingest_messages_received="Messages read from the topic and processed durably.",
        ingest_messages_processed="Messages that became jobs.",
        ingest_messages_failed="Messages kept as dead letters.",
        ingest_messages_sent_to_dlq="Dead letters sent to the topic for them.",
        ingest_duplicates_skipped="Messages skipped by their idempotency key.",
    ),
    **_of(
        MetricKind.GAUGE,
        "group",
        "topic",
        ingest_ready="1: messages of the topic can be read and stored.",
        ingest_idempotency_keys="Idempotency keys that the store remembers.",
    ),
    **_of(
        MetricKind.GAUGE,
        "group",
        "partition",
        "topic",
        ingest_lag="Messages that wait in a partition that this node reads; absent if not known yet.",
    ),
    **_of(MetricKind.COUNTER, "method", "route", "status", http_requests="HTTP requests answered."),
    **_of(MetricKind.SUMMARY, "method", "route", http_request_seconds="Time from the head of a request to its answer."),
    **_of(
        MetricKind.COUNTER, http_streams_dropped="Event streams that were ended, as their events were not read in time."
    ),
    **_of(
        MetricKind.GAUGE,
        process_virtual_memory_bytes="Virtual memory of the process.",
        process_resident_memory_bytes="Resident memory of the process.",
        process_start_time_seconds="When the process started, in seconds since 1970.",
        process_open_fds="Open file descriptors.",
        process_max_fds="How many may be open.",
    ),
    **_of(MetricKind.COUNTER, process_cpu_seconds="CPU time that the process has used, user and system."),
}
"""By name without prefix and suffix."""
