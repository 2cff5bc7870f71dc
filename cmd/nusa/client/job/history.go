package job

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func rollouts(c *cli.Session) nusav1.RolloutsClient { return nusav1.NewRolloutsClient(c.Conn) }

func historyCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "history JOB", Short: "List the stored versions of a job", Args: cli.Positional("JOB"),
		Long: `Lists the versions of a job, the present one first. The latest 30 earlier versions are
stored, each for 90 days after its replacement, and at most 16 more that have a tag. The
note says which versions failed, and which ran completely before the next one. While the
present version is rolled out, its regions follow in their order. For a region's own job,
NAME@REGION, the region keeps the versions, at most 64 MiB of all its jobs.`,
		Example: "  nusa job history web\n  nusa job diff web 3 5\n  nusa job revert web --to 3",
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) error {
			h, err := rollouts(c).History(ctx, &nusav1.JobHistoryRequest{Job: ref})
			if err != nil {
				return err
			}
			return c.Print(h, func(w *term.Screen) {
				writeHistory(w, h)
				j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
				if err != nil {
					c.Warn("rollout: %s", term.OneLine(c.Explain(err).Error()))
					return
				}
				if r := j.GetStatus().GetRollout(); r != nil {
					fmt.Fprintln(w)
					writeRollout(w, r)
				}
			})
		}),
	}
	cli.Instead(c, "job history", "versions", "deployments", "revisions")
	return c
}

func writeHistory(w *term.Screen, h *nusav1.JobHistory) {
	t := term.NewTable(">VERSION", "SUBMITTED", "REPLACED", "TAG", "#NOTE")
	for i, v := range h.GetVersions() {
		replaced, note := "-", ""
		if i > 0 && v.GetReplaced() != nil {
			replaced = w.Since(v.GetReplaced()) + " ago"
		}
		submitted := "-"
		if v.GetSubmitted() != nil {
			submitted = w.Since(v.GetSubmitted()) + " ago"
		}
		if r := v.GetReverted(); r != nil {
			note = fmt.Sprintf("version %d failed: taken back to version %d", r.GetVersion(), r.GetTo())
		}
		switch {
		case v.GetFailed() != "":
			note = joined("; ", note, "failed: "+term.OneLine(v.GetFailed()))
		case v.GetComplete():
			note = joined("; ", note, "ran completely")
		}
		note = joined("; ", note, inPlaceText(v.GetInPlace()))
		if i == 0 {
			note = joined("; ", "the present version", note)
		}
		t.Row(strconv.FormatInt(v.GetVersion(), 10), submitted, replaced, v.GetTag(), note)
	}
	t.DropEmpty("TAG")
	t.Write(w)
}

// inPlaceText says what a version changed in place, for example "in place: web (3 of 4)".
func inPlaceText(all []*nusav1.InPlaceChange) string {
	var groups []string
	for _, c := range all {
		text := c.GetGroup()
		if c.GetStarted() > 0 {
			text += fmt.Sprintf(" (%d of %d)", c.GetInstances(), c.GetInstances()+c.GetStarted())
		}
		groups = append(groups, text)
	}
	if len(groups) == 0 {
		return ""
	}
	return "in place: " + strings.Join(groups, ", ")
}

func diffCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "diff JOB [FROM [TO]]", Short: "Show what differs between two versions of a job", Args: cli.Positional("JOB", "[FROM]", "[TO]"),
		Long: `Shows the fields in which two stored versions of a job differ. FROM and TO are versions
or tags. Without TO it is the present version, and without FROM the version before TO.`,
		Example: "  nusa job diff web\n  nusa job diff web 3 5\n  nusa job diff web v1.0",
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, args []string) error {
			req := &nusav1.JobDiffRequest{Job: ref}
			if len(args) > 0 {
				req.From = args[0]
			}
			if len(args) > 1 {
				req.To = args[1]
			}
			d, err := rollouts(c).Diff(ctx, req)
			if err != nil {
				return err
			}
			return c.Print(d, func(w *term.Screen) {
				if len(d.GetLines()) == 0 {
					fmt.Fprintf(w, "versions %d and %d of %s are equal\n", d.GetFrom(), d.GetTo(), cli.RefName(ref))
					return
				}
				fmt.Fprintf(w, "%s, version %d → %d\n", cli.RefName(ref), d.GetFrom(), d.GetTo())
				writeDiff(w, d.GetLines())
			})
		}),
	}
}

func tagCommand(s *cli.Settings) *cobra.Command {
	var version int64
	var remove bool
	c := &cobra.Command{
		Use: "tag JOB [TAG]", Short: "Give a version of a job a tag", Args: cli.Positional("JOB", "[TAG]"),
		Long: `Gives a version a tag, with which job diff and job revert find it. A version with a tag is
stored longer. A tag is 1..63 of [a-z0-9._-] and no number.`,
		Example: "  nusa job tag web v1.0\n  nusa job tag web stable --version 3\n  nusa job tag web --version 3 --remove",
		RunE: withRef(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, args []string) error {
			if remove == (len(args) == 1) {
				return fmt.Errorf("give either a tag or --remove")
			}
			req := &nusav1.TagVersionRequest{Job: ref, Version: version}
			if !remove {
				req.Tag = args[0]
			}
			v, err := rollouts(c).Tag(ctx, req)
			if err != nil {
				return err
			}
			return c.Print(v, func(w *term.Screen) {
				if v.GetTag() == "" {
					fmt.Fprintf(w, "%s, version %d has no tag\n", cli.RefName(ref), v.GetVersion())
					return
				}
				fmt.Fprintf(w, "%s, version %d has the tag %s\n", cli.RefName(ref), v.GetVersion(), v.GetTag())
			})
		}),
	}
	c.Flags().Int64Var(&version, "version", 0, "the version (default: the present one)")
	c.Flags().BoolVar(&remove, "remove", false, "remove the tag of the version")
	return c
}
