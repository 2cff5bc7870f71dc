package operator

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa operator`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	keys := cli.Noun("keys", "Change the root, and the keys of gossip and probes, while work runs",
		cli.Noun("ca", "The root of the federation", statusCommand(s), rotateCommand(s)),
		ringCommand(s, "gossip", "The keys that encrypt gossip in a region"),
		ringCommand(s, "probe", "The keys that authenticate latency probes between regions"))
	c := cli.Noun("operator", "Run a federation: change its keys, compare its tiers", keys, reconcileCommand(s))
	s.Bind(c)
	return c
}

// spreadFlag adds the flag --spread.
func spreadFlag(c *cobra.Command, to *time.Duration, usage string) {
	c.Flags().Var(cli.NewDuration(to, func(d time.Duration) error {
		if d < 0 {
			return errors.New("is negative")
		}
		return nil
	}), "spread", usage)
}

// printLags prints the members that have not converged.
func printLags(w *term.Screen, lags []*nusav1.KeyLag) {
	if len(lags) == 0 {
		return
	}
	t := term.NewTable("MEMBER", "REPORTED", "LACKS")
	for _, l := range lags {
		lacks := l.GetLacks()
		if l.GetNote() {
			lacks += " (holds nothing back)"
		}
		at := "-"
		if l.GetReportedAt() != nil {
			at = w.Since(l.GetReportedAt())
		}
		t.Row(l.GetMember(), at, lacks)
	}
	t.Write(w)
}
