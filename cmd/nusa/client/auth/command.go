package auth

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// Command returns the command `nusa auth`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("auth", "Show and set who may do what",
		whoAmICommand(s), canICommand(s), explainCommand(s),
		cli.Noun("role", "Roles: lists of rules", roleListCommand(s), roleSetCommand(s), roleRemoveCommand(s)),
		cli.Noun("binding", "Bindings: who has which role", bindingListCommand(s), bindingSetCommand(s), bindingRemoveCommand(s)),
		cli.Noun("token", "Access tokens for programs", tokenListCommand(s), tokenCreateCommand(s), tokenRevokeCommand(s)),
		cli.Noun("provider", "Providers: whose users may log in", providerListCommand(s), providerSetCommand(s), providerRemoveCommand(s)))
	s.Bind(c)
	return c
}

func client(c *cli.Session) nusav1.AuthClient { return nusav1.NewAuthClient(c.Conn) }

// warnWithoutIdentity warns that a change has no effect on a server that cannot know its callers.
func warnWithoutIdentity(ctx context.Context, c *cli.Session) {
	me, err := client(c).WhoAmI(ctx, &nusav1.WhoAmIRequest{})
	if err == nil && me.GetPrincipal() == "" {
		c.Warn("this server has no identity, so every caller may do everything, and the change has no effect")
	}
}

func whoAmICommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show the principal of this client and its roles", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).WhoAmI(ctx, &nusav1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeWhoAmI(w, resp) })
		}),
	}
}

func writeWhoAmI(w *term.Screen, r *nusav1.WhoAmIResponse) {
	if r.GetPrincipal() == "" {
		fmt.Fprintln(w, w.Wait("the connection is not encrypted, so every caller may do everything"))
		return
	}
	credential := r.GetCredential()
	if r.GetExpires() != nil {
		credential += ", expires in " + term.Age(durationpb.New(r.GetExpires().AsTime().Sub(w.Now)))
	}
	for _, line := range [][2]string{
		{"principal", term.OneLine(r.GetPrincipal())}, {"credential", credential}, {"roles", rolesText(r)}, {"policy", policyText(r)},
	} {
		fmt.Fprintf(w, "%-12s%s\n", line[0], line[1])
	}
	if r.GetAwaits() {
		fmt.Fprintln(w, "\nthis region has not received from the global tier who may do what, so operators with certificates may do nothing here")
	}
	if r.GetUnbound() {
		fmt.Fprintf(w, "\nno binding is stored, so each operator certificate has the role admin:\n%s auth binding set admins --role admin --subject %s\n", w.Program, term.OneLine(r.GetPrincipal()))
	}
}

// rolesText lists the roles of the caller, and where each holds.
func rolesText(r *nusav1.WhoAmIResponse) string {
	var out []string
	for _, g := range r.GetGrants() {
		text := g.GetRole()
		if len(g.GetNamespaces()) > 0 {
			text += " in namespaces " + strings.Join(g.GetNamespaces(), ",")
		}
		if len(g.GetRegions()) > 0 {
			text += " in regions " + strings.Join(g.GetRegions(), ",")
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	if len(out) == 0 { // an older server
		out = r.GetRoles()
	}
	slices.Sort(out)
	return orNone(out)
}

func policyText(r *nusav1.WhoAmIResponse) string {
	out := "nothing stored"
	if v := r.GetPolicyVersion(); v > 0 {
		out = "version " + strconv.FormatInt(v, 10)
	}
	if r.GetPolicyAge() != nil {
		out += ", confirmed by the global tier " + term.Age(r.GetPolicyAge()) + " ago"
	}
	return out
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return term.OneLine(strings.Join(list, ", "))
}

// question holds the flags of can-i and explain.
type question struct{ namespace, region, name, as string }

func (q *question) bind(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&q.namespace, "namespace", "n", "", "namespace of the object; without it: every namespace")
	f.StringVar(&q.region, "region", "", "region of the object; without it: every region")
	f.StringVar(&q.name, "name", "", "name of the object, for the text of the answer")
	f.StringVar(&q.as, "as", "", "ask for another principal: operator/NAME, token/ACCESSOR or user/SUBJECT@PROVIDER")
}

func (q *question) ask(c *cli.Session, args []string) (*nusav1.CanIResponse, error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	return client(c).CanI(ctx, &nusav1.CanIRequest{Verb: args[0], Kind: args[1], Namespace: q.namespace, Region: q.region, Name: q.name, As: q.as})
}

func canICommand(s *cli.Settings) *cobra.Command {
	q := question{}
	c := &cobra.Command{
		Use: "can-i VERB KIND", Short: "Say whether an action is allowed", Args: cli.Positional("VERB", "KIND"),
		Long: "Says whether an action is allowed, and why. Ends with 1 if it is not.\n\n" + kindsText(),
		Example: `  nusa auth can-i submit job --namespace pay
  nusa auth can-i exec allocation --namespace pay --as operator/jane`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			resp, err := q.ask(c, args)
			if err != nil {
				return err
			}
			resp.Steps = nil
			if err := c.Print(resp, func(w *term.Screen) { writeAnswer(w, resp) }); err != nil || resp.GetAllowed() {
				return err
			}
			return &cli.ExitError{Code: cli.ExitFail}
		}),
	}
	q.bind(c)
	return c
}

// kindsText lists the kinds of objects with their verbs.
func kindsText() string {
	out := "The kinds and their verbs:"
	for _, k := range authz.Kinds() {
		out += fmt.Sprintf("\n  %-12s%s", k.Name, strings.Join(k.Verbs, " "))
	}
	return out
}

func writeAnswer(w *term.Screen, r *nusav1.CanIResponse) {
	answer := w.Good("yes")
	switch {
	case r.GetDepends():
		answer = w.Wait("perhaps")
	case !r.GetAllowed():
		answer = w.Bad("no")
	}
	fmt.Fprintf(w, "%s: %s\n", answer, term.OneLine(r.GetReason()))
}

func explainCommand(s *cli.Settings) *cobra.Command {
	q := question{}
	c := &cobra.Command{
		Use: "explain VERB KIND", Short: "Show what each rule says about an action", Args: cli.Positional("VERB", "KIND"),
		Example: `  nusa auth explain stop job --namespace pay --as operator/jane`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			resp, err := q.ask(c, args)
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeSteps(w, resp) })
		}),
	}
	q.bind(c)
	return c
}

func writeSteps(w *term.Screen, r *nusav1.CanIResponse) {
	writeAnswer(w, r)
	if len(r.GetSteps()) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := term.NewTable("ROLE", "FROM", "RULE", "RESULT")
	for _, step := range r.GetSteps() {
		from, result := "the credential", "matches"
		if step.GetBinding() != "" {
			from = "binding " + step.GetBinding()
		}
		if step.GetMisses() != "" {
			result = step.GetMisses()
		}
		t.Row(step.GetRole()+"#"+strconv.Itoa(int(step.GetNumber())), from, term.OneLine(step.GetRule()), term.OneLine(result))
	}
	t.Write(w)
}
