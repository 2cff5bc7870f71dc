// Package semaphore has the commands `nusa semaphore`: what steps of workflows share.
package semaphore
