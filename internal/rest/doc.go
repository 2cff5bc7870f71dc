// Package rest serves the gRPC API over HTTP, on the servers of both tiers: JSON below /v1, the OpenAPI
// document at /openapi.json, and Swagger UI at /docs/. The code below gateway is generated from the
// google.api.http options of the protos (grpc-gateway). This package adds what HTTP clients expect.
//
// A request becomes a call over a gRPC connection within the process, which package serve makes for each
// HTTP connection. So the interceptors of the gRPC server run: metrics, the gate, and forwarding to the
// leader. The connection has the address and the certificate of the HTTP client. Of the headers only an
// access token becomes metadata, so that no client can forge what servers tell each other in metadata.
//
// To add a service: give its RPCs google.api.http options, run `make proto`, and add a line to the list in
// services.go. A test fails if a line is missing.
//
//   - services.go: the services
//   - rest.go: Mount: the handlers, and errors
//   - operation.go: the operations, read from the protos; describe.go: the same for the document
//   - request.go: what a request may have: parameters, headers, an access token; headers of responses
//   - body.go: bodies and their content types; job files
//   - admit.go: whose large bodies are read, and how many at a time
//   - fields.go: unknown fields and parameters, with the nearest known ones
//   - values.go: wrong values of parameters and of fields
//   - marshal.go: messages as JSON, as lines, and as server-sent events
//   - writer.go: responses: compression, bounds on time, quiet streams
//   - duplex.go: streams in both directions; terminal.go: exec over a WebSocket
//   - problem.go: errors as problem details (RFC 9457)
//   - origin.go: requests of pages of other origins
//   - spare.go: /spare/prepare, which prepares spare hosts
//   - services_sd.go: the instances of services, in the form that Prometheus reads
//   - virtflow.go: the paths of virtflow, which reserve a host for a virtual machine
//   - pages.go: the document and Swagger UI
//
// The folder openapi has the document, and openapi/merge the program that makes it. The folder gateway
// has the generated code.
package rest
