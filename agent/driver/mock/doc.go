// Package mock is a driver whose tasks are only simulated in memory. The configuration of a
// task says how long the task takes to start, how long it runs, what it prints and how it
// ends.
//
//	mock.go  the driver
package mock
