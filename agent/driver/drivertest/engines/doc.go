// Package engines starts real Incus daemons and Docker engines for tests. Each has its own
// folders and, if wanted, its own network namespace, so that several can stand for
// several nodes and none meets the host's own engines.
//
//	engines.go  network namespaces, busybox, logs
//	docker.go   a Docker engine
//	incus.go    an Incus daemon
package engines
