package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
	"github.com/nusa-scheduler/nusa/security/workload"
)

// socketFlag is the flag of a role whose identity comes from a SPIFFE Workload API.
const socketFlag = "identity-socket"

// workloadFolder is the folder of that identity, in the identity folder of the data directory. There it
// replaces no identity that the federation has issued.
const workloadFolder = "workload"

// checkIdentitySocket refuses --identity-socket with another source of an identity.
func (r *role) checkIdentitySocket(flags *pflag.FlagSet) error {
	if r.identitySocket == "" {
		return nil
	}
	if err := workload.CheckSocket(r.identitySocket); err != nil {
		return fmt.Errorf("--%s: %w", socketFlag, err)
	}
	for _, name := range []string{"identity", "secure", "ca-cert", "ca-key", "join-token-file", rootFlag} {
		f := flags.Lookup(name)
		if f != nil && f.Value.String() != "" && f.Value.String() != "false" {
			return fmt.Errorf("--%s and --%s: give one of them", socketFlag, name)
		}
	}
	if flags.Lookup("join-token-file") != nil && os.Getenv(tokenVariable) != "" {
		return fmt.Errorf("--%s and %s: give one of them", socketFlag, tokenVariable)
	}
	return nil
}

// given returns the identity of --identity or --identity-socket, and a function that keeps it until
// a context ends. Without both flags there is no identity.
func (r *role) given(ctx context.Context, id identity.ID) (*trust.Source, func(context.Context) error, error) {
	if r.identitySocket != "" {
		return r.followSocket(ctx, id)
	}
	source, err := r.source()
	return source, idle, err
}

// followSocket waits for the identity of a role from --identity-socket. It returns the identity, and
// a function that takes over each new one until a context ends. id has no federation.
func (r *role) followSocket(ctx context.Context, id identity.ID) (*trust.Source, func(context.Context) error, error) {
	c := workload.Config{Socket: r.identitySocket, ID: id, Dir: filepath.Join(r.dataDir, identityFolder, workloadFolder), Log: r.logger}
	if err := workload.Ensure(ctx, c); err != nil {
		return nil, nil, fmt.Errorf("--%s: %w", socketFlag, err)
	}
	r.identity = c.Dir
	source, err := r.source()
	if err != nil {
		return nil, nil, fmt.Errorf("--%s: %w", socketFlag, err)
	}
	return source, func(ctx context.Context) error { return workload.Run(ctx, c) }, nil
}
