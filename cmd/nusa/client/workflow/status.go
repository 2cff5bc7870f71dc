package workflow

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// steps returns a run with all of its steps that a request selects.
func steps(ctx context.Context, c *cli.Session, run *nusav1.JobRef, req *nusav1.GetWorkflowRunRequest) (*nusav1.WorkflowRunStatus, error) {
	out := &nusav1.WorkflowRunStatus{}
	req.Run = run
	err := cli.Pages(func(token string) (string, error) {
		req.PageToken = token
		page, err := client(c).Get(ctx, req)
		out.Run, out.Steps = page.GetRun(), append(out.GetSteps(), page.GetSteps()...)
		return page.GetNextPageToken(), err
	})
	return out, err
}

func statusCommand(s *cli.Settings) *cobra.Command {
	var states *cli.States
	var step string
	c := &cobra.Command{
		Use: "status RUN", Short: "Show a run and its steps", Args: cli.Positional("RUN"),
		Example: "  nusa workflow status etl.3f9a01bc\n  nusa workflow status etl.3f9a01bc --state failed,lost,timed_out",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			all, err := steps(ctx, c, ref, &nusav1.GetWorkflowRunRequest{Step: step})
			if err != nil {
				return err
			}
			all.Steps = slices.DeleteFunc(all.GetSteps(), func(st *nusav1.StepStatus) bool { return !states.Has(term.Word(st.GetState())) })
			var inner map[string]*nusav1.WorkflowRunStatus
			if c.Output == "table" {
				if inner, err = inside(ctx, c, all); err != nil {
					return err
				}
				addWaits(ctx, c, all)
			}
			return c.Print(all, func(w *term.Screen) { write(w, all, inner, states) })
		}),
	}
	c.Flags().StringVar(&step, "step", "", "only this step")
	states = cli.StateFlag(c, "steps", "pending", "approval", "running", "backoff", "succeeded", "failed", "skipped", "lost", "timed_out")
	return c
}

// mostWaits bounds the jobs of steps whose messages are shown.
const mostWaits = 20

// addWaits says of running steps what their jobs wait for, such as the next attempt after a failure.
func addWaits(ctx context.Context, c *cli.Session, all *nusav1.WorkflowRunStatus) {
	asked := 0
	for _, st := range all.GetSteps() {
		if st.GetState() != nusav1.StepState_STEP_STATE_RUNNING || st.GetJob() == "" || st.GetMessage() != "" || asked == mostWaits {
			continue
		}
		asked++
		j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: all.GetRun().GetNamespace(), Name: st.GetJob()}})
		if err == nil {
			st.Message = j.GetStatus().GetMessage()
		}
	}
}

// mostInside bounds the runs inside a run that are shown.
const mostInside = 50

// inside returns the runs that the steps of a run have begun, by name, and those inside them.
func inside(ctx context.Context, c *cli.Session, outer *nusav1.WorkflowRunStatus) (map[string]*nusav1.WorkflowRunStatus, error) {
	out := map[string]*nusav1.WorkflowRunStatus{}
	for queue := []*nusav1.WorkflowRunStatus{outer}; len(queue) > 0; queue = queue[1:] {
		for _, st := range queue[0].GetSteps() {
			if st.GetRun() == "" || len(out) == mostInside {
				continue
			}
			in, err := steps(ctx, c, &nusav1.JobRef{Namespace: outer.GetRun().GetNamespace(), Name: st.GetRun()}, &nusav1.GetWorkflowRunRequest{})
			if err != nil {
				return nil, err
			}
			out[st.GetRun()] = in
			queue = append(queue, in)
		}
	}
	return out, nil
}

func write(w *term.Screen, all *nusav1.WorkflowRunStatus, inner map[string]*nusav1.WorkflowRunStatus, states *cli.States) {
	r := all.GetRun()
	var params []string
	for _, name := range slices.Sorted(maps.Keys(r.GetParameters())) {
		params = append(params, name+"="+r.GetParameters()[name])
	}
	fields := [][2]string{
		{"run", runName(r)}, {"state", w.State(term.Word(r.GetState())) + why(r.GetMessage())},
		{"steps", fmt.Sprintf("%d of %d have ended, %d did not succeed, %s", r.GetStepsEnded(), r.GetSteps(), r.GetStepsFailed(), term.Plural(r.GetActive(), "active job"))},
		{"parameters", term.OneLine(strings.Join(params, ", "))}, {"region", r.GetRegion()}, {"began", w.Since(r.GetBegan())},
	}
	if n := r.GetPayloadBytes(); n > 0 {
		fields = append(fields, [2]string{"payload", term.Plural(n, "byte")})
	}
	if r.GetTime() != nil {
		fields = append(fields, [2]string{"schedule", by(r) + ", time " + r.GetTime().AsTime().Format(time.RFC3339)})
	}
	if r.GetParent() != "" {
		fields = append(fields, [2]string{"inside", "run " + r.GetParent() + ", step " + r.GetParentStep()})
	}
	if r.GetOutput() != "" {
		fields = append(fields, [2]string{"output", shortened(r.GetOutput())})
	}
	if r.GetEnded() != nil {
		fields = append(fields, [2]string{"took", term.Duration(r.GetEnded().AsTime().Sub(r.GetBegan().AsTime()).Round(time.Millisecond))})
	}
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(w, "%-11s %s\n", f[0], f[1])
		}
	}
	fmt.Fprintln(w)
	if len(all.GetSteps()) == 0 {
		fmt.Fprintf(w, "no step%s\n", states.Text())
		return
	}
	t := term.NewTable("STEP", "STATE", ">TRIES", ">TOOK", "#MESSAGE")
	rows(w, t, all, inner, "")
	t.DropEmpty("TOOK", "MESSAGE")
	t.Write(w)
	approvals(w, all, inner)
}

