// Package reason turns the typed reasons of the wire into words for people. All
// of them are in this one place.
//
//   - reason.go: the words of each reason, alone and with a message
package reason
