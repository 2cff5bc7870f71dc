package operator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxKeyFile bounds what is read of a file with a certificate or a key.
const maxKeyFile = 64 << 10

func statusCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the roots, and which members have not converged", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := nusav1.NewKeysClient(c.Conn).GetAuthority(ctx, &nusav1.GetAuthorityRequest{})
			if err != nil {
				return err
			}
			c.WarnPartial(out.GetErrors())
			return c.Print(out, func(w *term.Screen) { printAuthority(w, c.Program, out) })
		}),
	}
}

// nextSteps say what follows after a phase.
var nextSteps = map[string]string{
	"trust": "rotate --phase issue, or --phase rollback",
	"issue": "rotate --phase distrust, or --phase rollback",
}

func printAuthority(w *term.Screen, program string, out *nusav1.AuthorityStatus) {
	fmt.Fprintf(w, "phase %s", out.GetPhase())
	if out.GetSince() != nil {
		fmt.Fprintf(w, ", since %s", w.Since(out.GetSince()))
	}
	fmt.Fprintln(w)
	t := term.NewTable("ROOT", "VALID UNTIL", "USE")
	for _, r := range out.GetRoots() {
		use := "trusted"
		if r.GetIssues() {
			use = "trusted, issues certificates"
		}
		t.Row(r.GetId(), r.GetNotAfter().AsTime().UTC().Format(time.DateOnly), use)
	}
	t.Write(w)
	if out.GetVersion() == 0 {
		fmt.Fprintf(w, "the root was never changed; %s operator keys ca rotate --phase trust begins that\n", program)
		return
	}
	if n := len(out.GetErrors()); n > 0 {
		fmt.Fprintf(w, "members: %d converged, %d have not; those of %s did not answer\n", out.GetConverged(), out.GetWaiting(), term.Plural(n, "region"))
	} else {
		fmt.Fprintf(w, "members: %d converged, %d not\n", out.GetConverged(), out.GetWaiting())
	}
	printLags(w, out.GetLags())
	if next := nextSteps[out.GetPhase()]; next != "" && out.GetWaiting() == 0 && len(out.GetErrors()) == 0 {
		fmt.Fprintf(w, "next: %s operator keys ca %s\n", program, next)
	}
}

func rotateCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.RotateAuthorityRequest{}
	var cert, key string
	spread := 5 * time.Minute
	c := &cobra.Command{
		Use: "rotate", Short: "Do one step of the change to another root", Args: cli.Positional(),
		Long: `Changes the root of the federation in three phases, while work runs:

  trust     each member also trusts the new root
  issue     certificates come from the new root; members renew theirs
  distrust  the old root is trusted no more
  rollback  one phase back, from trust or issue

A phase is refused while members have not converged: keys ca status names them. With
--force it begins all the same. Members that it leaves behind may have to join again
with a token. Operators whose certificates come from the old root must renew them
before the phase distrust.`,
		Example: `  nusa operator keys ca rotate --phase trust
  nusa operator keys ca status
  nusa operator keys ca rotate --phase issue`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if req.GetPhase() == "" {
				return errors.New("--phase is required: trust, issue, distrust or rollback")
			}
			var err error
			req.Certificate, err = readFile("--cert", cert)
			if err == nil {
				req.Key, err = readFile("--key", key)
			}
			if err != nil {
				return err
			}
			req.Spread = durationpb.New(spread)
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := nusav1.NewKeysClient(c.Conn).RotateAuthority(ctx, req)
			if err != nil {
				return err
			}
			return c.Print(out, func(w *term.Screen) {
				fmt.Fprintf(w, "phase %s begins: members renew within %s; %s operator keys ca status shows who has not\n", out.GetPhase(), term.Duration(out.GetSpread().AsDuration()), c.Program)
			})
		}),
	}
	f := c.Flags()
	f.StringVar(&req.Phase, "phase", "", "trust, issue, distrust or rollback (required)")
	f.BoolVar(&req.Force, "force", false, "go on although members have not converged")
	f.StringVar(&cert, "cert", "", "with --phase trust: file of the new root certificate (default: the server makes one)")
	f.StringVar(&key, "key", "", "file of the key of --cert; without it, the global servers have the key in --ca-key")
	spreadFlag(c, &spread, "time within which the members renew")
	return c
}

// readFile reads the file of a flag. Without a file the result is empty.
func readFile(flag, path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	info, err := os.Stat(filepath.Clean(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s: %s has %d bytes, at most %d", flag, path, info.Size(), maxKeyFile)
	}
	return os.ReadFile(filepath.Clean(path))
}
