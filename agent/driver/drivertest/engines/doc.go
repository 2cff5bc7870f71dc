// Package engines starts real Incus daemons and Docker engines for tests. Each has its own
// folders and, if wanted, its own network namespace. So several engines can represent
// several nodes, and none interferes with the host's own engines.
//
//	engines.go  network namespaces, busybox, logs
//	docker.go   a Docker engine
//	incus.go    an Incus daemon
package engines
