package node

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func membersCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "members", Short: "List who has joined, is registered, is banned or was removed", Args: cli.Positional(),
		Long: `Lists the agents and regional servers that have joined with tokens, the registered
nodes, the bans, and the members that were removed and whose keys are refused.

A certificate that has ended is renewed for some time more: see region join-policy.
After that time the member is forgotten.`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewMembersClient(c.Conn).List(ctx, &nusav1.ListMembersRequest{Region: c.Region})
			if err != nil {
				return err
			}
			c.WarnPartial(resp.GetErrors())
			return c.Print(resp, func(w *term.Screen) {
				none := fmt.Sprintf("no members have joined with tokens%s; %s token create makes a token", cli.Incomplete(resp.GetErrors()), c.Program)
				writeMembers(w, memberRows(resp, time.Now()), none)
			})
		}),
	}
	s.BindRegion(c, "only members of this region")
	return c
}

// memberRow is what is known about the members of one name.
type memberRow struct {
	role, region, name               string
	states                           []string
	pool, address, ends, token, note string
}

// memberRows returns a row for each name.
func memberRows(r *nusav1.ListMembersResponse, now time.Time) []*memberRow {
	rows := map[[3]string]*memberRow{}
	row := func(role, region, name, state string) *memberRow {
		key := [3]string{role, region, name}
		if rows[key] == nil {
			rows[key] = &memberRow{role: role, region: region, name: name}
		}
		if !slices.Contains(rows[key].states, state) {
			rows[key].states = append(rows[key].states, state)
		}
		return rows[key]
	}
	for _, b := range r.GetBans() {
		row(b.GetRole(), b.GetRegion(), b.GetName(), "banned").note = b.GetReason()
	}
	for _, m := range r.GetMembers() {
		x := row(m.GetRole(), m.GetRegion(), m.GetName(), "joined")
		x.pool, x.token = m.GetPool(), m.GetToken()
		left := m.GetNotAfter().AsTime().Sub(now)
		x.ends = "in " + term.Duration(left)
		if left < 0 {
			x.ends = term.Duration(-left) + " ago"
		}
	}
	for _, n := range r.GetNodes() {
		x := row(roleAgent, n.GetRegion(), n.GetName(), "registered")
		x.pool, x.address, x.note = cmp.Or(x.pool, n.GetPool()), n.GetAddress(), cmp.Or(x.note, n.GetDescription())
	}
	for _, m := range r.GetRemoved() {
		row(m.GetRole(), m.GetRegion(), m.GetName(), "removed")
	}
	out := make([]*memberRow, 0, len(rows))
	for _, x := range rows {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b *memberRow) int {
		return cmp.Or(cmp.Compare(a.region, b.region), -cmp.Compare(a.role, b.role), cmp.Compare(a.name, b.name))
	})
	return out
}

func writeMembers(w *term.Screen, rows []*memberRow, none string) {
	if len(rows) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	t := term.NewTable("NAME", "REGION", "ROLE", "STATE", "POOL", "ADDRESS", "CERTIFICATE ENDS", "TOKEN", "NOTE")
	for _, x := range rows {
		t.Row(term.OrDash(x.name), x.region, x.role, strings.Join(x.states, ", "), term.OrDash(x.pool), term.OrDash(x.address), term.OrDash(x.ends), term.OrDash(x.token), term.OrDash(term.OneLine(x.note)))
	}
	t.Narrow(w.Width, "TOKEN", "NOTE", "POOL", "ADDRESS")
	t.Write(w)
}
