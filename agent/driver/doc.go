// Package driver is the contract between the agent and an engine that runs tasks:
// processes, containers or virtual machines. The folder drivertest has the tests that every
// driver must pass. The folders process, docker, incus, reserve, mock and plugin are drivers. A new
// driver is a further folder and an entry in the configuration of the agent. The folder
// mounts has what drivers with volumes share.
//
//	driver.go       the interface Driver, its errors, and its types
//	runs.go         the runs of a driver that has a file or a folder for each run
//	socket.go       why a process may not use an engine's socket
//	startfault.go   why a file cannot be started, and what to do
//	unsupported.go  methods of a driver without exec, statistics and live limits
package driver
