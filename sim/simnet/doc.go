// Package simnet is a network in memory for virtual time: hosts with streams and
// datagrams, latency, loss, partitions, and machines that die. It blocks only in
// ways that a testing/synctest bubble counts as idle.
//
//	network.go   hosts, faults, addresses and ports
//	stream.go    TCP: listeners and streams
//	packet.go    UDP
package simnet
