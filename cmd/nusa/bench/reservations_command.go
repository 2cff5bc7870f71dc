package bench

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/bench/reservations"
)

func reservationsCommand() *cobra.Command {
	o := reservations.Options{}
	var out report.Output
	var tokenFile string
	cmd := &cobra.Command{
		Use:   "reservations",
		Short: "Measure how many reservations a second a running federation accepts over HTTP",
		Long: `Makes reservations by POST /schedule at a running federation, and then as many
calls that only read one of them. Each reservation takes 1 MiB and a thousandth
of a core, until it is released. What finds no room waits, and fails after
30 seconds.`,
		Example: "  nusa dev --insecure --regions eastus &\n  nusa bench reservations --url http://127.0.0.1:7601",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.URL, "url", "http://127.0.0.1:7601", "HTTP address of a global server")
	f.StringVar(&tokenFile, "token-file", "", "file with an access token (default: none)")
	f.StringVar(&o.Pool, "pool", "default", "node pool of the reservations")
	f.IntVar(&o.Callers, "callers", 16, "calls at the same time, 1..1024")
	f.DurationVar(&o.Duration, "duration", 10*time.Second, "length of each of the two parts")
	bindOutput(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.Check(); err != nil {
			return err
		}
		if tokenFile != "" {
			token, err := os.ReadFile(tokenFile)
			if err != nil {
				return fmt.Errorf("--token-file: %w", err)
			}
			o.Token = strings.TrimSpace(string(token))
		}
		r, err := reservations.Measure(cmd.Context(), o)
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), r, r.Table)
	}
	return cmd
}
