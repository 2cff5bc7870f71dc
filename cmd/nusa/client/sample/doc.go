// Package sample has fixed messages for the tests of the client, and renders them.
//
//   - jobs.go: jobs, allocations, regions and nodes
//   - topology.go: round trips, paths, origins and series
//   - render.go: Render, which compares renderings with the golden files
package sample
