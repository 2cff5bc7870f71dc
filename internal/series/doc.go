// Package series stores measured values over time in one bounded file per server. It
// retains a value for every 5 seconds of the last hour, for every minute of the last day,
// and for every ten minutes of the last 31 days.
//
// A series belongs to one measured object (a node, an edge, a pool) and has the fields of
// its kind. Append adds measured values in memory. Once a minute a goroutine of the store
// writes a minute of all series in one transaction, makes one or two coarser segments from
// finer segments, and removes old data. A crash loses about the last minute. A damaged
// file is set aside, and the store begins a new file. No failure in this package stops a
// server.
//
// The result of a query does not depend on which data were already written or compacted: a
// query compacts finer data in the same way.
//
// The files, from the pure encoding to the store:
//
//   - series.go: kinds, samples, limits, points, statistics, errors
//   - quant.go: values as ordinals of limited precision; cells
//   - bits.go: bits and Rice-coded columns
//   - block.go: one series over one segment
//   - segment.go: the blocks of a shard over one span of time
//   - grid.go: levels, slots, and the level that a query reads
//   - tail.go: the minutes and the series in memory
//   - disk.go: segments in a bbolt transaction: write, compact, expire, evict
//   - file.go: the file: open, check, set aside, shrink
//   - walk.go: a check of bbolt's pages before bbolt reads them
//   - store.go: Append, Keys, Forget, Close
//   - write.go: one cycle of the writer
//   - query.go: Query
//   - trend.go: a line through values, and when it reaches a limit
//   - spark.go: sparklines
package series
