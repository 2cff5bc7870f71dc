// Package broker publishes messages to message brokers, and confirms each: NATS JetStream and
// RabbitMQ. A value is one connection. Its owner opens another one after a failure.
//
//	broker.go   Message, Publisher; what both brokers share
//	target.go   Target: where a broker is, its credentials, and their checks
//	dial.go     connections to the addresses that a policy allows
//	consumer.go   Consumer: takes messages; dead letters
//	nats.go     NATS JetStream
//	amqp.go     RabbitMQ, by AMQP 0-9-1
//	natsconsumer.go, amqpconsumer.go   consumers of both
//
// The folder brokertest runs real brokers for tests.
package broker
