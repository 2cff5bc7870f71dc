package pool

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa pool`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("pool", "Look at node pools, and weigh the use of their nodes",
		listCommand(s), showCommand(s), setCommand(s), removeCommand(s))
	s.Bind(c)
	return c
}

func client(c *cli.Session) nusav1.PoolsClient { return nusav1.NewPoolsClient(c.Conn) }

func listCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List node pools with their nodes and policies", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).List(ctx, &nusav1.ListPoolsRequest{Region: c.Region})
			if err != nil {
				return err
			}
			c.WarnPartial(resp.GetErrors())
			return c.Print(resp, func(w *term.Screen) { writeList(w, resp.GetPools(), cli.Incomplete(resp.GetErrors())) })
		}),
	}
	s.BindRegion(c, "only pools of this region")
	return c
}

func writeList(w *term.Screen, all []*nusav1.Pool, unseen string) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no pools%s; a pool begins with its first node: %s agent --pool NAME\n", unseen, w.Program)
		return
	}
	t := term.NewTable("POOL", "REGION", ">NODES", ">CPU", ">MEMORY", ">QUOTA")
	for _, p := range all {
		cpu, memory, quota := weights(p)
		t.Row(p.GetName(), p.GetRegion(), term.Count(p.GetNodes()), cpu, memory, quota)
	}
	t.Write(w)
}

// weights returns the weights of a pool as texts. They are dashes if the pool has no policy.
func weights(p *nusav1.Pool) (cpu, memory, quota string) {
	if p.GetRevision() == 0 {
		return "-", "-", "-"
	}
	text := func(n int32) string { return strconv.Itoa(int(n)) }
	w := p.GetWeights()
	return text(w.GetCpu()), text(w.GetMemory()), text(w.GetQuota())
}

func showCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "show POOL", Aliases: []string{"status"}, Short: "Show a node pool", Args: cli.Positional("POOL"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			p, err := client(c).Get(ctx, &nusav1.GetPoolRequest{Region: c.Region, Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(p, func(w *term.Screen) { writePool(w, p) })
		}),
	}
	s.BindRegion(c, "region of the pool")
	return c
}

func writePool(w *term.Screen, p *nusav1.Pool) {
	cpu, memory, quota := weights(p)
	fmt.Fprintf(w, "pool:          %s\nregion:        %s\nnodes:         %d\n", p.GetName(), p.GetRegion(), p.GetNodes())
	fmt.Fprintf(w, "cpu weight:    %s\nmemory weight: %s\nquota weight:  %s\n", cpu, memory, quota)
}

func setCommand(s *cli.Settings) *cobra.Command {
	weights := &nusav1.PoolWeights{}
	c := &cobra.Command{
		Use: "set POOL", Short: "Weigh how much of the nodes of a pool is in use", Args: cli.Positional("POOL"),
		Long: `Stores the policy of a node pool in a region, and replaces an earlier one. A weight says
how much the load of a node counts when an instance gets its node:

  --cpu     measured use of all cores
  --memory  measured use of memory
  --quota   instances, as a share of the node's instance quota

A weight of 100 adds 0.5 to the score of an idle node, and takes 0.5 from that of a full
one. For comparison, the term "fit" is 0 to 1. Weights that are not given are 0.

A policy moves no instance. It says where the next ones go. nusa job explain shows the
terms, and how old the statistics are. A node whose use is unknown neither gains nor
loses.`,
		Example: `  nusa pool set default --region jakarta --cpu 60 --memory 40
  nusa pool set metal --region jakarta --quota 100`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			f := c.Cmd.Flags()
			if !f.Changed("cpu") && !f.Changed("memory") && !f.Changed("quota") {
				return errors.New("give a weight: --cpu, --memory or --quota, each 0 to 100")
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			p, err := client(c).Set(ctx, &nusav1.SetPoolRequest{Region: c.Region, Pool: &nusav1.Pool{Name: args[0], Weights: weights}})
			if err != nil {
				return err
			}
			return c.Print(p, func(w *term.Screen) {
				fmt.Fprintf(w, "the policy of pool %s in %s is stored", p.GetName(), p.GetRegion())
				if p.GetNodes() == 0 {
					fmt.Fprint(w, "; the pool has no nodes yet")
				}
				fmt.Fprintln(w)
			})
		}),
	}
	f := c.Flags()
	f.Int32Var(&weights.Cpu, "cpu", 0, "weight of the measured use of all cores, 0 to 100")
	f.Int32Var(&weights.Memory, "memory", 0, "weight of the measured use of memory, 0 to 100")
	f.Int32Var(&weights.Quota, "quota", 0, "weight of the share of the instance quota in use, 0 to 100")
	s.BindRegion(c, "region of the pool")
	return c
}

func removeCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "remove POOL", Aliases: []string{"rm"}, Short: "Remove the policy of a node pool; its nodes stay", Args: cli.Positional("POOL"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Remove(ctx, &nusav1.RemovePoolRequest{Region: c.Region, Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				if !resp.GetRemoved() {
					fmt.Fprintf(w, "pool %s has no policy; %s pool list shows the pools\n", args[0], w.Program)
					return
				}
				fmt.Fprintf(w, "the policy of pool %s is removed\n", args[0])
			})
		}),
	}
	s.BindRegion(c, "region of the pool")
	return c
}
