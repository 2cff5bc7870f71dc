package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/roster"
)

// perCall is how many nodes one call registers or unregisters.
const perCall = 2000

func registerCommand(s *cli.Settings) *cobra.Command {
	var file string
	var replace bool
	c := &cobra.Command{
		Use: "register -f FILE", Short: "Register nodes before their agents first join", Args: cli.Positional(),
		Long: `Reads nodes from a CSV file and registers them in a region. The first line names the
columns: name, address, pool, labels, description, priority. Only the name is
necessary. Labels are written "key=value;key=value". Lines that begin with # are
comments. The error names each line that is wrong, and then no node is registered.

An agent with a registered name joins only from the address, and only into the pool,
of its registration. Its node has the labels of the registration; its description is
that of the registration unless the agent has one. The priority is for people and
their tools. Whether an agent must be registered, and whether it then needs a token,
is up to region join-policy. An agent that has joined already is not changed.

Nodes that are registered with the same values are no error. With other values they
need --replace. A file with more than 2,000 nodes is registered in parts.`,
		Example: `  nusa node register -f nodes.csv --region jakarta
  nusa region join-policy jakarta --set registered`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			switch {
			case c.Region == "":
				return errNoRegion
			case file == "":
				return errors.New("-f is required: a CSV file with nodes, - for standard input")
			}
			text, err := c.ReadFile(file)
			if err != nil {
				return err
			}
			nodes, err := roster.Parse(text)
			if err != nil {
				return err
			}
			if len(nodes) == 0 {
				return fmt.Errorf("%s has no nodes", file)
			}
			total := &nusav1.RegisterResponse{}
			for first := 0; first < len(nodes); first += perCall {
				req := &nusav1.RegisterRequest{Region: c.Region, Replace: replace}
				for _, n := range nodes[first:min(first+perCall, len(nodes))] {
					req.Nodes = append(req.Nodes, registered(n))
				}
				resp, err := call(c, func(ctx context.Context, m nusav1.MembersClient) (*nusav1.RegisterResponse, error) {
					return m.Register(ctx, req)
				})
				if err != nil {
					return partly(err, first, "registered")
				}
				total.Changed += resp.GetChanged()
			}
			return c.Print(total, func(w *term.Screen) {
				fmt.Fprintf(w, "%s in the file, %d registered now in region %s\n", term.Plural(len(nodes), "node"), total.GetChanged(), c.Region)
			})
		}),
	}
	s.BindRegion(c, "region of the nodes (required)")
	c.Flags().StringVarP(&file, "file", "f", "", "CSV file with nodes, - for standard input (required)")
	c.Flags().BoolVar(&replace, "replace", false, "give nodes that are registered already the values of the file")
	return c
}

// call makes a call within the time limit of the client.
func call(c *cli.Session, do func(context.Context, nusav1.MembersClient) (*nusav1.RegisterResponse, error)) (*nusav1.RegisterResponse, error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	return do(ctx, nusav1.NewMembersClient(c.Conn))
}

// registered returns the message for a node.
func registered(n roster.Node) *nusav1.RegisteredNode {
	out := &nusav1.RegisteredNode{Name: n.Name, Pool: n.Pool, Labels: n.Labels, Description: n.Description, Priority: int32(n.Priority)}
	if n.Address.IsValid() {
		out.Address = n.Address.String()
	}
	return out
}

// partly returns the error of one of several calls. done is how many nodes the earlier calls had.
func partly(err error, done int, what string) error {
	if done == 0 {
		return err
	}
	return fmt.Errorf("the first %d nodes are %s, the others are not: %w", done, what, err)
}

func unregisterCommand(s *cli.Settings) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "unregister [NODE...]", Short: "Remove registrations of nodes", Args: cobra.ArbitraryArgs,
		Long: `Removes the registrations of nodes, which are named as arguments or in a CSV file as
that of node register. Agents that have joined stay: see node remove and node ban.`,
		RunE: s.Run(func(c *cli.Session, names []string) error {
			if c.Region == "" {
				return errNoRegion
			}
			if file != "" {
				text, err := c.ReadFile(file)
				if err != nil {
					return err
				}
				nodes, err := roster.Parse(text)
				if err != nil {
					return err
				}
				for _, n := range nodes {
					names = append(names, n.Name)
				}
			}
			if len(names) == 0 {
				return errors.New("name the nodes, or give a file with -f")
			}
			total := &nusav1.RegisterResponse{}
			for first := 0; first < len(names); first += perCall {
				req := &nusav1.UnregisterRequest{Region: c.Region, Names: names[first:min(first+perCall, len(names))]}
				resp, err := call(c, func(ctx context.Context, m nusav1.MembersClient) (*nusav1.RegisterResponse, error) {
					return m.Unregister(ctx, req)
				})
				if err != nil {
					return partly(err, first, "unregistered")
				}
				total.Changed += resp.GetChanged()
			}
			return c.Print(total, func(w *term.Screen) {
				fmt.Fprintf(w, "%s of region %s removed\n", term.Plural(total.GetChanged(), "registration"), c.Region)
			})
		}),
	}
	s.BindRegion(c, "region of the nodes (required)")
	c.Flags().StringVarP(&file, "file", "f", "", "CSV file with nodes, - for standard input")
	return c
}
