// Package boottime reads the clock by which leases are counted.
//
//	boottime.go  Now: CLOCK_BOOTTIME
//	clock.go     Clock: the same time with few system calls
package boottime
