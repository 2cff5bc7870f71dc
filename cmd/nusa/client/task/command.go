package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// pageSize is the greatest number of tasks that a server returns at once.
const pageSize = 1000

// Command returns the command `nusa task`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("task", "The history of all work: every task by its UUID, with every state and its time",
		listCommand(s), showCommand(s))
	c.Long = "Each region keeps a record of every allocation: all its states with their times. A record\nstays after the allocation and its job are forgotten. Its UUID is the id of the allocation."
	s.BindNamespace(c)
	s.Bind(c)
	return c
}

func client(c *cli.Session) nusav1.TasksClient { return nusav1.NewTasksClient(c.Conn) }

// filter has the flags that select tasks.
type filter struct {
	job, node, group string
	labels           map[string]string
	states           *cli.States
	since, until     moment
}

var stateWords = []string{"pending", "starting", "running", "complete", "failed", "stopped", "lost"}

// moment is a time that a flag gives: a time, a date, or a time before now.
type moment struct{ at time.Time }

// String implements pflag.Value.
func (m *moment) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.Format(time.RFC3339)
}

// Type implements pflag.Value.
func (m *moment) Type() string { return "TIME" }

// Set implements pflag.Value.
func (m *moment) Set(text string) error {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			m.at = at
			return nil
		}
	}
	var before time.Duration
	err := cli.NewDuration(&before, func(d time.Duration) error {
		if d < 0 {
			return errors.New("is negative: give the time before now")
		}
		return nil
	}).Set(text)
	if err != nil {
		return fmt.Errorf("%w; or a time like 2026-11-29T06:00:00Z, or a date", err)
	}
	m.at = time.Now().Add(-before)
	return nil
}

// stamp returns the time, or nil if the flag is not given.
func (m *moment) stamp() *timestamppb.Timestamp {
	if m.at.IsZero() {
		return nil
	}
	return timestamppb.New(m.at)
}

func (f *filter) request(c *cli.Session) (*nusav1.ListTasksRequest, error) {
	req := &nusav1.ListTasksRequest{
		Region: c.Region, Node: f.node, Group: f.group, Labels: f.labels, Since: f.since.stamp(), Until: f.until.stamp(),
	}
	for i, word := range stateWords {
		if f.states.Chosen(word) {
			req.States = append(req.States, nusav1.AllocState(i+1))
		}
	}
	switch {
	case f.job != "":
		ref, err := c.Ref(f.job)
		if err != nil {
			return nil, err
		}
		req.Job = ref
	case c.Namespace != "":
		req.Job = &nusav1.JobRef{Namespace: c.Namespace}
	}
	return req, nil
}

// list returns the selected tasks, at most this many. 0: all.
func list(ctx context.Context, c *cli.Session, req *nusav1.ListTasksRequest, most int) (*nusav1.ListTasksResponse, error) {
	out := &nusav1.ListTasksResponse{}
	err := cli.Pages(func(token string) (string, error) {
		req.PageToken, req.Limit = token, pageSize
		if most > 0 {
			req.Limit = int32(min(pageSize, most-len(out.Tasks)))
		}
		page, err := client(c).List(ctx, req)
		if token == "" {
			out.Retention = page.GetRetention()
		}
		for _, e := range page.GetErrors() { // a region may fail on a later page
			if !slices.ContainsFunc(out.Errors, func(x *nusav1.PartialError) bool { return x.GetRegion() == e.GetRegion() }) {
				out.Errors = append(out.Errors, e)
			}
		}
		out.Tasks, out.NextPageToken = append(out.Tasks, page.GetTasks()...), page.GetNextPageToken()
		if len(out.Tasks) == most {
			return "", err
		}
		return page.GetNextPageToken(), err
	})
	return out, err
}

