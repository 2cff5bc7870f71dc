package token

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa token`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("token", "Make, list and revoke the tokens with which agents and servers join", createCommand(s), listCommand(s), revokeCommand(s))
	s.Bind(c)
	return c
}

const day = 24 * time.Hour

func createCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.CreateTokenRequest{}
	var out string
	ttl := day
	c := &cobra.Command{
		Use: "create", Short: "Make a token with which agents or servers of a region join", Args: cli.Positional(),
		Long: `Makes a join token and prints it. It is shown only this once. Give it to the new
member in a file (--join-token-file), in the variable NUSA_JOIN_TOKEN or by standard
input, never in a command line, which other users of the machine can read.

A token has the hash of the federation's root certificate, so nobody can intercept
the first contact. A region makes the tokens for its agents itself, also while the
global tier is unreachable.`,
		Example: `  nusa token create --role server --region jakarta --name 'jkt-*' \
    --uses 3 --out token
  nusa token create --role agent --region jakarta --pool gpu --name 'gpu-*' \
    --uses 20 --ttl 7d --out token`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if c.Region == "" {
				return errors.New("--region is required: the region that the members join")
			}
			if req.GetUses() < 1 {
				return errors.New("--uses must be at least 1")
			}
			if _, err := os.Lstat(out); out != "" && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("--out: %s: %w: name a new file", out, cmp.Or(err, fs.ErrExist))
			}
			req.Region, req.Ttl = c.Region, durationpb.New(ttl)
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewTokensClient(c.Conn).Create(ctx, req)
			if err != nil {
				return err
			}
			if out != "" {
				if err := serve.ReplaceFile(out, []byte(resp.GetToken()+"\n")); err != nil {
					return err
				}
				resp.Token = ""
			}
			return c.Print(resp, func(w *term.Screen) {
				if resp.GetToken() != "" {
					fmt.Fprintln(w, resp.GetToken())
				}
				r := resp.GetRecord()
				fmt.Fprintf(c.Cmd.ErrOrStderr(), "token %s: %s of region %s may join within %s\n", r.GetId(), term.Plural(r.GetUses(), r.GetRole()), r.GetRegion(), job.FormatDuration(ttl))
			})
		}),
	}
	s.BindRegion(c, "region that the members join (required)")
	f := c.Flags()
	f.StringVar(&req.Role, "role", "agent", "agent or server")
	f.StringVar(&req.Pool, "pool", "", "pool of the nodes (default: any)")
	f.StringVar(&req.Name, "name", "*", "pattern of the names of the members, with * and ?")
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
