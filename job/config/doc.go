// Package config has the forms of the drivers' `config` in job files, and checks a config against one. A
// server checks it when a job is submitted, and a driver when a task starts. Both use the same form, so a
// job that a server accepts has no config that its driver refuses for its form.
//
//	schema.go    Schema and Field, and Check
//	values.go    Values: the fields of a checked config
//	drivers.go   the schemas of the built-in drivers
//	ulimit.go    the values of ulimits of the driver process
package config
