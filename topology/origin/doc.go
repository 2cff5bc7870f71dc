// Package origin chooses the region that serves a client of a domain best, and the path to
// that region. The package is pure: the same view, client and origins give the same choice
// with the same reasons.
//
//	domain.go   domain names, patterns, and the table of their origins
//	origin.go   the choice among origins over a router of the latency matrix
package origin
