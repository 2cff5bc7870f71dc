// Package gossip lets the servers of one region find one another. It is memberlist over the
// role's own sockets, with a little metadata for each server. The package reports which
// servers are alive and which are silent. Its caller decides the consequences.
//
//   - gossip.go: Group: joins the members, publishes this server's metadata, lists
//     the members
//   - transport.go: memberlist's transport over a network.Net
//   - inbound.go: incoming streams while they send their message
//   - plain.go: messages that a server accepts without keys
//   - keys.go: the keys that encrypt gossip, and how they may change
//   - keyfile.go: the file of keys, which is read again when it changes
//   - lines.go: memberlist's log, with a bound for what others can cause
package gossip
