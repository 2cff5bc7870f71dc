package audit

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// Command returns the command `nusa audit`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("audit", "See and verify who did what", listCommand(s), showCommand(s), exportCommand(s), verifyCommand(s))
	s.Bind(c)
	return c
}

// pageSize is how many entries one request asks for.
const pageSize = 500

func listCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.ListAuditRequest{}
	var since time.Duration
	limit := 50
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List entries of the audit trail, the latest first", Args: cli.Positional(),
		Long: `Lists who did what, the latest first. The trail has an entry for each change, and for
each exec session and each log read. A change and its entry are stored together, or not
at all.

Regions have trails of their own, which they forward. The list of the global tier also has
these entries, in the order in which they arrived: those of a region that was cut off come
once the region is back.`,
		Example: `  nusa audit list --since 24h --who 'operator/*'
  nusa audit list --kind allocation --verb exec`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if limit < 1 {
				return fmt.Errorf("--limit: %d is not a number of entries", limit)
			}
			if req.Stored && c.Region == "" {
				return errStored
			}
			req.Region = c.Region
			if since > 0 {
				req.Since = timestamppb.New(time.Now().Add(-since))
			}
			out := &nusav1.ListAuditResponse{}
			for len(out.Entries) < limit {
				req.Limit = int32(min(pageSize, limit-len(out.Entries)))
				page, err := list(c, req)
				if err != nil {
					return err
				}
				out.Entries = append(out.Entries, page.GetEntries()...)
				req.Page, out.NextPage = page.GetNextPage(), page.GetNextPage()
				if page.GetNextPage() == "" {
					break
				}
			}
			return c.Print(out, func(w *term.Screen) { writeEntries(w, out) })
		}),
	}
	s.BindRegion(c, "the trail of this region")
	f := c.Flags()
	storedFlag(c, &req.Stored)
	f.BoolVar(&req.Own, "own", false, "only the trail of the called server, without the trails of regions")
	f.StringVar(&req.Who, "who", "", "only of this caller, such as operator/jane; * stands for any text")
	f.StringVar(&req.Verb, "verb", "", "only this verb, such as submit or exec")
	f.StringVar(&req.Kind, "kind", "", "only this kind of object, such as job or allocation")
	f.StringVar(&req.Name, "name", "", "only objects of this name; * stands for any text")
	f.StringVar(&req.Namespace, "in-namespace", "", "only objects in this namespace; * stands for any text")
	f.StringVar(&req.Outcome, "outcome", "", "only this outcome: done, started or denied")
	f.Var(cli.NewDuration(&since, func(d time.Duration) error {
		if d <= 0 {
			return errors.New("is not a time before now")
		}
		return nil
	}), "since", "only entries of this time before now, such as 24h or 7d")
	f.IntVar(&limit, "limit", limit, "at most this many entries")
	return c
}

// storedFlag adds the flag --stored to a command that has --region.
func storedFlag(c *cobra.Command, to *bool) {
	c.Flags().BoolVar(to, "stored", false, "with --region: what the global tier has stored of the region's trail; the region need not be connected")
}

func list(c *cli.Session, req *nusav1.ListAuditRequest) (*nusav1.ListAuditResponse, error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	return c.Audit().List(ctx, req)
}

func showCommand(s *cli.Settings) *cobra.Command {
	var stored bool
	c := &cobra.Command{
		Use: "show NUMBER", Short: "Show an entry of the audit trail", Args: cli.Positional("NUMBER"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			seq, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || seq < 1 {
				return fmt.Errorf("%q is not the number of an entry; %s audit list shows the numbers", args[0], c.Program)
			}
			if stored && c.Region == "" {
				return errStored
			}
			resp, err := list(c, &nusav1.ListAuditRequest{Seq: seq, Region: c.Region, Stored: stored})
			if err != nil {
				return err
			}
			if len(resp.GetEntries()) == 0 {
				return fmt.Errorf("there is no entry %d, or it is no longer kept", seq)
			}
			return c.Print(resp.GetEntries()[0], func(w *term.Screen) { writeEntry(w, resp.GetEntries()[0]) })
		}),
	}
	s.BindRegion(c, "the trail of this region")
	storedFlag(c, &stored)
	return c
}

