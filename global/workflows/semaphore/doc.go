// Package semaphore decides which waiting steps of workflows get units of semaphores: the oldest first. It is pure.
//
//	semaphore.go  Queue: the waiters; Grant
//	line.go       the waiters of one semaphore, and how far its free units reach
package semaphore
