// Package engines starts real Incus daemons and Docker engines for tests. Each engine has
// its own folders and, if wanted, its own network namespace. So several engines can
// represent several nodes, and none interferes with the engines of the host.
//
//	engines.go  network namespaces, busybox, logs
//	docker.go   a Docker engine
//	incus.go    an Incus daemon
package engines
