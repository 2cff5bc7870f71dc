// Package gossip lets the servers of one region find one another. It is memberlist over the
// role's own sockets, with a little metadata for each server. The package reports which
// servers are alive and which are silent. Its caller decides the consequences.
//
//   - gossip.go: Group: joins the members, publishes this server's metadata, lists
//     the members
//   - transport.go: memberlist's transport over a network.Net
package gossip
