// Package freeport reserves ports for tests whose parts need an address before
// they listen on it: the configuration of other servers, a task, a process. A port
// that was only checked to be free can be taken by another test before it is used. A
// reserved port belongs to one test until the test ends, whatever else runs on the
// machine.
//
//   - freeport.go: reservation in blocks
package freeport
