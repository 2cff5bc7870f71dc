// Package emulate holds emulated regions: light clients that speak the protocol between a
// region's master and the global tier, without a log, a scheduler or agents. They accept
// every slot, report its instances as running at once, and report capacity and round trips
// as often as regions do.
//
//	fleet.go     Fleet: all regions of a measurement, and what they count
//	region.go    one region: its sessions, and what it receives
//	known.go     what a region has of the sets that the global tier sends
//	slots.go     the slots of a region: what it has to answer, what its jobs run
//	sender.go    what a region sends, and when
//	messages.go  hello, report, and the row of round trips
//	codec.go     leaves messages undecoded that a region does not need
//	places.go    names, places and round trips of the regions
//	traffic.go   counts the bytes of connections
package emulate
