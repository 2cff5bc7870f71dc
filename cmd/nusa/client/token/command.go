package token

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/replace"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa token`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("token", "Make, list and revoke the tokens with which agents, servers and operators join", createCommand(s), listCommand(s), revokeCommand(s))
	s.Bind(c)
	return c
}

const day = 24 * time.Hour

func createCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.CreateTokenRequest{}
	var out string
	ttl := day
	c := &cobra.Command{
		Use: "create", Short: "Make a token with which agents, servers or an operator join", Args: cli.Positional(),
		Long: `Makes a join token and prints it. It is shown only this once. Give it to the new
member in a file (--join-token-file), in the variable NUSA_JOIN_TOKEN or by standard
input, never in a command line, which other users of the machine can read.

A token has the hash of the federation's root certificate, so nobody can intercept
the first contact. A region makes the tokens for its agents itself, also while the
global tier is unreachable.

With --role operator the token is for one person, who becomes an operator with
nusa login --join-token-file. Who makes such a token must be allowed to set roles. A
second token for the same name moves the name to another machine.`,
		Example: `  nusa token create --role server --region jakarta --name 'jkt-*' \
    --uses 3 --out token
  nusa token create --role agent --region jakarta --pool gpu --name 'gpu-*' \
    --uses 20 --ttl 7d --out token
  nusa token create --role operator --name jane --out jane.token`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if err := checkRequest(c, req); err != nil {
				return err
			}
			discard, err := reserveFile(out)
			if err != nil {
				return err
			}
			defer func() { discard() }()
			req.Region, req.Ttl = c.Region, durationpb.New(ttl)
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewTokensClient(c.Conn).Create(ctx, req)
			if err != nil {
				return err
			}
			if out != "" {
				if err := replace.File(out, []byte(resp.GetToken()+"\n")); err != nil {
					return err
				}
				resp.Token = ""
				discard = func() {}
			}
			return c.Print(resp, func(w *term.Screen) {
				if resp.GetToken() != "" {
					fmt.Fprintln(w, resp.GetToken())
				}
				fmt.Fprintf(c.Cmd.ErrOrStderr(), "token %s: %s may join within %s\n", resp.GetRecord().GetId(), whoJoins(resp.GetRecord()), job.FormatDuration(ttl))
			})
		}),
	}
	s.BindRegion(c, "region that agents or servers join (required for them)")
	f := c.Flags()
	f.StringVar(&req.Role, "role", "agent", "agent, server or operator")
	f.StringVar(&req.Pool, "pool", "", "pool of the nodes (default: any)")
	f.StringVar(&req.Name, "name", "*", "pattern of the names of the members, with * and ?; of an operator: the name")
	f.Int32Var(&req.Uses, "uses", 1, "how many members may join")
	f.Var(cli.NewDuration(&ttl, func(d time.Duration) error {
		if d < time.Second {
			return errors.New("is shorter than a second")
		}
		return nil
	}), "ttl", "how long the token is valid, such as 12h or 7d")
	f.StringVar(&out, "out", "", "write the token into this new file, which only its owner can read (default: print it)")
	return c
}

// checkRequest returns an error if the flags of create do not belong together.
func checkRequest(c *cli.Session, req *nusav1.CreateTokenRequest) error {
	operator := req.GetRole() == "operator"
	switch {
	case operator && (c.Cmd.Flag("region").Changed || !c.Cmd.Flag("name").Changed):
		return errors.New("a token for an operator needs --name, and no --region")
	case operator:
		c.Region = "" // NUSA_REGION is for other commands
	case c.Region == "":
		return errors.New("--region is required: the region that the members join")
	}
	if req.GetUses() < 1 {
		return errors.New("--uses must be at least 1")
	}
	return nil
}

// reserveFile creates a new file, so that no token is made for a file that cannot be written. discard
// removes the file. Without a path there is no file.
func reserveFile(path string) (discard func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--out: %s: name a new file in a folder that you may write", err)
	}
	return func() { _ = os.Remove(path) }, f.Close()
}

// whoJoins names the members that may join with a token.
func whoJoins(r *nusav1.JoinToken) string {
	if r.GetRole() == "operator" {
		return "operator " + r.GetName()
	}
	return term.Plural(r.GetUses(), r.GetRole()) + " of region " + r.GetRegion()
}
