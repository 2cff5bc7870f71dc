// Package cloudevent encodes events as CloudEvents 1.0 in JSON (structured mode), and selects
// events by type, namespace and a CEL expression. Webhooks and event buses use it.
//
//	encode.go   an event as CloudEvents JSON; its id, type and source
//	filter.go   Filter and Selection: which events a consumer gets
//	types.go    the types of the durable events of the federation
package cloudevent
