package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func drainCommand(s *cli.Settings) *cobra.Command {
	var off, wait, ignore bool
	var timeout, deadline time.Duration
	c := &cobra.Command{
		Use: "drain NODE", Short: "Move the work of a node to others; --off ends the drain", Args: cli.Positional("NODE"),
		Long: `Moves the work of a node to other nodes, at most update.max_parallel instances of a
group at a time: one stops, and its replacement starts elsewhere. Instances that fit
on no other node of the region are stopped too: they wait for room, or go to another
region. node status shows what is left on the node, and why it cannot move. Instances
of system jobs stop last; with --ignore-system they stay.

With --deadline, what has not moved after that time stops at once, also system jobs
that do not stay. Each task still has its kill_timeout. The region keeps the deadline
until the drain ends; the same command with another deadline changes it.

With --wait the command returns when nothing is left on the node; the exit code is 2
if that takes longer than --timeout. The drain then continues.`,
		Example: "  nusa node drain node-7 --wait --timeout 30m\n  nusa node drain node-7 --deadline 1h --ignore-system\n  nusa node drain node-7 --off",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if err := cli.CheckTimeout(timeout); err != nil {
				return err
			}
			if wait && off {
				return errors.New("--wait: nothing leaves the node with --off")
			}
			if off && (ignore || c.Cmd.Flags().Changed("deadline")) {
				return errors.New("--deadline and --ignore-system cannot be used with --off, which ends the drain")
			}
			req := &nusav1.DrainNodeRequest{Id: args[0], Region: c.Region, Drain: !off, IgnoreSystem: ignore}
			if c.Cmd.Flags().Changed("deadline") {
				req.Deadline = durationpb.New(deadline)
			}
			began := time.Now()
			c.Timeout = min(timeout, cli.DefaultTimeout)
			ctx, cancel := c.WithTimeout()
			defer cancel()
			n, err := c.Nodes().Drain(ctx, req)
			if err != nil {
				return err
			}
			if wait {
				if n, err = awaitEmpty(c, n, timeout-time.Since(began)); err != nil {
					return err
				}
			}
			return c.Print(n, func(w *term.Screen) {
				w.Note("", "node "+fullName(n)+" "+workText(n, c.Program))
				writeLeaving(w, n)
			})
		}),
	}
	s.BindRegion(c, "region of the node, when its name is not unique")
	c.Flags().BoolVar(&off, "off", false, "end the drain")
	c.Flags().DurationVar(&deadline, "deadline", 0, "stop by force what has not moved after this time: 1s to 720h; none by default")
	c.Flags().BoolVar(&ignore, "ignore-system", false, "leave instances of system jobs on the node")
	c.Flags().BoolVarP(&wait, "wait", "w", false, "wait until nothing is left on the node")
	c.Flags().DurationVar(&timeout, "timeout", drainTime, "how long to wait for a response, and with --wait in all")
	return c
}

const (
	// drainTime is the default of --timeout, and drainPoll is how often a node is looked at.
	drainTime, drainPoll = 10 * time.Minute, time.Second
)

// awaitEmpty waits until nothing is left on a draining node, and says how much is left.
func awaitEmpty(c *cli.Session, n *nusav1.Node, limit time.Duration) (*nusav1.Node, error) {
	ctx, cancel := context.WithTimeout(c.Ctx, limit)
	defer cancel()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	left := int32(-1)
	for toLeave(n) > 0 {
		if toLeave(n) != left && c.Output == "table" {
			left = toLeave(n)
			c.Printf("%s to move\n", term.Plural(left, "allocation"))
		}
		select {
		case <-ctx.Done():
			return nil, &cli.ExitError{Code: cli.ExitWaiting, Err: fmt.Errorf("node %s still has %s, and its drain continues: see %s node status %s",
				fullName(n), term.Plural(toLeave(n), "allocation"), c.Program, n.GetName())}
		case <-tick.C:
		}
		now, err := c.Nodes().Get(ctx, &nusav1.GetNodeRequest{Id: n.GetId(), Region: n.GetRegion()})
		switch {
		case ctx.Err() != nil: // the select ends the wait
		case err != nil:
			return nil, err
		case !now.GetDraining():
			return nil, fmt.Errorf("the drain of node %s was ended: %s are left on it", fullName(now), term.Plural(now.GetAllocations(), "allocation"))
		default:
			n = now
		}
	}
	return n, nil
}

// toLeave returns how many allocations must still leave a draining node.
func toLeave(n *nusav1.Node) int32 {
	d := n.GetDrain()
	if d.GetIgnoreSystem() {
		return max(0, n.GetAllocations()-d.GetSystemLeft())
	}
	return n.GetAllocations()
}

