// Package retry decides what happens after an attempt of an instance has failed.
//
//   - retry.go: failures, policies, and Decide
//   - text.go: a decision in words
package retry
