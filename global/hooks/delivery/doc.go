// Package delivery decides which event is sent to an endpoint, and when. It is a core: it gets
// times and random numbers from its caller, and makes no request.
//
//	schedule.go   the delays between attempts; what a response means for a delivery
//	queue.go      Queue: the events that wait for one endpoint
//	stream.go     Stream: events that are delivered in order; the delays between its attempts
package delivery
