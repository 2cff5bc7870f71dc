package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/regional"
)

// restoreCommand returns the command `nusa regional restore`.
func restoreCommand() *cobra.Command {
	r := regional.Restored{Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Continue a region from the data directory of one stopped server",
		Long: `Use it when a data directory is an old copy, or when most servers of a region are
lost. It makes this server the only server of the region, and begins a new incarnation
of the region's log. The new log repeats no number of the lost part of the log.

First stop every other server of the region. Their data directories are useless from
then on. Then restore, start the restored server, and start the other servers with empty
data directories and --join. Agents may keep their data directories. Work that a lease
binds (singletons, running: stop) starts again once every earlier lease has ended.`,
		Example: "  nusa regional restore --region jakarta --data-dir /var/lib/nusa/regional",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.Region == "" || r.DataDir == "" {
				return errors.New("--region and --data-dir are required: name the region, and the data directory of the stopped server")
			}
			n, err := regional.Restore(r)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "region %s begins incarnation %d with the server of %s\n", r.Region, n, r.DataDir)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Region, "region", "", "name of the region (required)")
	f.StringVar(&r.DataDir, "data-dir", "", "data directory of the stopped server (required)")
	f.Uint64Var(&r.Incarnation, "incarnation", 0, "number of the incarnation; give one when a later copy was restored before (default: the next one)")
	return cmd
}
