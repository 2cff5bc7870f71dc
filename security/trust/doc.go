// Package trust connects the members of a federation over TLS 1.3. Both ends of a connection
// prove their identity. Host names play no part: a client says which identities it expects.
//
//   - source.go: the credentials of this member, which are read again when their files change
//   - folder.go: the folder with the files of the credentials
//   - transport.go: TLS for gRPC, and the identity of a call's peer
//   - only.go: further listeners of a gRPC server, for some members only
//   - caller.go: the identity of the caller of a forwarded call
//   - stream.go: TLS for other streams
//   - inside.go: connections within this process that stand for HTTPS connections
//   - tls.go: TLS for etcd and HTTP
//   - refusals.go: the lines of the log about refused peers, and open connections, which end when
//     their peer is refused
//   - distrust.go: the end of connections whose root is trusted no more
//   - stranger.go: connections of clients that have no certificate
package trust
