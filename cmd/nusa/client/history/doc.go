// Package history shows how measured values changed over time: round trips between regions,
// and the use of nodes and pools.
//
//   - request.go: --since, the request, and the choice between one series and a list
//   - write.go: sparklines, statistics and trends
package history
