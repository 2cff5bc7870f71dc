package job

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// runsShown bounds the runs that a status shows, and timesShown the next times.
	runsShown, timesShown = 10, 3
	// runsAsked bounds the runs that -o json shows.
	runsAsked = 1000
)

func schedules(c *cli.Session) nusav1.SchedulesClient { return nusav1.NewSchedulesClient(c.Conn) }

func scheduleCommand(s *cli.Settings) *cobra.Command {
	c := cli.Noun("schedule", "Pause, resume and trigger schedules, and show their runs",
		scheduleListCommand(s), scheduleShowCommand(s), scheduleNextCommand(s), schedulePauseCommand(s), scheduleResumeCommand(s), scheduleTriggerCommand(s), scheduleBackfillCommand(s))
	cli.Instead(c, "job schedule", "periodic", "cron")
	c.Long = "The runs of a job with `schedule` are jobs of their own, such as nightly.20261128-023000."
	return c
}

func scheduleShowCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show JOB", Short: "Show the runs of a job and its next times", Args: cli.Positional("JOB"),
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) error {
			st, err := schedules(c).Get(ctx, &nusav1.GetScheduleRequest{Job: ref, Next: timesShown, Runs: runsAsked})
			if err != nil {
				return err
			}
			return c.Print(st, func(w *term.Screen) { writeSchedule(w, st) })
		}),
	}
}

func scheduleNextCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "next JOB [COUNT]", Short: "Show the next times of a schedule", Args: cli.Positional("JOB", "[COUNT]"),
		Long:    "Shows the next times of a schedule: 10, or COUNT, at most 100. With jitter a run begins later.",
		Example: `  nusa job schedule next nightly 20`,
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, args []string) error {
			n := 10
			if len(args) > 0 {
				var err error
				if n, err = strconv.Atoi(args[0]); err != nil || n < 1 || n > 100 {
					return fmt.Errorf("COUNT must be 1..100, not %q", args[0])
				}
			}
			st, err := schedules(c).Get(ctx, &nusav1.GetScheduleRequest{Job: ref, Next: int32(n)})
			if err != nil {
				return err
			}
			if len(st.GetNext()) == 0 {
				if err := isScheduled(ctx, c, ref); err != nil {
					return err
				}
			}
			return c.Print(st, func(w *term.Screen) {
				if len(st.GetNext()) == 0 {
					fmt.Fprintf(w, "%s has no next time\n", cli.RefName(ref))
				}
				for _, at := range st.GetNext() {
					fmt.Fprintln(w, momentText(at.AsTime(), st.GetTimeZone()))
				}
			})
		}),
	}
}

// isScheduled returns an error for a job that begins runs, but not by a schedule.
func isScheduled(ctx context.Context, c *cli.Session, ref *nusav1.JobRef) error {
	j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
	if err != nil || j.GetSpec().GetSchedule() != nil {
		return err
	}
	return fmt.Errorf("job %s has no schedule, so it has no next time: %s begins a run", cli.RefName(ref), beginText(c, j.GetSpec(), ref))
}

// beginText returns the command that begins a run of a job without a schedule.
func beginText(c *cli.Session, spec *nusav1.JobSpec, ref *nusav1.JobRef) string {
	command := " workflow run "
	if spec.GetParameterized() != nil {
		command = " job dispatch "
	}
	return c.Program + command + cli.RefArg(ref)
}

func schedulePauseCommand(s *cli.Settings) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "pause JOB", Short: "Begin no further runs", Args: cli.Positional("JOB"),
		Long: "Begins no further runs until nusa job schedule resume. Times that pass meanwhile are\nskipped. Runs that have begun continue.",
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) error {
			st, err := schedules(c).Pause(ctx, &nusav1.PauseScheduleRequest{Job: ref, Reason: reason})
			if err != nil {
				return err
			}
			return c.Print(st, func(w *term.Screen) {
				fmt.Fprintf(w, "%s is paused; resume it with: %s job schedule resume %s\n", cli.RefName(ref), c.Program, cli.RefArg(ref))
			})
		}),
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for people")
	return c
}

func scheduleResumeCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "resume JOB", Short: "Begin runs again", Args: cli.Positional("JOB"),
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) error {
			st, err := schedules(c).Resume(ctx, &nusav1.ResumeScheduleRequest{Job: ref})
			if err != nil {
				return err
			}
			return c.Print(st, func(w *term.Screen) { fmt.Fprintf(w, "%s: %s\n", cli.RefName(ref), nextText(st)) })
		}),
	}
}

func nextText(st *nusav1.ScheduleStatus) string {
	if len(st.GetNext()) == 0 {
		return "no time follows"
	}
	return "next run " + momentText(st.GetNext()[0].AsTime(), st.GetTimeZone())
}

func scheduleTriggerCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "trigger JOB", Short: "Begin a run now", Args: cli.Positional("JOB"),
		Long: "Begins a run now, also while the schedule is paused. The overlap rule of the schedule\napplies.",
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) error {
			run, err := schedules(c).Trigger(ctx, &nusav1.TriggerScheduleRequest{Job: ref})
			if err != nil {
				return err
			}
			return c.PrintAs(cli.JobName(ref.GetNamespace(), run.GetName(), ""), run, func(w *term.Screen) { writeBegun(c, w, nounOf(ctx, c, ref), ref, run) })
		}),
	}
}

// nounOf returns the command that shows the runs of a job.
func nounOf(ctx context.Context, c *cli.Session, ref *nusav1.JobRef) string {
	if j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref}); err == nil && j.GetSpec().GetWorkflow() != nil {
		return "workflow"
	}
	return "job"
}

// writeBegun says that a run has begun, and how to follow it.
func writeBegun(c *cli.Session, w io.Writer, noun string, ref *nusav1.JobRef, run *nusav1.JobRun) {
	of := &nusav1.JobRef{Namespace: ref.GetNamespace(), Name: run.GetName()}
	fmt.Fprintf(w, "run %s has begun; follow it with: %s %s status %s\n", cli.RefName(of), c.Program, noun, cli.RefArg(of))
}

func scheduleBackfillCommand(s *cli.Settings) *cobra.Command {
	var from, to string
	c := &cobra.Command{
		Use: "backfill JOB --from TIME --to TIME", Short: "Run times of the past again", Args: cli.Positional("JOB"),
		Long:    "Runs the times of the schedule from one time on and before another one, one after\nanother, at most 1,000. A TIME is RFC 3339, or a date in UTC.",
		Example: `  nusa job schedule backfill nightly --from 2026-11-01 --to 2026-11-08`,
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) error {
			first, err := parseMoment("--from", from)
			if err != nil {
				return err
			}
			last, err := parseMoment("--to", to)
			if err != nil {
				return err
			}
			resp, err := schedules(c).Backfill(ctx, &nusav1.BackfillScheduleRequest{Job: ref, From: timestamppb.New(first), To: timestamppb.New(last)})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				fmt.Fprintf(w, "%s to begin, one after another; follow with: %s job schedule show %s\n", term.Plural(resp.GetRuns(), "run"), c.Program, cli.RefArg(ref))
			})
		}),
	}
	c.Flags().StringVar(&from, "from", "", "the first time")
	c.Flags().StringVar(&to, "to", "", "the first time after the backfill")
	return c
}

func parseMoment(flag, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	if text == "" {
		return time.Time{}, fmt.Errorf("%s is missing: a time such as 2026-11-28T10:00:00Z, or a date", flag)
	}
	return time.Time{}, fmt.Errorf("%s must be a time such as 2026-11-28T10:00:00Z, or a date, not %q", flag, text)
}

