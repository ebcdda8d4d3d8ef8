"""Jobs from topics, on real Kafka brokers and on the one inside of librdkafka."""
