// Package service has the commands `nusa service`, which find the services of jobs.
//
//   - command.go: list and resolve
package service
