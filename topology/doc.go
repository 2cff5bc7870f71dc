// Package topology holds regions and the directed edges between them, which are round
// trips. It says for every distance whether it was measured, predicted or estimated. It is
// pure: no clock, no I/O.
//
//	topology.go      regions, edges, distances, and their states and sources
//	matrix.go        the matrix of measurements (made from samples in package probe)
//	row.go           a row of the matrix in little memory
//	view.go          an immutable view of the matrix: gaps filled with predictions and estimates; distances
//	coordinate.go    network coordinates, and predictions from them where topology/predict has none
//	geo.go           estimates from locations on the map
//	path.go          the router: the best paths over relays
//	search.go        the search of the router
//	weights.go       the cost of load and links on a path
//	router_cache.go  routers by percentile
//	breach.go        whether a bound has been broken for long enough to move
//	change_log.go    noticeable changes of a matrix, for watchers
//	check.go         anomalies in a matrix
//	check_result.go  the result of a check, and its text
//	table.go         a table of round trips, read from a file
//	parse.go         the formats of such files
//
// The folder predict fits predictions to all measurements, origin chooses the region that
// serves a client, and wan emulates round trips on loopback.
package topology