// systemStays says that instances of system jobs stay on a node that drains.
func systemStays(n int32) string {
	if n == 1 {
		return "; 1 instance of system jobs stays"
	}
	return fmt.Sprintf("; %d instances of system jobs stay", n)
}

// drainLimits says what the deadline of a drain is and what becomes of system jobs.
func drainLimits(d *nusav1.NodeDrain) string {
	text := ""
	if limit := d.GetDeadline(); limit != nil {
		text = ", by force in " + term.Duration(limit.AsDuration())
		if limit.AsDuration() == 0 {
			text = ", by force, because the deadline has passed"
		}
	}
	switch n := d.GetSystemLeft(); {
	case n > 0 && d.GetIgnoreSystem():
		text += systemStays(n)
	case n == 1:
		text += "; 1 instance of system jobs stops last"
	case n > 0:
		text += fmt.Sprintf("; %s of system jobs stop last", term.Plural(n, "instance"))
	}
	return text
}

// workText says which work a node accepts. A node can be cordoned, draining and lost at the
// same time.
func workText(n *nusav1.Node, nusa string) string {
	var parts []string
	if n.GetDraining() {
		left := "nothing is left on it"
		if n.GetAllocations() > 0 && toLeave(n) == 0 {
			left = "nothing must leave it"
			if k := n.GetDrain().GetSystemLeft(); k > 0 {
				left += systemStays(k)
			}
		}
		if toLeave(n) > 0 {
			left = term.Plural(toLeave(n), "allocation") + " to move" + drainLimits(n.GetDrain())
			if n.GetState() != nusav1.NodeState_NODE_STATE_LOST { // otherwise the instances wait for the node and not for room
				left += noRoomText(n.GetLeaving())
			}
		}
		parts = append(parts, fmt.Sprintf("is draining: %s (%s ends that)", left, term.Whole(fmt.Sprintf("%s node drain %s --off", nusa, n.GetName()))))
	}
	if n.GetCordoned() {
		is, then := "takes no new work", "; its instances keep running"
		if n.GetDraining() {
			is, then = "is cordoned", ""
		}
		parts = append(parts, fmt.Sprintf("%s (%s node uncordon %s ends that)%s", is, nusa, n.GetName(), then))
	}
	if s := n.GetState(); s != nusav1.NodeState_NODE_STATE_READY && s != nusav1.NodeState_NODE_STATE_UNSPECIFIED {
		parts = append(parts, "is "+term.Word(s)+" and takes no work until it is back")
	}
	if len(parts) == 0 {
		return "takes new work"
	}
	return strings.Join(parts, ", and ")
}

// noRoomText says how many allocations fit on no other node of the region, and what happens
// to these allocations. It is "" if all fit.
func noRoomText(leaving []*nusav1.LeavingGroup) string {
	none := int32(0)
	for _, g := range leaving {
		none += g.GetCount() - g.GetFits()
	}
	if none == 0 {
		return ""
	}
	return fmt.Sprintf(", and the region's other nodes have no room for %d now: these are stopped anyway, update.max_parallel of a group at a time, and wait for room or go to another region", none)
}

// writeLeaving writes the groups that must leave a draining node, and why not all their
// instances can move now.
func writeLeaving(w *term.Screen, n *nusav1.Node) {
	if len(n.GetLeaving()) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := term.NewTable("LEAVING", ">STILL THERE", ">FIT ELSEWHERE", "#WHY NO MORE")
	for _, g := range n.GetLeaving() {
		t.Row(g.GetNamespace()+"/"+g.GetJob()+" "+g.GetGroup(), term.Count(g.GetCount()), term.Count(g.GetFits()), term.OneLine(reason.WithMessage(g.GetReason(), g.GetMessage())))
	}
	t.DropEmpty("WHY NO MORE")
	t.Write(w)
}

func cordonCommand(s *cli.Settings, cordon bool) *cobra.Command {
	use, short := "cordon NODE", "Give a node no new work; uncordon ends that"
	if !cordon {
		use, short = "uncordon NODE", "Let a node take new work again"
	}
	c := &cobra.Command{
		Use: use, Short: short, Args: cli.Positional("NODE"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			n, err := c.Nodes().Cordon(ctx, &nusav1.CordonNodeRequest{Id: args[0], Region: c.Region, Cordon: cordon})
			if err != nil {
				return err
			}
			return c.Print(n, func(w *term.Screen) { w.Note("", "node "+fullName(n)+" "+workText(n, c.Program)) })
		}),
	}
	s.BindRegion(c, "region of the node, when its name is not unique")
	return c
}
