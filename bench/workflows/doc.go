// Package workflows measures how fast the global tier runs the steps of workflows: `nusa bench workflows`. The
// regions are emulated (package emulate), and each step ends as soon as its region has accepted it.
//
//	workflows.go  the measurement: options, runs, result
//	marks.go      when each step was offered, and when it ended
package workflows
