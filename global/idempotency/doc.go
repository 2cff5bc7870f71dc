// Package idempotency keeps the stored answers to requests with idempotency keys in memory, so
// that the active server need not read them from the store.
//
//	answers.go  Answers: by key, bounded, loaded once a term has begun
package idempotency
