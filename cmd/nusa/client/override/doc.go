// Package override has the commands about overrides: what one region does not run of a job of the
// federation, because an operator stopped or scaled the job there.
//
//	command.go   nusa job override list, clear; what job stop and job scale do with --override
package override
