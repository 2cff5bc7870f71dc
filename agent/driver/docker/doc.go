// Package docker is the driver that runs tasks as containers of a Docker engine. The engine
// holds the containers, their exit codes and their output. The driver stores a small record
// of each run. Because of the record a container starts at most once, even if the agent or
// the engine crashes, and the end of the run stays known after the container was removed.
//
//	docker.go     the driver: fingerprint, status, wait, remove, sweep
//	start.go      starting and stopping a container, also after an interrupted start
//	container.go  limits, mounts and ports of a container
//	images.go     images on the node, and pulls
//	address.go    errors that name the engine
//	record.go     the record of a run, and the conversion of an engine's state
//	config.go     the task's config
//	auth.go       passwords of registries
//	logs.go       output
//	exec.go       commands in a running container
//	live.go       statistics and changed limits of a running container
package docker
