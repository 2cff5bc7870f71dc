package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa deadletter`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("deadletter", "Instances of batch jobs that have failed for good: show, run again, drop",
		listCommand(s), showCommand(s), redriveCommand(s), dropCommand(s))
	c.Long = "An instance of a batch job that has no attempts left leaves a dead letter: why and\nwhere it failed, and what it wrote last. The job can be removed or run again meanwhile."
	s.Bind(c)
	s.BindNamespace(c)
	return c
}

func client(c *cli.Session) nusav1.DeadLettersClient { return nusav1.NewDeadLettersClient(c.Conn) }

// filter has the flags that select dead letters.
type filter struct {
	req        nusav1.ListDeadLettersRequest
	categories []string
}

func (f *filter) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.req.Job, "job", "", "only of this job, or of its runs")
	flags.StringSliceVar(&f.categories, "category", nil, "only these categories: app, oom, image, config, start, timeout, node_lost")
	flags.StringVar(&f.req.Region, "region", "", "only from this region")
	flags.StringToStringVarP(&f.req.Labels, "label", "l", nil, "only of jobs with this label, KEY=VALUE")
	words := []string{"app", "oom", "image", "config", "start", "timeout", "node_lost"}
	_ = c.RegisterFlagCompletionFunc("category", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // fails only without the flag
}

// given reports whether any flag is set. NUSA_NAMESPACE alone selects nothing.
func (f *filter) given(c *cli.Session) bool {
	return c.Cmd.Flags().Changed("namespace") || f.req.GetJob() != "" || f.req.GetRegion() != "" || len(f.categories) > 0 || len(f.req.GetLabels()) > 0
}

// list returns the selected dead letters, at most this many. 0: all. If the caller changes them, no server of an earlier
// version may have returned a part of the list: it would ignore the labels.
func (f *filter) list(ctx context.Context, c *cli.Session, most int, change bool) (*nusav1.ListDeadLettersResponse, error) {
	for _, name := range f.categories {
		n := nusav1.FailureCategory_value["FAILURE_CATEGORY_"+strings.ToUpper(name)]
		if n == 0 {
			return nil, fmt.Errorf("--category %s: use app, oom, image, config, start, timeout or node_lost", name)
		}
		f.req.Categories = append(f.req.Categories, nusav1.FailureCategory(n))
	}
	f.req.Namespace = c.Namespace
	if change {
		if err := f.checkLabels(ctx, c, 1); err != nil {
			return nil, err
		}
	}
	out := &nusav1.ListDeadLettersResponse{}
	err := cli.Pages(func(token string) (string, error) {
		f.req.PageToken, f.req.Limit = token, 1000
		if most > 0 {
			f.req.Limit = int32(min(1000, most-len(out.DeadLetters)))
		}
		page, err := client(c).List(ctx, &f.req)
		out.DeadLetters = append(out.DeadLetters, page.GetDeadLetters()...)
		out.Retention, out.NextPageToken = page.GetRetention(), page.GetNextPageToken()
		if len(out.DeadLetters) == most {
			return "", err
		}
		return page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	return out, f.checkLabels(ctx, c, len(out.GetDeadLetters()))
}

// checkLabels returns an error if the server ignores labels.
func (f *filter) checkLabels(ctx context.Context, c *cli.Session, found int) error {
	return cli.CheckLabels(f.req.GetLabels(), found, func(labels map[string]string) (int, error) {
		req := proto.CloneOf(&f.req)
		req.Labels, req.PageToken, req.Limit = labels, "", 1
		page, err := client(c).List(ctx, req)
		return len(page.GetDeadLetters()), err
	})
}

func listCommand(s *cli.Settings) *cobra.Command {
	f := &filter{}
	var states *cli.States
	var limit int
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List dead letters, the newest first", Args: cli.Positional(),
		Example: "  nusa deadletter list --job frames --category oom\n  nusa deadletter list --state open -o json",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if one := cli.Enums(states, nusav1.DeadLetterState_DEAD_LETTER_STATE_UNSPECIFIED); len(one) == 1 { // there are two
				f.req.State = one[0]
			}
			if limit < 0 {
				return fmt.Errorf("--limit: %d is negative", limit)
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := f.list(ctx, c, limit, false)
			if err != nil {
				return err
			}
			none := cmp.Or(cli.NoneSuch(c.Program, "dead letters", "deadletter list", states, f.req.GetLabels()), "no dead letters")
			if f.given(c) && len(f.req.GetLabels()) == 0 {
				none = fmt.Sprintf("no such dead letters; %s deadletter list shows all", c.Program)
			}
			return c.Print(out, func(w *term.Screen) { writeList(w, out, none) })
		}),
	}
	f.bind(c)
	states = cli.EnumStateFlag(c, "dead letters", nusav1.DeadLetterState_DEAD_LETTER_STATE_UNSPECIFIED)
	c.Flags().IntVar(&limit, "limit", 100, "at most this many; 0 = all")
	return c
}

// failure describes a failure, for example "app, exit code 3".
func failure(f *nusav1.Failure) string {
	word := term.Word(f.GetCategory())
	switch {
	case f.GetSignal() != 0:
		return fmt.Sprintf("%s, signal %d", word, f.GetSignal())
	case f.GetExitCode() != 0:
		return fmt.Sprintf("%s, exit code %d", word, f.GetExitCode())
	}
	return word
}

func instance(l *nusav1.DeadLetter) string {
	return fmt.Sprintf("%s %s[%d]", cli.JobName(l.GetNamespace(), l.GetJob(), ""), l.GetGroup(), l.GetIndex())
}

func writeList(w *term.Screen, out *nusav1.ListDeadLettersResponse, none string) {
	r := out.GetRetention()
	if len(out.GetDeadLetters()) == 0 {
		fmt.Fprintln(w, none)
	} else {
		t := term.NewTable("ID", "STATE", "INSTANCE", "FAILURE", ">ATTEMPTS", "REGION", "FAILED")
		for _, l := range out.GetDeadLetters() {
			t.Row(l.GetId()[:min(8, len(l.GetId()))], term.Word(l.GetState()), term.OneLine(instance(l)), failure(l.GetFailure()), term.Count(l.GetAttemptCount()),
				term.OneLine(l.GetRegion()), w.Since(l.GetFailed()))
		}
		t.Narrow(w.Width, "REGION", "ATTEMPTS", "STATE")
		t.Write(w)
	}
	if out.GetNextPageToken() != "" {
		fmt.Fprintln(w, "there are more: use --limit 0")
	}
	fmt.Fprintf(w, "%d stored, %d open; kept for %s, at most %d\n", r.GetCount(), r.GetOpen(), job.FormatDuration(r.GetAge().AsDuration()), r.GetMost())
}

func showCommand(s *cli.Settings) *cobra.Command {
	var spec bool
	c := &cobra.Command{
		Use: "show ID", Aliases: []string{"status"}, Short: "Show why an instance failed, its attempts and the end of its log", Args: cli.Positional("ID"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			l, err := client(c).Get(ctx, &nusav1.GetDeadLetterRequest{Id: args[0], Spec: spec})
			if err != nil {
				return err
			}
			var file []byte
			if l.GetSpec() != nil {
				file, err = job.Export(l.GetSpec(), job.YAML)
			}
			if err != nil {
				return err
			}
			return c.Print(l, func(w *term.Screen) { write(w, l, file) })
		}),
	}
	c.Flags().BoolVar(&spec, "spec", false, "show the job that a redrive would submit, too")
	return c
}

func write(w *term.Screen, l *nusav1.DeadLetter, file []byte) {
	fields := [][2]string{
		{"id", l.GetId()}, {"state", term.Word(l.GetState())}, {"instance", fmt.Sprintf("%s, version %d", instance(l), l.GetJobVersion())},
		{"failure", failure(l.GetFailure())}, {"message", term.OneLine(l.GetMessage())}, {"region", term.OneLine(l.GetRegion())}, {"failed", w.Since(l.GetFailed())},
	}
	if l.GetRedriveOf() != "" {
		fields = append(fields, [2]string{"redrive of", l.GetRedriveOf()})
	}
	if l.GetRedrivenAs() != "" {
		fields = append(fields, [2]string{"redriven", fmt.Sprintf("as job %s, %s", cli.JobName(l.GetNamespace(), l.GetRedrivenAs(), ""), w.Since(l.GetRedriven()))})
		if by := l.GetRedrivenBy(); by != "" {
			fields = append(fields, [2]string{"by", term.OneLine(by)})
		}
	}
	term.WriteFields(w, slices.DeleteFunc(fields, func(f [2]string) bool { return f[1] == "" }))
	fmt.Fprintln(w)
	t := term.NewTable("ATTEMPT", "NODE", "RAN FOR", "FAILURE", "#MESSAGE")
	for i, a := range l.GetAttempts() {
		ran := "-"
		if a.GetStarted() != nil && a.GetEnded() != nil {
			ran = term.Duration(a.GetEnded().AsTime().Sub(a.GetStarted().AsTime()))
		}
		number := l.GetAttemptCount() - int32(len(l.GetAttempts())-1-i)
		t.Row(fmt.Sprintf("%d %s", number, term.ShortID(a.GetAllocation())), term.OneLine(a.GetRegion()+"/"+a.GetNode()), ran, failure(a.GetFailure()), term.OneLine(a.GetMessage()))
	}
	t.Narrow(w.Width, "RAN FOR")
	t.Write(w)
	if log := l.GetLog(); log != "" {
		fmt.Fprintln(w, "\nlast lines of the last attempt:")
		for line := range strings.SplitSeq(log, "\n") {
			fmt.Fprintf(w, "  %s\n", term.OneLine(line))
		}
	}
	if len(file) > 0 {
		fmt.Fprintf(w, "\njob of a redrive:\n%s", file)
	}
	if l.GetState() == nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN {
		short := l.GetId()[:min(8, len(l.GetId()))]
		fmt.Fprintf(w, "\nrun it again:  %s deadletter redrive %s\nforget it:     %s deadletter drop %s\n", w.Program, short, w.Program, short)
	}
}

// selected returns the ids of the arguments, or of the dead letters that a filter selects.
func selected(ctx context.Context, c *cli.Session, f *filter, args []string) ([]string, error) {
	switch {
	case len(args) > 0 && f.given(c):
		return nil, errors.New("give either ids or flags that select dead letters")
	case len(args) > 0:
		return args, nil
	case !f.given(c):
		return nil, errors.New("give ids, or select dead letters with --job, --label, --category, --region or --namespace")
	}
	out, err := f.list(ctx, c, 0, true)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, l := range out.GetDeadLetters() {
		ids = append(ids, l.GetId())
	}
	return ids, nil
}

func dropCommand(s *cli.Settings) *cobra.Command {
	f := &filter{}
	c := &cobra.Command{
		Use: "drop [ID...]", Aliases: []string{"rm"}, Short: "Forget dead letters", Args: cobra.ArbitraryArgs,
		Example: "  nusa deadletter drop 3f9a01bc\n  nusa deadletter drop --job frames --category timeout",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ids, err := selected(c.Ctx, c, f, args)
			if err != nil {
				return err
			}
			out := &nusav1.ListDeadLettersResponse{}
			var failed error // it goes on after an error: another caller may have dropped one
			for _, id := range ids {
				ctx, cancel := c.WithTimeout()
				l, err := client(c).Drop(ctx, &nusav1.DropDeadLetterRequest{Id: id})
				cancel()
				if err == nil {
					out.DeadLetters = append(out.DeadLetters, l)
				}
				failed = cmp.Or(failed, err)
				if c.Ctx.Err() != nil {
					break
				}
			}
			err = c.Print(out, func(w *term.Screen) {
				for _, l := range out.GetDeadLetters() {
					fmt.Fprintf(w, "dropped %s: %s, %s\n", l.GetId(), instance(l), failure(l.GetFailure()))
				}
				if len(ids) == 0 {
					fmt.Fprintln(w, "no dead letters")
				}
			})
			return cmp.Or(err, failed)
		}),
	}
	f.bind(c)
	return c
}
