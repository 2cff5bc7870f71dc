// Package recovery is about a store that was restored from an old copy: how the global tier notices
// it, what an operator sees, and what regions must confirm after the recovery.
//
//	conflict.go  how a restore is noticed
//	confirm.go   what operators see while regions have to confirm what they run
//	work.go      what a recovery keeps and starts
package recovery
