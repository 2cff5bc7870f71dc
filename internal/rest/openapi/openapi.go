// Package openapi has the OpenAPI document of the HTTP API. `make proto` generates the document from
// the protos: protoc-gen-openapiv3 writes a part for each proto file, and the program in the folder
// merge makes one document of them.
package openapi

import _ "embed"

// Document is the document, in JSON.
//
//go:embed openapi.json
var Document []byte
