// Package tunnel lets an upper tier call a lower tier that dials only upward. The
// upper tier asks for a tunnel on the session stream. The lower tier opens a Tunnel
// stream upward and serves its gRPC services over it. The upper tier gets an
// ordinary *grpc.ClientConn. Tunnels are opened on demand and close when idle; one
// can run through another: `alloc exec` goes global/api → tunnel → regional/api →
// tunnel → agent/api.
//
//   - hub.go: the upper end of all tunnels of a server
//   - listener.go: the lower end
//   - pump.go: copying between a stream of frames and a connection
//   - ended.go: the errors of calls whose session ended
package tunnel
