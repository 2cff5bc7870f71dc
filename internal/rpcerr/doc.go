// Package rpcerr makes and reads errors that are sent as gRPC statuses. Code that must
// know why a call failed reads a typed detail by this package, and never the text of the
// message, which is for people.
//
//   - error.go: Error, a status with its details (google.rpc.ErrorInfo,
//     google.rpc.RetryInfo, nusa.v1.Problem): made and read
//   - reason.go: the reasons of ErrorInfo and their metadata keys
//   - table.go: Table, from Go errors to statuses
//   - problem.go: statuses that say which fields of a request are wrong
//   - transport.go: failures of the connection, which gRPC reports as text only
package rpcerr
