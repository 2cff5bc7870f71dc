package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func roleListCommand(s *cli.Settings) *cobra.Command {
	return listCommand(s, "List the roles and their rules", func(ctx context.Context, a nusav1.AuthClient) (*nusav1.ListRolesResponse, error) {
		return a.ListRoles(ctx, &nusav1.ListRolesRequest{})
	}, func(w *term.Screen, r *nusav1.ListRolesResponse) { writeRoles(w, r.GetRoles()) })
}

func writeRoles(w *term.Screen, roles []*nusav1.AuthRole) {
	t := term.NewTable("ROLE", "FROM", "RULE")
	room := w.Width
	for _, r := range roles {
		room = min(room, w.Width-len(r.GetName())-len("built in")-2*len(term.Gap)-1)
	}
	for _, r := range roles {
		name, from := r.GetName(), "stored"
		if r.GetBuiltIn() {
			from = "built in"
		}
		for _, rule := range r.GetRules() {
			for _, line := range atCommas(term.OneLine(ruleText(rule)), room) {
				t.Row(name, from, line)
				name, from = "", ""
			}
		}
		if len(r.GetRules()) == 0 {
			t.Row(name, from, "none")
		}
	}
	t.Write(w)
}

// atCommas breaks a text after commas into lines that fit a width. A width of 0 or less is unlimited.
func atCommas(text string, width int) (lines []string) {
	line := ""
	for part := range strings.SplitAfterSeq(text, ",") {
		if line != "" && width > 0 && lipgloss.Width(line)+lipgloss.Width(part) > width {
			lines, line = append(lines, line), "  "
		}
		line += part
	}
	return append(lines, line)
}

// ruleText returns a rule as the flags of `role set` take it.
func ruleText(r *nusav1.AuthRule) string {
	out := "deny "
	if r.GetAllow() {
		out = "allow "
	}
	out += strings.Join(r.GetVerbs(), ",") + " " + strings.Join(r.GetKinds(), ",")
	for _, in := range []struct {
		what string
		list []string
	}{{"namespace", r.GetNamespaces()}, {"region", r.GetRegions()}} {
		if len(in.list) > 0 {
			out += " " + in.what + "=" + strings.Join(in.list, ",")
		}
	}
	if r.GetCondition() != "" {
		out += " if " + r.GetCondition()
	}
	return out
}

// parseRule reads "VERB,… KIND,… [namespace=A,…] [region=B,…] [if CONDITION]".
func parseRule(text string, allow bool) (*nusav1.AuthRule, error) {
	start, condition, conditional := strings.Cut(text, " if ")
	words := strings.Fields(start)
	if len(words) < 2 {
		return nil, fmt.Errorf("%q is not a rule: write \"VERB,VERB KIND,KIND\", and perhaps namespace=A,B region=C", text)
	}
	r := &nusav1.AuthRule{Allow: allow, Verbs: strings.Split(words[0], ","), Kinds: strings.Split(words[1], ","), Condition: strings.TrimSpace(condition)}
	if conditional && r.GetCondition() == "" {
		return nil, fmt.Errorf("rule %q: the condition after \"if\" is empty", text)
	}
	for _, word := range words[2:] {
		what, list, _ := strings.Cut(word, "=")
		switch what {
		case "namespace":
			r.Namespaces = strings.Split(list, ",") // an empty pattern is refused by the server
		case "region":
			r.Regions = strings.Split(list, ",")
		default:
			return nil, fmt.Errorf("rule %q: %q is neither namespace=A,B nor region=C", text, word)
		}
	}
	return r, nil
}

func roleSetCommand(s *cli.Settings) *cobra.Command {
	var allow, deny []string
	var force bool
	c := &cobra.Command{
		Use: "set ROLE", Short: "Store a role, replacing its rules", Args: cli.Positional("ROLE"),
		Long: `Stores a role. A rule is "VERB,… KIND,…" and may end with namespace=A,B and
region=C. Verbs and kinds may be *, and namespaces and regions may be patterns
such as pay-*. A rule that denies wins over all that allow.

At the end may be "if CONDITION": a CEL expression over request (principal, verb,
kind, namespace, region, name), and in rules for submit and plan of jobs also over
job (namespace, name, type, priority, labels, groups). If it fails, a rule that
allows does not match, and a rule that denies does.`,
		Example: `  nusa auth role set reader --allow 'read job,allocation namespace=pay-*'
  nusa auth role set no-exec --deny 'exec allocation'
  nusa auth role set deployer --allow 'submit job if job.priority < 80'
  nusa auth role set no-volumes --deny \
    'submit job if job.groups.exists(g, g.volumes.size() > 0)'`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			role := &nusav1.AuthRole{Name: args[0]}
			for _, texts := range []struct {
				list  []string
				allow bool
			}{{allow, true}, {deny, false}} {
				for _, text := range texts.list {
					r, err := parseRule(text, texts.allow)
					if err != nil {
						return err
					}
					role.Rules = append(role.Rules, r)
				}
			}
			if len(role.GetRules()) == 0 {
				return errors.New("give a rule with --allow or --deny")
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).SetRole(ctx, &nusav1.SetRoleRequest{Role: role, Force: force})
			if err != nil {
				return err
			}
			warnWithoutIdentity(ctx, c)
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "role %s is stored\n", resp.GetName()) })
		}),
	}
	c.Flags().StringArrayVar(&allow, "allow", nil, "a rule that allows; give one for each")
	c.Flags().StringArrayVar(&deny, "deny", nil, "a rule that denies; give one for each")
	bindForce(c, &force)
	return c
}

func bindForce(c *cobra.Command, force *bool) {
	c.Flags().BoolVar(force, "force", false, "change it even if you could not change roles any more")
}

func roleRemoveCommand(s *cli.Settings) *cobra.Command {
	return dropCommand(s, "remove", "ROLE", "Remove a stored role that nothing uses", "role %s is removed",
		func(ctx context.Context, a nusav1.AuthClient, name string) (*nusav1.RemoveRoleResponse, error) {
			return a.RemoveRole(ctx, &nusav1.RemoveRoleRequest{Name: name})
		})
}
