// Package overview serves Overview.Watch at a region's master: the own region in full, and the
// other regions as the region last knew them.
//
//	server.go  the service of a term
//	jobs.go    the jobs that have a part in the region
//	nodes.go   the nodes of the region
package overview
