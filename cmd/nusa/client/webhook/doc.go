// Package webhook has the commands `nusa webhook`: HTTP endpoints that get events.
//
//   - command.go: create, list, show, remove, enable and disable
//   - secret.go: the secrets that sign: rotate
//   - deliver.go: test, log and replay
package webhook
