// Package spares serves the Spares service. A spare is a set of reservations, one for each host, and one
// stored record. Only the active global server acts on spares. The folder step decides what follows.
//
//	book.go         Book: the records of one leadership term, in memory
//	convert.go      the record of a spare as the state of the package step, and back
//	loop.go         the loop that makes the steps, stores them and carries out their effects
//	call.go         the requests to provisioners and upgrade controllers
//	command.go      a program as a provisioner
//	service.go      the gRPC service: prepare, get, list, release, cancel
//	check.go        the checks of requests
//	provisioner.go  the gRPC service: set, list, remove a provisioner
package spares
