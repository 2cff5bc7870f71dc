// Package machine models machines in virtual time, on one goroutine. The same seed gives the same
// events in the same order.
//
//   - engine.go: true time, the queue of events, randomness and the trace
//   - host.go: hosts whose clocks run fast or slow
//   - proc.go: processes, their timers and alarms, writes to the disk
//   - net.go: streams with delays and breaks, cuts
package machine
