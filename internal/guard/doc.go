// Package guard bounds what connections cost before they have made a request. A listener of this
// package closes a connection that has made no request after a time. When too many such
// connections are open, it closes the oldest, so silent and slow connections keep nobody out.
//
//   - guard.go: the listener, and the connections that wait
//   - request.go: finds the first request of HTTP/1 and HTTP/2, and so of gRPC
//   - greeted.go: a listener that accepts a connection after its greeting only
//   - ready_linux.go, ready_other.go: reads into buffers that quiet connections do not have
//   - timeout_linux.go, timeout_other.go: an option of TCP
package guard
