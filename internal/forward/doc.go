// Package forward lets every server of a tier serve every call: a server that does
// not lead forwards the call, unary or stream, to the server that does, over at
// most one hop.
//
//   - forward.go: the interceptors
//   - message.go: the message types of a method, by its name
package forward
