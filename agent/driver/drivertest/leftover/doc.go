// Package leftover ends processes and mounts that a test has left. An agent leaves its
// tasks running when it ends, and a test that fails or is killed does not stop them.
//
//	leftover.go  finding and ending the processes and mounts of a folder
package leftover
