// Command merge makes one OpenAPI document of the parts that protoc-gen-openapiv3 writes. It adds what
// the protos do not say: how a client proves who it is, problems, headers, streams, and job files.
//
//		go run ./internal/rest/openapi/merge FOLDER FILE
//
//	  - main.go: reads the parts, writes the document
//	  - schema.go: schemas of messages
//	  - operation.go: parameters, bodies and responses of operations
//	  - common.go: what all operations share
//	  - virtflow.go: the paths of virtflow
package main
