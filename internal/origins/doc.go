// Package origins holds origin records. A record lists the regions that serve a domain.
// The package checks records, bounds them, and finds the region that serves a client
// (package topology/origin makes that choice). The global tier and the regions use the
// same code.
//
//   - origins.go: checks, the table of records, Resolve
package origins
