package region

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// verifyTimeout is the default of --timeout. It is long, because the comparison may need
// several tries, and each try reads all records.
const verifyTimeout = time.Minute

func verifyCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "verify [REGION]", Short: "Compare the state of a region's servers at one index of their log", Args: cli.Positional("[REGION]"),
		Long: "Asks every server of a region for a digest of its state at the same index of the log,\n" +
			"while the region continues to work. The default is the region of the called server,\n" +
			"or the only region of the federation. The default of --timeout is a minute.\n\n" +
			"Exit codes: 0 all states are equal, 1 they differ, or a server did not respond.",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if !c.Cmd.Flags().Changed("timeout") {
				c.Timeout = verifyTimeout
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			name, err := regionToVerify(ctx, c, args)
			if err != nil {
				return err
			}
			resp, err := c.Regions().Verify(ctx, &nusav1.GetRegionRequest{Name: name})
			if err != nil {
				return err
			}
			if err := c.Print(resp, func(w *term.Screen) { writeVerified(w, resp) }); err != nil {
				return err
			}
			return verifyError(resp)
		}),
	}
}

// regionToVerify returns the region that the argument names. Without an argument it returns
// "" if the called server is a regional one, which then means its own region. A global
// server is asked for the only region of the federation.
func regionToVerify(ctx context.Context, c *cli.Session, args []string) (string, error) {
	if len(args) > 0 || c.RegionOf(ctx) != "" {
		return strings.Join(args, ""), nil
	}
	resp, err := c.Regions().List(ctx, &nusav1.ListRegionsRequest{})
	if err != nil {
		return "", err
	}
	var names []string
	for _, r := range resp.GetRegions() {
		names = append(names, r.GetDefinition().GetName())
	}
	if len(names) == 1 {
		return names[0], nil
	}
	if len(names) > cli.MaxNamed {
		names = append(names[:cli.MaxNamed], "…")
	}
	return "", fmt.Errorf("REGION is missing, and a global server serves several regions: try %s %s; there are %s", c.Cmd.CommandPath(), append(names, "REGION")[0], cmp.Or(strings.Join(names, ", "), "none yet"))
}

func writeVerified(w *term.Screen, r *nusav1.VerifyRegionResponse) {
	t := term.NewTable("SERVER", "ROLE", "ADDRESS", "STATE")
	for _, s := range r.GetServers() {
		state := w.Bad(s.GetError())
		if s.GetError() == "" {
			state = term.ShortID(s.GetHash())
		}
		t.Row(s.GetId(), map[bool]string{true: "master", false: "follower"}[s.GetLeader()], s.GetAddress(), state)
	}
	t.Write(w)
	if r.GetEqual() {
		fmt.Fprintf(w, "\n%s at index %d of the log of region %s\n", w.Good("all states are equal"), r.GetIndex(), r.GetRegion())
	}
}

// verifyError returns an error if servers differ or did not respond. It returns nil if all
// states are equal.
func verifyError(r *nusav1.VerifyRegionResponse) error {
	if r.GetEqual() {
		return nil
	}
	hashes, versions, silent := map[string]bool{}, map[string]bool{}, 0
	for _, s := range r.GetServers() {
		versions[s.GetVersion()] = true
		if s.GetHash() == "" {
			silent++
			continue
		}
		hashes[s.GetHash()] = true
	}
	if len(hashes) > 1 && len(versions) > 1 {
		return fmt.Errorf("the servers of region %s are of %d versions, which may encode equal states differently: compare them when all are upgraded", r.GetRegion(), len(versions))
	}
	if len(hashes) > 1 {
		return fmt.Errorf("the servers of region %s have different states at index %d: stop those in the minority, empty their data directories and start them again: they get the state from the master", r.GetRegion(), r.GetIndex())
	}
	return fmt.Errorf("%d of %d servers of region %s did not respond: start or replace them, and try again", silent, len(r.GetServers()), r.GetRegion())
}
