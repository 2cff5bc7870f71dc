// Package overview serves Overview.Watch at the active global server.
//
//	server.go   the service of a leadership term
//	regions.go  the regions, and what is due for them
//	jobs.go     the jobs, and their broken latency bounds
package overview
