// Package tasks serves the history of tasks of the whole federation. The regions have the history; this
// package asks them, and makes one list of theirs.
//
//	service.go  the Tasks service: List, Get
package tasks
