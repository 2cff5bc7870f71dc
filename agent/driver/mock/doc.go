// Package mock is a driver whose tasks live in memory. A task's configuration says how
// long it takes to start, how long it runs, what it prints and how it ends. Simulations
// use it.
//
//	mock.go  the driver
package mock
