// Package plugin makes a driver of any executable that serves the gRPC service Driver of
// proto/nusa/v1/driver.proto over a unix socket.
//
// The author of a plugin in Go calls Serve with a driver.Driver. The folder examples/plugin
// is a complete plugin, and agent/driver/drivertest has the tests of every driver. A plugin
// in another language implements the service itself. The text of driver.proto says how a
// plugin is started, when it is ready, how versions are chosen and how it ends.
//
// The agent calls New. The returned driver.Driver starts the executable, starts it again
// when it ends, and checks each of its responses. The calls Start, Wait, Stop, Update and
// Remove may take long, and a retry of them is harmless. So they wait for a plugin that is
// being started again. The other calls return driver.ErrUnavailable at once.
//
//	plugin.go   the driver: its process, its health, its fingerprint
//	life.go     one process of a plugin: start, handshake, end
//	calls.go    the calls without streams
//	streams.go  logs and exec
//	serve.go    the plugin's side of the contract
//	check.go    checks of a plugin's responses, and versions
//	convert.go  conversions between the contract and package driver
//	errors.go   errors of calls
//	lines.go    a plugin's output in the agent's log
//	sockets.go  the folder of a plugin's socket
package plugin
