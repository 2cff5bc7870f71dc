// Package notify wakes every goroutine that waits for a change.
//
//	notify.go   Signal: a channel that is closed at the next change
package notify
