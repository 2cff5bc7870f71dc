// Package load submits the jobs of a measurement, as many callers of a server.
//
//	load.go    callers that submit jobs: by calls, by streams, or at fixed times
//	again.go   calls that are repeated while a server is busy
package load
