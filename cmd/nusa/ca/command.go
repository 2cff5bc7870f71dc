package ca

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Command returns the command nusa ca.
func Command() *cobra.Command {
	return cli.Noun("ca", "Make the identities of servers, agents and operators", initCommand(), issueCommand())
}

// env returns the time and the randomness of new certificates.
func env() pki.Env { return pki.Env{Now: time.Now(), Rand: rand.Reader} }

func initCommand() *cobra.Command {
	var dir, federation string
	c := &cobra.Command{
		Use:   "init",
		Short: "Make the root certificate of a federation",
		Long: `Writes the root certificate and its key into a folder. Who has the key can pose as any
member of the federation: keep the folder on a machine that runs no server.

Certificates hold the name of the federation. The federation also has an id, which its
first global server makes: nusa version --server shows it.`,
		Example: "  nusa ca init --dir ca",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return errors.New("--dir is required: a new folder for the root certificate and its key")
			}
			root, err := pki.NewRoot(federation, env())
			if err != nil {
				return err
			}
			if err := newFolder(cmd.Context(), dir, root); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "federation name %s: %s has its root certificate, which ends at %s\n", root.ID.Federation, dir, day(root.Cert.NotAfter))
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "new folder for the certificate and its key (required)")
	c.Flags().StringVar(&federation, "federation", "", "name of the federation, a DNS name in lower case (default: nusa- and a part of the hash of the root's key)")
	return c
}

func issueCommand() *cobra.Command {
	var dir, out string
	var life time.Duration
	c := &cobra.Command{
		Use:   "issue MEMBER",
		Short: "Make the identity of a member, or renew it",
		Long: `Writes cert.pem, key.pem and roots.pem for --identity. MEMBER is global/NAME,
region/REGION/server/NAME, region/REGION/agent/NODE or operator/NAME. The names are
those of --region and --name of the role.

Each region gets a certificate authority of its own in the folder --dir. A process that
runs reads changed files by itself, so repeat the command to renew an identity. Further
roots in roots.pem stay.`,
		Example: `  nusa ca issue global/g1 --dir ca --out g1
  nusa ca issue region/jakarta/agent/n1 --dir ca --out n1
  nusa ca issue operator/jane --dir ca --out ~/.nusa --ttl 90d`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" || out == "" {
				return errors.New("--dir and --out are required: the folder of `nusa ca init`, and the folder of the member")
			}
			locked, err := lock(cmd.Context(), dir)
			if err != nil {
				return err
			}
			defer locked.Close()
			root, err := openRoot(dir)
			if err != nil {
				return err
			}
			id, err := identity.ParsePath(root.ID.Federation, args[0])
			if err != nil {
				return err
			}
			if !id.Kind.Leaf() {
				return fmt.Errorf("%s is no member: name a server, an agent or an operator", id.Describe())
			}
			kept, err := checkMember(out, id)
			if err != nil {
				return err
			}
			c, err := issue(dir, root, id, life, kept)
			if err != nil {
				return err
			}
			if err := trust.Write(out, c); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s has the identity, which ends at %s\n", id, out, day(c.Chain[0].NotAfter))
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "folder that nusa ca init has made (required)")
	c.Flags().StringVar(&out, "out", "", "folder for the files of the identity (required)")
	ttl := cli.NewDuration(&life, func(d time.Duration) error {
		if d < time.Minute {
			return errors.New("is shorter than a minute")
		}
		return nil
	})
	c.Flags().Var(ttl, "ttl", "life of the certificate, such as 36h or 90d (default: 3d for servers, 1d for agents, 30d for operators)")
	return c
}

func day(t time.Time) string { return t.UTC().Format(time.RFC3339) }
