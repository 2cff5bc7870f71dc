// Package setup prepares a task's folder before its driver starts the task. It fetches
// artifacts, writes templates, puts secrets into memory, and checks the volumes against
// the folders that the node's operator allows. Linux only.
//
//	setup.go    configuration, folders, templates, volumes, sizes
//	fetch.go    fetching artifacts, and moving them into place
//	guard.go    addresses and folders that artifacts may come from
//	archive.go  unpacking archives
//	secrets.go  secrets in memory
package setup
