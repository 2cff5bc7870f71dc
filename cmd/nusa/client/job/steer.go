package job

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// revertArgs checks the arguments of job revert. A version as a second argument is a common mistake.
func revertArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 2 {
		return fmt.Errorf("%q is one argument too many; the version is a flag: %s %s --to %s", args[1], cmd.CommandPath(), args[0], args[1])
	}
	return cli.Positional("JOB")(cmd, args)
}

func revertCommand(s *cli.Settings) *cobra.Command {
	var to string
	var detach bool
	var check int64
	timeout := time.Duration(0)
	c := &cobra.Command{
		Use: "revert JOB", Short: "Submit an earlier version of a job again, and wait until it runs", Args: revertArgs,
		Long: `Submits the spec of an earlier version again, as a new version, and waits like job run.
Without --to it is the latest earlier version that ran completely. If none is known to
have done so, it is the version before the present one, and a warning says so.
job history lists the versions. The exit codes are those of job run.`,
		Example: "  nusa job revert web\n  nusa job revert web --to 3\n  nusa job revert web --to v1.0 --detach",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			if timeout <= 0 {
				return errNoTime(timeout)
			}
			began := time.Now()
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := rollouts(c).Revert(ctx, &nusav1.RevertJobRequest{Job: ref, To: to, CheckRevision: check, IdempotencyKey: rand.Text()})
			if err != nil {
				return err
			}
			cli.PrintWarnings(c, resp.GetWarnings())
			if detach {
				return c.Print(resp, func(w *term.Screen) { reverted(w, ref, resp) })
			}
			if c.Output == "table" {
				reverted(c.Out, ref, resp)
			}
			f := waiter{Session: c, ref: ref, version: resp.GetVersion(), began: began, timeout: timeout, unchanged: !resp.GetChanged(), warnings: resp.GetWarnings()}
			j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err != nil {
				return err
			}
			f.batch = j.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH
			return f.wait()
		}),
	}
	c.Flags().StringVar(&to, "to", "", "the version or tag (default: the latest that ran completely)")
	c.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait")
	c.Flags().Int64Var(&check, "check-revision", 0, "fail unless the stored job has this revision")
	c.Flags().DurationVar(&timeout, "timeout", runTimeout, "how long to wait until the job runs")
	cli.Instead(c, "job revert", "rollback", "undo")
	return c
}

// reverted says to which version a job goes back, unless the server does not tell.
func reverted(w io.Writer, ref *nusav1.JobRef, resp *nusav1.SubmitResponse) {
	if resp.GetRevertedTo() > 0 {
		fmt.Fprintf(w, "%s goes back to version %d\n", cli.RefName(ref), resp.GetRevertedTo())
	}
	(&submission{}).submitted(w, ref, resp)
}

// steering is a command that changes the rollout of a job.
type steering struct {
	use, reason, short, long, done string
	call                           func(nusav1.RolloutsClient, context.Context, *nusav1.ControlRolloutRequest, ...grpc.CallOption) (*nusav1.Rollout, error)
}

var steerings = []steering{
	{
		"pause", "errors in jakarta", "Stop the rollout of a job before the next region",
		"Stops the rollout of the present version before the next region. Regions that have the\nversion finish their part. Deadlines do not count until job resume.",
		"the rollout of version %d is paused: nusa job resume %s",
		nusav1.RolloutsClient.Pause,
	},
	{
		"resume", "jakarta is repaired", "Continue a rollout that is paused or has failed",
		"Continues a rollout that is paused or has failed. Its deadlines start again. A rollout\nthat waits because of update.regions.pause_between goes on with the next region at once.",
		"the rollout of version %d continues: nusa job status %s",
		nusav1.RolloutsClient.Resume,
	},
	{
		"promote", "no errors in an hour", "Continue a rollout whose canaries are healthy",
		"Promotes the canaries of the present version: the instances of the earlier version are\nreplaced, and the canaries run until the rollout is done. job fail removes them instead.",
		"the canaries of version %d are promoted: nusa job status %s",
		nusav1.RolloutsClient.Promote,
	},
	{
		"fail", "errors in jakarta", "End the rollout of a job as failed",
		"Ends the rollout of the present version as failed: no further region gets it, and\ncanaries that are not promoted end. With update.auto_revert the job is taken back to\nthe latest version that ran completely.",
		"version %d has failed: nusa job status %s",
		nusav1.RolloutsClient.Fail,
	},
}

