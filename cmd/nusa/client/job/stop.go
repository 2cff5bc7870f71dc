package job

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/override"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func stopCommand(s *cli.Settings) *cobra.Command {
	var purge, wait bool
	timeout := time.Duration(0)
	var check int64
	group := ""
	var here override.Flags
	c := &cobra.Command{
		Use: "stop JOB", Short: "Stop every instance of a job, or of one group", Args: cli.Positional("JOB"),
		Long:    "Stops every instance of a job. The stopped job can still be shown and run again, until\nit is stopped with --purge. With --wait it returns when nothing of the job runs; the\nexit code is 2 if that takes longer than --timeout. With --group it submits the job with a\ncount of 0 for that group, and the other groups run on: job scale starts it again. With\n--override it stops only what one region runs of a job of the federation.",
		Example: "  nusa job stop web --wait\n  nusa job stop web --group worker\n  nusa job stop web --purge\n  nusa job stop web --override --region jakarta",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			if err := cli.CheckTimeout(timeout); err != nil {
				return err
			}
			c.Timeout = min(timeout, cli.DefaultTimeout)
			if err := here.Check(c); err != nil {
				return err
			}
			switch {
			case here.On && (purge || wait || check != 0):
				return errors.New("--override stops no whole job: leave --purge, --wait and --check-revision out")
			case here.On:
				return here.Set(c, &nusav1.SetOverrideRequest{Job: ref, Stop: group == "", Group: group})
			case group != "" && purge:
				return errors.New("--purge deletes the whole job: leave --group out, or remove the group from the job file")
			case group != "":
				r := submission{detach: !wait, timeout: timeout, check: check}
				err := r.scale(c, ref, args[0], group, 0)
				if err == nil && c.Output == "table" {
					c.Printf("%s stops, and the other groups run on: %s job scale %s %s COUNT starts it again\n", group, c.Program, cli.RefArg(ref), group)
				}
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			// The response does not say whether anything was running.
			was, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err != nil {
				return err
			}
			resp, err := c.Jobs().Stop(ctx, &nusav1.StopJobRequest{Job: ref, Purge: purge, CheckRevision: check})
			if err != nil {
				return err
			}
			if wait {
				f := waiter{Session: c, ref: ref, version: was.GetVersion(), since: resp.GetRevision(), began: time.Now(), timeout: timeout, stopping: true, purged: purge}
				return f.wait()
			}
			return c.Print(resp, func(w *term.Screen) { writeStopped(c, w, ref, was, resp.GetRevision(), purge) })
		}),
	}
	here.Bind(s, c, "stop the job")
	c.Flags().StringVar(&group, "group", "", "only this group: its count becomes 0")
	c.Flags().BoolVar(&purge, "purge", false, "also delete the job when everything has stopped")
	c.Flags().BoolVarP(&wait, "wait", "w", false, "wait until nothing of the job runs")
	c.Flags().DurationVar(&timeout, "timeout", runTimeout, "how long to wait for a response, and with --wait in all")
	c.Flags().Int64Var(&check, "check-revision", 0, "fail unless the stored job has this revision")
	cli.Instead(c, "job stop --purge", "rm", "remove", "delete", "del", "purge", "forget")
	cli.Instead(c, "job stop", "kill", "cancel")
	cli.Instead(c, "job run", "start", "apply", "update")
	return c
}

// writeStopped describes the effect of a stop. The effect depends on the state before the
// stop, was.
func writeStopped(c *cli.Session, w io.Writer, ref *nusav1.JobRef, was *nusav1.Job, revision int64, purge bool) {
	if how := endedText(was); how != "" {
		then := ""
		switch {
		case purge && was.GetRegion() != "":
			then = ", and is deleted"
		case purge:
			then = ", and is deleted when its regions have confirmed"
		}
		c.Screen().Onto(w).Note("", fmt.Sprintf("%s had %s already: nothing was left to stop (revision %d)%s", cli.RefName(ref), how, revision, then))
		return
	}
	same := was.GetStopped() && was.GetRevision() == revision
	over := was.GetStatus().GetState() == nusav1.JobState_JOB_STATE_STOPPED && (same || purge) // otherwise the stopped job may have been submitted again
	is, then, follow := "stopping", "", "; follow it with: "+term.Whole(fmt.Sprintf("%s job status %s", c.Program, cli.RefArg(ref)))
	if purge {
		then = " and is deleted when everything has stopped"
	}
	if over {
		is, then, follow = "stopped", strings.TrimSuffix(then, " when everything has stopped"), ""
	}
	if same || over {
		is += " already"
	}
	c.Screen().Onto(w).Note("", fmt.Sprintf("%s is %s (revision %d)%s%s", cli.RefName(ref), is, revision, then, follow))
	if left := unreachable(was.GetStatus(), c.Program); left != "" && !over {
		fmt.Fprintln(w, left)
	}
}

// endedText says how a batch job ended. It is "" while an instance of the job may run.
func endedText(j *nusav1.Job) string {
	sum, _ := totalsOf(j.GetStatus())
	if j.GetSpec().GetType() != nusav1.JobType_JOB_TYPE_BATCH || sum.Pending+sum.Starting+sum.Running+sum.Stopping+sum.Lost+sum.Unknown+sum.unowned > 0 {
		return ""
	}
	switch j.GetStatus().GetState() {
	case nusav1.JobState_JOB_STATE_COMPLETE:
		return "completed"
	case nusav1.JobState_JOB_STATE_FAILED:
		return "failed"
	}
	return ""
}
