// Package history shows how measured values changed over time: round trips of
// regions, use of nodes and pools.
//
//   - request.go: --since, the request, and which rendering fits the answer
//   - write.go: sparklines, statistics and trends
package history
