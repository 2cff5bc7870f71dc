// Package freeport reserves ports for tests that need an address before a process listens
// on it, for example for the configuration of other servers. A port that was only checked
// to be free can be taken by another test before it is used. A reserved port belongs to
// one test until that test ends, even if other tests run on the machine.
//
//   - freeport.go: the reservation of ports in blocks
package freeport