func listCommand(s *cli.Settings) *cobra.Command {
	f := &filter{}
	var limit int
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List tasks of the past and present, the newest first", Args: cli.Positional(),
		Example: "  nusa task list --job frames --state failed --since 7d\n  nusa task list --label team=video --until 2026-11-29 -o json",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if limit < 0 {
				return fmt.Errorf("--limit: %d is negative", limit)
			}
			req, err := f.request(c)
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := list(ctx, c, req, limit)
			if err != nil {
				return err
			}
			c.WarnPartial(out.GetErrors())
			return c.Print(out, func(w *term.Screen) { writeList(w, out, cli.Incomplete(out.GetErrors())) })
		}),
	}
	s.BindRegion(c, "only tasks in this region")
	flags := c.Flags()
	flags.StringVar(&f.job, "job", "", "only tasks of this job, also if it is forgotten")
	flags.StringVar(&f.group, "group", "", "only of this group of the job")
	flags.StringVar(&f.node, "node", "", "only on this node, by its name or whole id")
	cli.LabelFlag(c, &f.labels, "tasks of jobs")
	f.states = cli.StateFlag(c, "tasks", stateWords...)
	flags.Var(&f.since, "since", "only tasks placed since then: a time, a date, or a time before now such as 7d")
	flags.Var(&f.until, "until", "only tasks placed before then: a time, a date, or a time before now such as 24h")
	flags.IntVar(&limit, "limit", 100, "at most this many; 0 = all")
	return c
}

func writeList(w *term.Screen, out *nusav1.ListTasksResponse, unseen string) {
	if len(out.GetTasks()) == 0 {
		fmt.Fprintf(w, "no such tasks in the history%s; %s alloc list shows what runs now\n", unseen, w.Program)
	} else {
		writeTable(w, out.GetTasks())
	}
	if out.GetNextPageToken() != "" {
		fmt.Fprintln(w, "there are more: use --limit 0, or narrow it with --job, --state, --since")
	}
	for _, r := range out.GetRetention() {
		for _, g := range r.GetGaps() {
			w.Note("region "+term.OneLine(r.GetRegion())+": ", gapText(g))
		}
	}
}

func writeTable(w *term.Screen, list []*nusav1.TaskRecord) {
	t := term.NewTable("ID", "INSTANCE", "STATE", "REGION", "NODE", ">PLACED", ">RAN", "#MESSAGE")
	for _, r := range list {
		why := term.Why(r.GetReason(), r.GetMessage())
		if r.GetState() == nusav1.AllocState_ALLOC_STATE_COMPLETE {
			why = "" // the state says it; the columns of region and node need the room
		}
		t.Row(term.ShortID(r.GetId()), instance(r), w.State(stateText(r)), term.OneLine(r.GetRegion()), term.OneLine(r.GetNode()),
			w.Since(r.GetPlaced()), ran(w, r), why)
	}
	t.DropEmpty("MESSAGE")
	t.Narrow(w.Width, "RAN", "NODE", "REGION")
	t.Write(w)
}

func instance(r *nusav1.TaskRecord) string {
	return term.OneLine(fmt.Sprintf("%s %s[%d]", cli.JobName(r.GetNamespace(), r.GetJob(), ""), r.GetGroup(), r.GetIndex()))
}

// stateText returns the word for a state. The end of a task may be unknown.
func stateText(r *nusav1.TaskRecord) string {
	if r.GetState() == nusav1.AllocState_ALLOC_STATE_UNSPECIFIED {
		return "unknown"
	}
	return term.Word(r.GetState())
}

// ran says how long a task has run.
func ran(w *term.Screen, r *nusav1.TaskRecord) string {
	switch {
	case r.GetStarted() == nil:
		return "-"
	case r.GetEnded() == nil:
		return w.Since(r.GetStarted())
	}
	return term.Duration(r.GetEnded().AsTime().Sub(r.GetStarted().AsTime()))
}

// gapText describes a gap in a history.
func gapText(g *nusav1.TaskGap) string {
	var text strings.Builder
	text.WriteString("the history has a gap ")
	if g.GetFrom() != nil {
		text.WriteString("from " + clock(g.GetFrom()) + " ")
	}
	text.WriteString("to " + clock(g.GetTo()))
	if g.GetMissed() > 0 {
		fmt.Fprintf(&text, ", %d events", g.GetMissed())
	}
	return text.String() + ": " + term.OneLine(g.GetWhy())
}

// clock formats a time with its date.
func clock(t *timestamppb.Timestamp) string {
	return t.AsTime().Local().Format("2006-01-02 15:04:05.000")
}
