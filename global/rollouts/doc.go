// Package rollouts serves the versions of the federation's jobs, and lets operators steer rollouts. The
// placer decides about rollouts: see global/progress and global/placer/progress.go.
//
//	service.go  the Rollouts service: history, diff, revert, tag
//	steer.go    the Rollouts service: pause, resume, fail
package rollouts