// mostApprovals bounds the commands that are shown.
const mostApprovals = 10

// approvals says how the steps of a run, and of those inside it, start that wait for an approval.
func approvals(w *term.Screen, all *nusav1.WorkflowRunStatus, inner map[string]*nusav1.WorkflowRunStatus) {
	var out []string
	runs := []*nusav1.WorkflowRunStatus{all}
	for _, name := range slices.Sorted(maps.Keys(inner)) {
		runs = append(runs, inner[name])
	}
	for _, in := range runs {
		for _, st := range in.GetSteps() {
			line := fmt.Sprintf("%s workflow approve %s %s", w.Program, cli.RefArg(refOf(in.GetRun())), st.GetStep())
			if st.GetState() == nusav1.StepState_STEP_STATE_APPROVAL && len(out) < mostApprovals && !slices.Contains(out, line) {
				out = append(out, line)
			}
		}
	}
	if len(out) > 0 {
		fmt.Fprintf(w, "\nto let a step start that waits for an approval, or not (--reject):\n  %s\n", strings.Join(out, "\n  "))
	}
}

// rows adds the steps of a run to a table, each with those of its run below it.
func rows(w *term.Screen, t *term.Table, all *nusav1.WorkflowRunStatus, inner map[string]*nusav1.WorkflowRunStatus, indent string) {
	for _, st := range all.GetSteps() {
		took := ""
		if st.GetBegan() != nil && st.GetEnded() != nil {
			took = term.Duration(st.GetEnded().AsTime().Sub(st.GetBegan().AsTime()).Round(time.Millisecond))
		}
		message := term.OneLine(st.GetMessage())
		switch {
		case message != "":
		case st.GetOutput() != "":
			message = "output " + shortened(st.GetOutput())
		case st.GetRun() != "":
			message = "run " + st.GetRun()
		case st.GetItem() != "":
			message = "item " + term.OneLine(st.GetItem())
		}
		t.Row(indent+stepName(st), w.State(term.Word(st.GetState())), term.Count(st.GetAttempts()), term.OrDash(took), message)
		if in := inner[st.GetRun()]; in != nil {
			rows(w, t, in, inner, indent+"  ")
		}
	}
}

// shortened returns an output as a table shows it.
func shortened(output string) string {
	const most = 48
	runes := []rune(term.OneLine(output))
	if len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return string(runes)
}

func outputCommand(s *cli.Settings) *cobra.Command {
	var item int32
	var cmd *cobra.Command
	cmdChanged := func() bool { return cmd.Flags().Changed("item") }
	cmd = &cobra.Command{
		Use: "output RUN STEP", Short: "Print what a step wrote for later steps", Args: cli.Positional("RUN", "STEP"),
		Long:    "Prints what the task of a step wrote to the file $NUSA_OUTPUT. Of a step with foreach, it\nprints one line for each item, or with --item the output of one.",
		Example: "  nusa workflow output etl.3f9a01bc fetch\n  nusa workflow output etl.3f9a01bc part --item 2",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			all, err := steps(ctx, c, ref, &nusav1.GetWorkflowRunRequest{Step: args[1]})
			if err != nil {
				return err
			}
			if cmdChanged() {
				all.Steps = slices.DeleteFunc(all.GetSteps(), func(st *nusav1.StepStatus) bool { return st.Index == nil || st.GetIndex() != item })
				if len(all.GetSteps()) == 0 {
					return fmt.Errorf("step %s has no item %d", args[1], item)
				}
			}
			if len(all.GetSteps()) == 1 && all.GetSteps()[0].GetOutput() == "" {
				c.Warn("step %s of run %s has no output: its tasks wrote none to $NUSA_OUTPUT", args[1], cli.RefName(ref))
			}
			return c.Print(all, func(w *term.Screen) {
				for _, st := range all.GetSteps() {
					fmt.Fprintln(w, st.GetOutput())
				}
			})
		}),
	}
	cmd.Flags().Int32Var(&item, "item", 0, "number of the item of a step with foreach")
	return cmd
}
