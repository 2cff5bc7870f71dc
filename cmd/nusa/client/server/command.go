package server

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa server`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("server", "See the global servers, recover their store", listCommand(s), recoverCommand(s))
	s.Bind(c)
	return c
}

func listCommand(s *cli.Settings) *cobra.Command {
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the global servers, and the alarms", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			tree, err := nusav1.NewTopologyClient(c.Conn).Get(ctx, &nusav1.GetTopologyRequest{})
			if err != nil {
				return err
			}
			alarms := c.PrintAlarms(ctx)
			out := &nusav1.TopologyTree{Servers: slices.DeleteFunc(tree.GetServers(), func(x *nusav1.GlobalServer) bool { return !states.Has(stateOf(x)) })}
			if c.Output == "name" {
				for _, srv := range out.GetServers() {
					c.Printf("%s\n", srv.GetName())
				}
				return nil
			}
			if c.Output != "table" {
				n, err := document(out, alarms)
				if err != nil {
					return err
				}
				return c.PrintTree(n)
			}
			return c.Print(out, func(w *term.Screen) {
				if none := cli.NoneSuch(c.Program, "servers", "server list", states, nil); len(out.GetServers()) == 0 && none != "" {
					fmt.Fprintln(w, none)
					return
				}
				if len(out.GetServers()) == 0 {
					fmt.Fprintln(w, "this server knows no global server; --addr HOST names one, if there is any")
					return
				}
				t := term.NewTable("NAME", "ADDRESS", "STATE", "VERSION")
				for _, srv := range out.GetServers() {
					t.Row(srv.GetName(), srv.GetAddress(), stateOf(srv), srv.GetVersion())
				}
				t.Write(w)
				for _, srv := range out.GetServers() {
					printUsage(w, srv.GetStore())
				}
			})
		}),
	}
	states = cli.StateFlag(c, "servers", "active", "standby")
	return c
}

func stateOf(srv *nusav1.GlobalServer) string {
	if srv.GetActive() {
		return "active"
	}
	return "standby"
}

// document returns the servers with the alarms as a document, for programs. The document
// has jobs_left also if its value is 0.
func document(tree *nusav1.TopologyTree, alarms []string) (*doc.Node, error) {
	n, err := cli.MessageTree(tree)
	if err != nil {
		return nil, err
	}
	if servers := n.Get("servers"); servers != nil {
		for _, srv := range servers.Items {
			if use := srv.Get("store"); use != nil && use.Get("jobs_left") == nil {
				use.Add("jobs_left", &doc.Node{Kind: doc.String, Text: "0"})
			}
		}
	}
	if len(alarms) > 0 {
		list := &doc.Node{Kind: doc.List}
		for _, a := range alarms {
			list.Items = append(list.Items, &doc.Node{Kind: doc.String, Text: a})
		}
		n.Add("alarms", list)
	}
	return n, nil
}

// printUsage writes how full the store is, if the server knows that.
func printUsage(w *term.Screen, use *nusav1.StoreUsage) {
	if use == nil {
		return
	}
	if use.GetQuotaBytes() > 0 {
		fmt.Fprintf(w, "\nstore: %s of %s in use, %s on disk, %d keys\n", term.Size(use.GetUsedBytes()), term.Size(use.GetQuotaBytes()), term.Size(use.GetBytes()), use.GetKeys())
	}
	fmt.Fprintf(w, "jobs: %d take %s of %s", use.GetJobs(), term.Size(use.GetJobBytes()), term.Size(use.GetJobLimitBytes()))
	if left := use.GetJobsLeft(); left > 0 {
		fmt.Fprintf(w, "; about %d more fit", left)
	}
	fmt.Fprintln(w)
}