// writeSchedule writes the state and the latest runs of a schedule.
func writeSchedule(w *term.Screen, st *nusav1.ScheduleStatus) {
	if st.GetPaused() {
		fmt.Fprintf(w, "%s", w.Wait("Paused"))
		if why := st.GetPauseReason(); why != "" {
			fmt.Fprintf(w, ": %s", term.OneLine(why))
		}
		fmt.Fprintln(w)
	}
	for i, at := range st.GetNext() {
		head := "Next"
		if i > 0 {
			head = "then"
		}
		fmt.Fprintf(w, "%-5s %s\n", head, momentText(at.AsTime(), st.GetTimeZone()))
	}
	if n := len(st.GetWaiting()); n > 0 {
		fmt.Fprintf(w, "%s for the end of a run\n", term.Plural(n, "time")+" wait")
	}
	if n := st.GetBackfill(); n > 0 {
		fmt.Fprintf(w, "The backfill has %s left\n", term.Plural(n, "run"))
	}
	if n := st.GetSkipped(); n > 0 {
		fmt.Fprintf(w, "Skipped %d, the last one because %s\n", n, term.OneLine(st.GetSkipReason()))
	}
	if n := st.GetFailures(); n > 0 {
		fmt.Fprintf(w, "%s in a row failed\n", term.Plural(n, "run"))
	}
	if n := st.GetMissed(); n > 0 {
		fmt.Fprintf(w, "Missed %d, more than catch_up late\n", n)
	}
	runs := st.GetRuns()
	if len(runs) == 0 {
		fmt.Fprintln(w, "No run yet")
		return
	}
	if len(st.GetNext()) > 0 || st.GetPaused() {
		fmt.Fprintln(w)
	}
	t := term.NewTable("RUN", "STATE", "BY", ">BEGAN", ">TOOK", "#MESSAGE")
	for _, r := range runs[:min(len(runs), runsShown)] {
		took := ""
		if r.GetEnded() != nil {
			took = term.Duration(r.GetEnded().AsTime().Sub(r.GetBegan().AsTime()))
		}
		t.Row(r.GetName(), w.State(term.Word(r.GetState())), term.Word(r.GetTrigger()), w.Since(r.GetBegan()), took, term.OneLine(r.GetMessage()))
	}
	t.DropEmpty("MESSAGE")
	t.Narrow(w.Width, "BY", "TOOK")
	t.Write(w)
	if more := int(st.GetRunCount()) - runsShown; more > 0 {
		fmt.Fprintf(w, "and %d earlier ones: -o json shows up to %d\n", more, runsAsked)
	}
}

// writeRuns writes the runs of a job that begins runs.
func writeRuns(ctx context.Context, c *cli.Session, ref *nusav1.JobRef) {
	st, err := schedules(c).Get(ctx, &nusav1.GetScheduleRequest{Job: ref, Next: timesShown})
	if err != nil {
		c.Warn("runs: %s", term.OneLine(c.Explain(err).Error()))
		return
	}
	c.Printf("\n")
	writeSchedule(c.Screen(), st)
}

func dispatchCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.DispatchJobRequest{}
	var file string
	c := &cobra.Command{
		Use: "dispatch JOB", Short: "Begin a run of a parameterized job", Args: cli.Positional("JOB"),
		Long:    "Begins a run of a job with `parameterized`, with a payload and values for it. The\nvalues for a workflow are its parameters.",
		Example: `  nusa job dispatch resize --payload image.json --meta customer=acme`,
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) error {
			if file != "" {
				payload, err := cli.ReadPayload(c.Cmd.InOrStdin(), file)
				if err != nil {
					return err
				}
				req.Payload = payload
			}
			req.Job = ref
			run, err := schedules(c).Dispatch(ctx, req)
			if err != nil {
				return err
			}
			return c.PrintAs(cli.JobName(ref.GetNamespace(), run.GetName(), ""), run, func(w *term.Screen) { writeBegun(c, w, nounOf(ctx, c, ref), ref, run) })
		}),
	}
	c.Flags().StringVar(&file, "payload", "", "file with the payload, at most 64 KiB; - is standard input")
	c.Flags().StringToStringVar(&req.Meta, "meta", nil, "value for the run, as name=value; repeat or separate by commas")
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "a retry with the key returns the same run")
	return c
}
