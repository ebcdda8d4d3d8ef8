"""Which block of the two guides is replayed by which test.

The SMS retry guide is about `SMS_Retry` and `SMS_Send`, the ingest guide about `scheduler.jobs.ingest`. Java is Python
here, hosts are loopback, and minutes are seconds; names, options, payloads and numbers are those of the guides.
"""

from collections.abc import Sequence
from typing import Final

from tests.kafka.guides import test_ingest_guide, test_sms_retry_guide

SMS_RETRY: Final = "the SMS retry guide"

INGEST: Final = "the ingest guide"


BLOCKS: Final[Sequence[tuple[str, str, str]]] = (  # guide, block, the test that replays it
    (SMS_RETRY, "topics: the payload of SMS_Retry and that of SMS_Send", "test_the_payloads_of_both_topics"),
    (SMS_RETRY, "setup 1: start the scheduler", "test_the_payloads_of_both_topics"),
    (SMS_RETRY, "setup 2: send retry requests", "test_the_producer_in_both_its_forms"),
    (SMS_RETRY, "setup 3: consume retry results", "test_a_service_that_fails_and_one_that_sends"),
    (SMS_RETRY, "integration 1: the SMS service, with its back-off", "test_a_service_that_fails_and_one_that_sends"),
    (SMS_RETRY, "integration 1: calculateRetryTime", "test_the_back_off_of_the_guide"),
    (SMS_RETRY, "integration 2: run the scheduler from a command line", "test_the_scheduler_from_a_command_line"),
    (SMS_RETRY, "integration 3: the consumer with a maximum", "test_a_service_that_fails_and_one_that_sends"),
    (SMS_RETRY, "demo: create topics", "test_topics_are_made_by_the_admin_api"),
    (SMS_RETRY, "demo: create topics", "test_topics_are_made_by_the_command"),
    (SMS_RETRY, "demo: run the example", "test_the_three_examples_side_by_side"),
    (SMS_RETRY, "message format: ScheduleJobRequest", "test_a_request_with_priority_and_key"),
    (SMS_RETRY, "production: three instances", "test_three_instances_share_the_partitions"),
    (SMS_RETRY, "production: tuning parameters", "test_the_configuration_of_production"),
    (SMS_RETRY, "monitoring: consumer lag", "test_the_lag_of_a_group"),
    (SMS_RETRY, "monitoring: the dead letter queue", "test_the_reasons_for_the_dead_letter_queue"),
    (SMS_RETRY, "monitoring: metrics", "test_metrics_and_health"),
    (SMS_RETRY, "troubleshooting: the jobs in the database", "test_the_query_for_scheduled_jobs"),
    (SMS_RETRY, "troubleshooting: headers of dead letters", "test_the_reasons_for_the_dead_letter_queue"),
    (INGEST, "quick start 1: configure the scheduler, register three apps", "test_the_quick_start"),
    (INGEST, "quick start 2: a producer with a callback", "test_the_quick_start"),
    (INGEST, "options: the whole builder", "test_a_topic_is_read_with_every_option_set"),
    (INGEST, "options: the defaults", "test_every_option_has_its_documented_default"),
    (INGEST, "options: three forms of withKafkaIngest", "test_the_three_forms_of_with_kafka_ingest"),
    (INGEST, "message format: the JSON and its fields", "test_the_message_of_the_ingest_guide"),
    (INGEST, "features 1: idempotency", "test_the_same_key_is_skipped"),
    (INGEST, "features 2: the five headers", "test_the_reasons_for_the_dead_letter_queue"),
    (INGEST, "features 3: retries after 200, 400, 800 ms", "test_a_message_is_tried_again_after_200_400_800_ms"),
    (INGEST, "features 4: manual commit", "test_the_lag_of_a_group"),
    (INGEST, "features 4: enableAutoCommit", "test_auto_commit_is_refused"),
    (INGEST, "features 5: metrics", "test_metrics_and_health"),
    (INGEST, "scaling: several instances", "test_three_instances_share_the_partitions"),
    (INGEST, "scaling: a topic with 12 partitions", "test_topics_are_made_by_the_admin_api"),
    (INGEST, "scaling: a topic with 12 partitions", "test_topics_are_made_by_the_command"),
    (INGEST, "monitoring: isRunning", "test_metrics_and_health"),
    (INGEST, "monitoring: consumer lag", "test_the_lag_of_a_group"),
    (INGEST, "monitoring: debug logging", "test_debug_logging_of_the_topic_alone"),
    (INGEST, "best practices 1: idempotency keys", "test_the_same_key_is_skipped"),
    (INGEST, "best practices 2: the dead letter queue", "test_the_reasons_for_the_dead_letter_queue"),
    (INGEST, "best practices 3: throughput and latency", "test_messages_come_in_by_both_tunings"),
    (INGEST, "best practices 4: meaningful keys", "test_messages_with_one_key_stay_together"),
    (INGEST, "best practices 5: retention", "test_the_retention_is_set_to_a_day"),
    (INGEST, "troubleshooting: the two log lines", "test_the_two_log_lines"),
    (INGEST, "troubleshooting: enabled", "test_a_topic_that_is_not_enabled_is_not_read"),
    (INGEST, "troubleshooting: registered apps", "test_the_quick_start"),
    (INGEST, "migration: another door beside the topic", "test_jobs_come_in_by_both_doors"),
    (INGEST, "complete setup: run the example", "test_the_ingest_example"),
)


def test_every_block_has_a_test_and_every_test_a_block() -> None:
    tests = {name for module in (test_sms_retry_guide, test_ingest_guide) for name in vars(module)}
    assert {test for _, _, test in BLOCKS} == {name for name in tests if name.startswith("test_")}
