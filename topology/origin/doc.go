// Package origin answers which region serves a client of a domain best, and over
// which path. It is pure: the same view, client and origins give the same
// choice, with its reasons.
//
//	domain.go   domain names, patterns, and the table of their origins
//	origin.go   the choice among origins over a router of the latency matrix
package origin
