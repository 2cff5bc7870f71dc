// Package load submits the jobs of a measurement to a server, by many concurrent callers.
//
//	load.go    callers that submit jobs: by calls, by streams, or at fixed times
//	again.go   calls that are repeated while a server is busy
package load