// timeFormat is the form of times in the tables.
const timeFormat = time.DateTime

func writeEntries(w *term.Screen, resp *nusav1.ListAuditResponse) {
	if len(resp.GetEntries()) == 0 {
		fmt.Fprintln(w, "no entries")
		return
	}
	t := term.NewTable(">ENTRY", "SOURCE", "TIME", "WHO", "FROM", "OUTCOME", "VERB", "KIND", "NAME", "REGION", "#REASON")
	for _, e := range resp.GetEntries() {
		t.Row(strconv.FormatInt(e.GetSeq(), 10), term.OneLine(e.GetSource()), e.GetTime().AsTime().Local().Format(timeFormat), who(w, e), host(e.GetFrom()),
			outcome(w, e.GetOutcome()), e.GetVerb(), e.GetKind(), nameOf(e), e.GetRegion(), term.OneLine(e.GetReason()))
	}
	t.DropEmpty("SOURCE", "FROM", "REGION", "REASON")
	t.Narrow(w.Width, "FROM", "REGION", "OUTCOME", "SOURCE", "REASON", "KIND")
	t.Write(w)
	if resp.GetNextPage() != "" {
		fmt.Fprintln(w, w.Faint("(earlier entries: --limit)"))
	}
}

// who names the caller of an entry.
func who(w *term.Screen, e *nusav1.AuditEntry) string {
	if e.GetWho() == "" {
		return w.Faint("no identity")
	}
	return term.OneLine(e.GetWho())
}

// host returns an address without its port.
func host(addr string) string {
	if i := strings.LastIndexByte(addr, ':'); i > 0 {
		addr = addr[:i]
	}
	return term.OneLine(strings.Trim(addr, "[]"))
}

func outcome(w *term.Screen, text string) string {
	if text == audit.Denied {
		return w.Bad(text)
	}
	return term.OneLine(text)
}

// nameOf returns the name of an entry's object.
func nameOf(e *nusav1.AuditEntry) string {
	name := term.OneLine(e.GetName())
	if e.GetKind() == "allocation" {
		name = term.ShortID(name)
	}
	if e.GetNamespace() != "" {
		name = term.OneLine(e.GetNamespace()) + "/" + name
	}
	return term.OrDash(name)
}

func writeEntry(w *term.Screen, e *nusav1.AuditEntry) {
	fmt.Fprintln(w, strings.Join([]string{w.Bold(fmt.Sprintf("entry %d", e.GetSeq())), term.OneLine(e.GetVerb() + " " + e.GetKind()), outcome(w, e.GetOutcome())}, term.Gap))
	t := term.NewTable("", "")
	add := func(name, value string) {
		if value != "" {
			t.Row(w.Faint(name), value)
		}
	}
	add("source", term.OneLine(e.GetSource()))
	add("time", e.GetTime().AsTime().Local().Format("2006-01-02 15:04:05.000000"))
	add("who", who(w, e))
	add("from", term.OneLine(e.GetFrom()))
	add("method", term.OneLine(e.GetMethod()))
	add("namespace", term.OneLine(e.GetNamespace()))
	add("name", term.OneLine(e.GetName()))
	add("region", term.OneLine(e.GetRegion()))
	add("request", term.OneLine(e.GetRequest()))
	add("reason", term.OneLine(e.GetReason()))
	add("before", hex.EncodeToString(e.GetBefore()))
	add("after", hex.EncodeToString(e.GetAfter()))
	add("hash", hex.EncodeToString(e.GetHash()))
	t.WriteBody(w)
}
