// Package brokertest runs real message brokers for tests: nats-server and rabbitmq-server, as Debian
// packages them. A test is skipped where they are not installed.
//
//	process.go   Process: a broker that is killed and started again
//	nats.go      a NATS server with JetStream, and what its streams have
//	rabbit.go    a RabbitMQ server, and what its queues have
package brokertest
