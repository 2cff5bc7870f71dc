// Package tunnel lets an upper tier call a lower tier, although only the lower tier dials.
// The upper tier requests a tunnel by a message on the session stream. The lower tier then
// opens a Tunnel stream to the upper tier and serves its gRPC services over that stream.
// The upper tier gets an ordinary *grpc.ClientConn. Tunnels are opened on demand and
// closed when idle. A call may pass two tunnels: `alloc exec` goes global/api → tunnel →
// regional/api → tunnel → agent/api.
//
//   - hub.go: the upper end of a server's tunnels
//   - listener.go: the lower end of a server's or agent's tunnels
//   - pump.go: copies between a stream of frames and a connection
//   - ended.go: the errors of calls whose session ended
package tunnel
