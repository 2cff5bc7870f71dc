// Package spare has the commands `nusa spare`: hosts that are held for an upgrade.
//
//	command.go      prepare, list, show, release, cancel
//	provisioner.go  nusa spare provisioner
package spare
