// Package drivertest holds the tests that every driver must pass with its real engine.
//
//	drivertest.go    the suite: start, stop, logs, leases, restarts
//	exec.go          the cases of Exec, Stats and Update
//	config.go        a server and a driver agree about the form of a config
//	unprivileged.go  tests as a user that is not root
//
// The folder engines starts real Docker and Incus engines, and leftover ends what a test has left.
package drivertest
