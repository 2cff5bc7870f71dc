// Package reservations serves the Reservations service. A reservation is a job with one instance of the
// driver `reserve`, and a stored record that says what became of it. The record and the job change in the
// same transactions.
//
//	book.go      Book: the records of one leadership term, in memory
//	decide.go    what follows from what is known of the job (pure)
//	loop.go      the loop that carries out these decisions, and forgets old records
//	service.go   the gRPC service
//	spec.go      the job of a reservation
package reservations
