// Package origins has the records of the regions that serve a domain: how they are
// checked, stored and sent to regions, and how they choose the region for a client.
// It works in the same way at the global tier and in a region alone. Package
// topology/origin makes the choice.
//
//   - origins.go: checks, the table of records, Resolve
package origins
