// Package intakes submits jobs that messages of brokers contain. Only the active global server does so.
//
//	intake.go    intake: an intake as the work needs it, and its checks
//	message.go   what a message asks for, and what follows from the result of its submit
//	worker.go    worker: takes the messages of one intake, with its own goroutines and connection
//	term.go      Term: all intakes of a leadership term; the rights of their jobs; alarms
//	service.go   the public Intakes service
//	metrics.go   metrics of the messages
package intakes
