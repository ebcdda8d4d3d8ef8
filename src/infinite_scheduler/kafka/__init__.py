"""What all parts that talk to Kafka share: how to connect, how to send, what its errors mean."""
