// Package reason converts the typed reasons of the API to text for people.
//
//   - reason.go: the text of each reason, alone and with a message
package reason
