// Package gossip lets the servers of one region find one another: memberlist over
// the role's own sockets, with a little metadata for each server. It says which
// servers are alive and which are silent; the caller decides what follows.
//
//   - gossip.go: Group: joins the members, publishes this server's metadata, lists
//     the members
//   - transport.go: memberlist's transport over a network.Net
package gossip
