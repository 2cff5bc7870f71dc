// Package taskpage has the order of the history of tasks, and pages of it. It has no I/O.
//
//	taskpage.go  Key, its token, and Merge: one page from the pages of several regions
package taskpage
