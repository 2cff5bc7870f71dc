// Package mounts shows a part of the host's files at another place. It mounts opened
// files and not paths, because the owner of a folder in a path may change the path after
// it was checked. Linux only.
//
//	mounts.go  mount namespaces, and mounting an open folder
//	folder.go  the folder in which an engine finds the volumes of runs
//	unseen.go  why an engine does not see that folder
package mounts
