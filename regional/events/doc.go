// Package events reads the region's durable events. They are in the log's state (state.Events): Apply
// derives them from the commands, so every server of the region has the same events, and neither an
// election nor a restart loses one.
//
//	source.go    Source: events after a number; tokens
//	message.go   the message of the API for an event
package events
