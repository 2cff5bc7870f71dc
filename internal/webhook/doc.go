// Package webhook sends signed HTTP requests to endpoints that operators name, by the Standard
// Webhooks specification. It refuses addresses that an operator must not reach through the server.
//
//	secret.go    Secret: its text form; signatures
//	address.go   Policy: which URLs and addresses a request may go to
//	client.go    Client: one request, with bounds on its time and its response
package webhook
