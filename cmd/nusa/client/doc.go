// Package client is the command tree for a running federation. A command is a noun and a
// verb. Each error is one line that says what to do next. -o json|yaml prints the messages
// of the API. The client decides nothing. It shows what the servers returned.
//
//   - client.go: Root, Commands, and Execute, which prints errors and returns the
//     exit code
//   - events.go: nusa events
//   - monitor.go: nusa monitor
//   - ui.go: nusa ui
//   - version.go: nusa version
//
// The nouns are packages of their own: job, override, workflow, semaphore, deadletter, task, alloc, reservation, spare, namespace, node, pool, service, region, server,
// network, auth, audit, token, operator, webhook, bus, intake, find, top and login. They share cli (flags, one call
// of a command, errors), term (tables and formats) and history (series over time). Package profile keeps the
// credentials of a client by address. Package sample holds messages for tests.
package client
