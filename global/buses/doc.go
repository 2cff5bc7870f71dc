// Package buses publishes durable events to message brokers. Only the active global server does so.
// Package hooks/delivery decides when (Stream).
//
//	bus.go       bus: a bus as the delivery needs it, and its checks
//	worker.go    worker: the delivery to one bus, with its own goroutine and connection
//	term.go      Term: all buses of a leadership term; stores their progress; alarms
//	service.go   the public Buses service
//	metrics.go   metrics of the delivery
package buses
