// Package mounts mounts folders and files of the host at another place, for the volumes of
// tasks. It mounts open files and not paths. The owner of a folder in a path may change the
// path after it was checked. The package works only on Linux.
//
//	mounts.go  mount namespaces, and mounting an open folder
//	folder.go  the folder in which an engine finds the volumes of runs
//	unseen.go  why an engine does not see that folder
package mounts
