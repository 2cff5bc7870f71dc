// Package idempotency holds the answers to the requests with idempotency keys that the store
// remembers. The active server asks it instead of the store.
//
//	answers.go  Answers: by key, bounded, loaded once a term has begun
package idempotency
