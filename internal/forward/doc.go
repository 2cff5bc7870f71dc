// Package forward lets every server of a tier serve every call. A server that does not
// lead forwards a call, unary or stream, to the leader. A call is forwarded at most once.
//
//   - forward.go: the interceptors
//   - message.go: the message types of a method, by its name
package forward
