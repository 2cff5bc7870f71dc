// Package submits takes requests to store jobs without decoding their specs. Most submitted
// specs differ from earlier ones only in the name.
//
//	request.go  a submit request that stays encoded
//	codec.go    the gRPC codec that leaves such a request encoded
//	service.go  a Jobs service that gets such requests
//	cache.go    the results of parsing specs
package submits
