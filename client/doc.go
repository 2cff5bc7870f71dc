// Package client is the Go client of Nusa. The command line client is built on it.
//
//	c, err := client.Open(client.Options{Addresses: []string{"g1:7600", "g2:7600"}, Identity: "/etc/nusa/operator"})
//	...
//	defer c.Close()
//	out, err := c.Submit(ctx, &nusav1.SubmitRequest{Spec: spec})
//	...
//	job, err := c.WaitRunning(ctx, &nusav1.JobRef{Namespace: "default", Name: "api"}, out.GetVersion())
//
// A Client calls any of its servers and goes on with another one when a server fails. It repeats
// a call only if a second execution cannot do harm. Every error is an *Error, which errors.Is
// compares with ErrConflict, ErrDenied, ErrFull and the others. Watches continue by themselves
// after a broken connection or an election. Package clienttest has a server for tests.
//
//   - client.go: Options, Client, and the clients of the services
//   - credentials.go: TLS and access tokens
//   - servers.go: the addresses of several servers
//   - errors.go: Error and the kinds of errors
//   - retry.go: which calls are repeated, and when
//   - watch.go: streams that continue after a break
//   - jobs.go: Submit and WaitRunning
package client
