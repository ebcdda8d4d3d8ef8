"""What everything that speaks to Kafka shares: how to connect, how to send, what its errors mean."""
