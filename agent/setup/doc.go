// Package setup prepares a task's folder before its driver starts the task. It fetches
// artifacts, writes templates, puts secrets into memory, and checks that the node's
// operator allows the volumes. The package works only on Linux.
//
//	setup.go    configuration, folders, templates, volumes, sizes
//	fetch.go    fetching artifacts, and moving them into place
//	guard.go    which addresses and folders artifacts may come from
//	archive.go  unpacking archives
//	output.go   reading what a task wrote for later steps of its workflow
//	secrets.go  reading the secrets of the node, and writing them into memory
package setup
