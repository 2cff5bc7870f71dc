package region

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func joinPolicyCommand(s *cli.Settings) *cobra.Command {
	var set, require string
	var grace time.Duration
	c := &cobra.Command{
		Use: "join-policy REGION", Short: "Show or change what an agent needs to join a region", Args: cli.Positional("REGION"),
		Long: `Shows or changes what an agent needs to join a region:

  token             a join token, which is the default
  registered        a name that node register has registered
  token+registered  both
  open              nothing: each machine that reaches the region may join

Where no token is needed, the agent needs the hash of the root, which this command
shows, as --root-hash. It proves that the agent talks to the right federation.

--require is a CEL expression about the node, as in job files: node.memory_mib,
node.cpu_cores, node.name, node.pool, node.labels, node.arch and others. A region
refuses the sessions of agents for which it does not hold. Agents that are connected
stay until they connect again. --require '' removes the condition.

A machine that was off for longer than its certificate lives comes back without a token
within the grace; 0s: never.`,
		Example: `  nusa region join-policy jakarta
  nusa region join-policy jakarta --set token+registered --grace 7d
  nusa region join-policy jakarta --require 'node.memory_mib >= 4096'`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			client, flags := nusav1.NewMembersClient(c.Conn), c.Cmd.Flags()
			var policy *nusav1.JoinPolicy
			var err error
			if !flags.Changed("set") && !flags.Changed("grace") && !flags.Changed("require") {
				policy, err = client.GetPolicy(ctx, &nusav1.GetJoinPolicyRequest{Region: args[0]})
			} else {
				req := &nusav1.SetJoinPolicyRequest{Region: args[0], Policy: set}
				if flags.Changed("grace") {
					req.Grace = durationpb.New(grace)
				}
				if flags.Changed("require") {
					req.Require = proto.String(require)
				}
				policy, err = client.SetPolicy(ctx, req)
			}
			if err != nil {
				return err
			}
			return c.Print(policy, func(w *term.Screen) { writePolicy(w, policy) })
		}),
	}
	f := c.Flags()
	f.StringVar(&set, "set", "", "token, registered, token+registered or open")
	f.StringVar(&require, "require", "", "CEL expression about the node")
	f.Var(cli.NewDuration(&grace, func(d time.Duration) error {
		if d < 0 {
			return errors.New("is negative")
		}
		return nil
	}), "grace", "how long after its end a certificate may be renewed, such as 7d")
	return c
}

func writePolicy(w *term.Screen, p *nusav1.JoinPolicy) {
	fmt.Fprintf(w, "policy:    %s\n", p.GetPolicy())
	fmt.Fprintf(w, "grace:     %s\n", job.FormatDuration(p.GetGrace().AsDuration()))
	fmt.Fprintf(w, "require:   %s\n", term.OrDash(p.GetRequire()))
	fmt.Fprintf(w, "root hash: %s\n", p.GetRootHash())
}
