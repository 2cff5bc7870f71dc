package job

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// moment is how times of schedules are shown.
const moment = "2006-01-02 15:04:05 MST"

// momentText returns a time in the time zone of its schedule, and in UTC.
func momentText(at time.Time, zone string) string {
	at = at.UTC()
	in, err := time.LoadLocation(zone)
	if err != nil || in == time.UTC {
		return at.Format(moment) // a server of a later version may know a zone that this program does not know
	}
	local, utc := at.In(in), at.Format("15:04:05 MST")
	if local.Format(time.DateOnly) != at.Format(time.DateOnly) {
		utc = at.Format(moment)
	}
	return local.Format(moment) + ", " + utc
}

func scheduleListCommand(s *cli.Settings) *cobra.Command {
	var paused bool
	var labels map[string]string
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Short: "List the jobs with a schedule", Args: cobra.NoArgs,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			out := &nusav1.ListSchedulesResponse{}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			err := cli.Pages(func(token string) (string, error) {
				page, err := schedules(c).List(ctx, &nusav1.ListSchedulesRequest{
					Namespace: c.Namespace, Paused: paused, States: states.Words(), Labels: labels, PageToken: token,
				})
				out.Schedules = append(out.Schedules, page.GetSchedules()...)
				return page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			if err := cli.CheckLabels(labels, len(out.GetSchedules()), func(labels map[string]string) (int, error) {
				page, err := schedules(c).List(ctx, &nusav1.ListSchedulesRequest{Namespace: c.Namespace, Labels: labels, Limit: 1})
				return len(page.GetSchedules()), err
			}); err != nil {
				return err
			}
			out.Schedules = slices.DeleteFunc(out.Schedules, func(x *nusav1.ScheduleStatus) bool { // a server of an earlier version does not select
				return !states.Has(filter.Schedule(x.GetPaused(), int(x.GetActive()), len(x.GetWaiting())+int(x.GetBackfill()), int(x.GetFailures()))...)
			})
			none := cmp.Or(cli.NoneSuch(c.Program, "schedules", "job schedule list", states, labels), "no job has a schedule")
			return c.Print(out, func(w *term.Screen) { writeSchedules(w, out.GetSchedules(), none) })
		}),
	}
	c.Flags().BoolVar(&paused, "paused", false, "only schedules that are paused, like --state paused")
	cli.LabelFlag(c, &labels, "schedules of jobs")
	states = cli.StateFlag(c, "schedules", filter.ScheduleStates...)
	return c
}

// writeSchedules writes a table of schedules, or none if there are none.
func writeSchedules(w *term.Screen, all []*nusav1.ScheduleStatus, none string) {
	if len(all) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	t := term.NewTable("JOB", "NEXT", "LATEST", ">ACTIVE", ">FAILURES", "#PAUSED")
	for _, st := range all {
		next, latest, paused := "-", "-", ""
		if n := st.GetNext(); len(n) > 0 {
			at := n[0].AsTime().UTC()
			if in, err := time.LoadLocation(st.GetTimeZone()); err == nil {
				at = at.In(in)
			}
			next = at.Format("2006-01-02 15:04 MST")
		}
		if runs := st.GetRuns(); len(runs) > 0 {
			latest = w.State(term.Word(runs[0].GetState())) + " " + w.Since(runs[0].GetBegan()) + " ago"
		}
		if st.GetPaused() {
			next, paused = "paused", term.OneLine(st.GetPauseReason())
			if paused == "" {
				paused = "by a caller"
			}
		}
		t.Row(st.GetJob(), w.State(next), latest, term.Count(st.GetActive()), term.Count(st.GetFailures()), paused)
	}
	t.DropEmpty("ACTIVE", "FAILURES", "PAUSED")
	t.Write(w)
}
