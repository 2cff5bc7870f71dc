// Package dns answers DNS questions about services from the agent's copy of their instances. It answers
// no other questions and asks no other server.
//
//   - server.go: Server: the sockets and their bounds
//   - reply.go: one question and its reply
package dns
