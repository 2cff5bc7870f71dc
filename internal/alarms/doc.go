// Package alarms is a set of times, the earliest one first: each object has one time at most at which a loop
// must look at the object.
//
//   - alarms.go: Alarm, a part of each object, and Queue
package alarms
