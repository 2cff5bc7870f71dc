// Package bus has the commands `nusa bus`: message brokers that get events.
//
//   - command.go: create, list, show, test, enable, disable and delete
//   - broker.go: the flags of a broker and its credentials, for nusa intake too
package bus
