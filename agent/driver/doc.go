// Package driver is the contract between the agent and an engine that runs tasks:
// processes, containers, virtual machines. Its tests are in drivertest. A new engine is
// a folder beside it and an entry in the agent's configuration.
//
//	driver.go       the interface Driver, its errors, and its types
//	config.go       reading strings of a task's configuration
//	file.go         durable replacement of a file
//	socket.go       why a process may not use an engine's socket
//	unsupported.go  methods of a driver without exec, statistics and live limits
package driver