func steerCommands(s *cli.Settings) (out []*cobra.Command) {
	for _, v := range steerings {
		reason, force := "", false
		c := &cobra.Command{
			Use: v.use + " JOB", Short: v.short, Long: v.long, Args: cli.Positional("JOB"),
			Example: fmt.Sprintf("  nusa job %s web --reason '%s'", v.use, v.reason),
			RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) error {
				done := v.done
				if v.use == "resume" {
					was, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
					if err == nil && goesOn(was.GetStatus().GetRollout()) { // it only chooses the text
						done = "the rollout of version %d was not paused, and goes on: nusa job status %s"
					}
				}
				r, err := v.call(rollouts(c), ctx, &nusav1.ControlRolloutRequest{Job: ref, Reason: reason, Force: force})
				if err != nil {
					return err
				}
				return c.Print(r, func(w *term.Screen) {
					fmt.Fprintf(w, "%s: %s\n", cli.RefName(ref), cli.WithProgram(fmt.Sprintf(done, r.GetVersion(), cli.RefArg(ref)), w.Program))
				})
			}),
		}
		c.Flags().StringVar(&reason, "reason", "", "why, for people; at most 256 bytes")
		if v.use == "promote" {
			c.Flags().BoolVar(&force, "force", false, "also if a canary is not healthy")
		}
		out = append(out, c)
	}
	return out
}

// goesOn reports whether a rollout is neither paused nor failed, and is in no pause between regions.
func goesOn(r *nusav1.Rollout) bool {
	stands := r.GetState() == nusav1.RolloutState_ROLLOUT_STATE_PAUSED || r.GetState() == nusav1.RolloutState_ROLLOUT_STATE_FAILED
	return r != nil && !stands && r.GetPauseLeft() == nil
}

// writeRollout writes what a rollout does, what it waits for and when its deadline is, and a table of
// its regions.
func writeRollout(w *term.Screen, r *nusav1.Rollout) {
	if r == nil {
		return
	}
	text := fmt.Sprintf("rollout of version %d", r.GetVersion())
	if r.GetBegan() != nil {
		text += ", began " + w.Since(r.GetBegan()) + " ago"
	}
	switch {
	case r.GetMessage() != "":
		text += ": " + term.OneLine(r.GetMessage())
	case r.GetPauseLeft() != nil && r.GetDeadline() == nil:
		left := r.GetPauseLeft().AsDuration()
		text += fmt.Sprintf(": the next region follows after a pause, in %s, at %s", term.Duration(left), w.Now.Add(left).Format("15:04 MST"))
	case r.GetDeadline() != nil:
		text += ": fails in " + term.Duration(r.GetDeadline().AsDuration()) + " unless a further instance becomes healthy"
	default:
		text += ": its deadlines do not count now"
	}
	w.Note("", w.Wait(text))
	if len(r.GetRegions()) < 2 {
		return
	}
	t := term.NewTable("REGION", ">HEALTHY", ">OF", ">OUTDATED", "STATE", "#WAITS FOR")
	for _, name := range byTurn(r.GetRegions()) {
		at := r.GetRegions()[name]
		t.Row(name, term.Count(at.GetHealthy()), term.Count(at.GetDesired()), term.Count(at.GetOutdated()), regionState(w, at), cmp.Or(term.OneLine(at.GetWaits()), term.OneLine(at.GetFailed())))
	}
	t.DropEmpty("OUTDATED", "WAITS FOR")
	t.Write(w)
}

// byTurn returns the regions of a rollout in the order of the job, and then by name.
func byTurn(regions map[string]*nusav1.RegionRollout) []string {
	turn := func(name string) int32 {
		if n := regions[name].GetTurn(); n > 0 {
			return n
		}
		return math.MaxInt32
	}
	return slices.SortedFunc(maps.Keys(regions), func(a, b string) int {
		return cmp.Or(cmp.Compare(turn(a), turn(b)), cmp.Compare(a, b))
	})
}

// regionState says how far the rollout is in a region.
func regionState(w *term.Screen, at *nusav1.RegionRollout) string {
	switch {
	case at.GetFailed() != "":
		return "failed " + w.Since(at.GetEnded()) + " ago"
	case at.GetEnded() != nil:
		return "done " + w.Since(at.GetEnded()) + " ago"
	case at.GetWaits() != "":
		return "waiting"
	case at.GetOutdated() > 0 || at.GetHealthy() < at.GetDesired():
		return "updating"
	}
	return "done"
}
