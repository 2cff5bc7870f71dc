// Package client is the command tree for a running federation. A command is a noun and a
// verb. Its errors are one line that says what to do next. -o json|yaml prints data in its
// form on the wire. The client decides nothing: it shows what the servers returned.
//
//   - client.go: Root, Commands, and Execute, which prints errors and returns the
//     exit code
//   - events.go: nusa events
//   - version.go: nusa version
//
// The nouns are packages of their own (job, alloc, node, region, network). They
// share cli (flags, one call of a command, errors), term (tables and formats) and
// history (series over time). sample holds messages for tests.
package client
