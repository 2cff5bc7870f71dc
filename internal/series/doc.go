// Package series stores the history of measured values in one bounded file per
// server: every 5 seconds for an hour, every minute for a day, every ten minutes
// for 31 days.
//
// A series is one measured thing (a node, an edge, a pool) with the fields of its
// kind. Append takes the values that were measured now and touches memory only. Once
// a minute a goroutine of the store writes a minute of all series in one
// transaction, makes one or two coarser segments of finer ones, and removes old
// data. A crash loses about the last minute. A damaged file is set aside and a new
// one is begun. No failure here stops a server.
//
// The response to a query does not depend on what has been written or made coarser
// so far: a query folds finer data in the same way.
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
