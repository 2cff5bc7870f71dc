// Package recovery says what follows from a store that was restored from an old copy: how it
// is noticed, what an operator sees, and what regions have to confirm after its recovery.
//
//	conflict.go  what shows that the store was restored
//	confirm.go   what operators see while regions have to confirm
package recovery
